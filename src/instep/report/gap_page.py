"""Pages of gaps: error over the horizon, runs, growth, events, arms, commands, clocks, torques, causes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.statistics import Estimate
from instep.core.world import Array

from .figures import (
    LOG_AXIS,
    Lines,
    bars_figure,
    ensemble_figure,
    histogram_figure,
    line_trace,
    lines_figure,
    panels_figure,
    plain_text,
    plot,
    series_color,
    upright_line,
    upright_note,
)
from .page import (
    Figure,
    FigureRow,
    FigureTabs,
    Headline,
    HtmlReport,
    Number,
    ReportImage,
    Section,
    Table,
    display_unit,
    formatted,
    percent,
    score_table,
)

if TYPE_CHECKING:
    from instep.diagnose.diagnosis import Diagnosis
    from instep.gap.gap_result import CommandFollowing, Curve, ErrorGrowth, EventAgreement, EventMatch, Gap, RunPair
    from instep.gap.preparation import DataChecks
    from instep.gap.torque_gap import TorqueGap, TorqueRun

TORQUE_ERROR, TORQUE_NORM = "torque error", "torque error, mean norm"
"""Scores of torques over all joints."""
MAX_PANELS = 7
"""Most channels of a figure; with more, those with the largest errors are plotted."""
MAX_BANDS = 3
"""Most curves of a figure that all have their band; of more, only the first has."""
IMAGES = "observation.images."


def gap_page(
    gap: Gap, *, title: str = "Gap", subtitle: str = "", causes: Sequence[Section] = (), checks: Sequence[Section] = ()
) -> HtmlReport:
    """The page of a gap; sections about causes follow the runs, sections about the data precede the details."""
    details = [Table(("decisions and caveats",), [[note] for note in gap.notes])] if gap.notes else []
    details.append(score_table(gap.scores, "Every score with its 95 % interval and the number of runs behind it."))
    if gap.kind == "clocks":
        verdict, numbers, sections = _clocks(gap)
    elif gap.kind == "commands" and gap.following is not None:
        verdict, numbers = _following_verdict(gap.following)
        sections = [_following_section(gap.following)]
    else:
        verdict, numbers, sections = gap_headline(gap), _numbers(gap), _run_sections(gap, causes)
    sections = [*sections, *checks, Section("Details", "", details, folded=True)]
    return HtmlReport(title, subtitle, verdict, numbers, sections)


def gap_headline(gap: Gap) -> Headline:
    """The conclusion of a gap between two worlds."""
    curve = gap.headline

    def short(estimate: Estimate) -> str:
        usual = " of the usual motion" if curve.name == "overall" else ""
        return formatted(_percent(curve, estimate), interval=False) + usual

    half, subject = 0.5 in curve.horizons, "The simulator is" if gap.kind == "replay" else "The two worlds are"
    point, when = (curve.at(0.5), "after half a second") if half else (curve.estimates[0], "one step ahead")
    words = f"{subject} {short(point)} off {when}, {short(curve.at(inf))} over whole runs."
    if curve.name not in gap.floor:
        return Headline("plain", words, "No command was repeated, so the share of the robot's own scatter is unknown.")
    floor = gap.floor[curve.name].at(inf)
    ratio = curve.at(inf).value / floor.value if floor.value > 0 else inf
    detail = f"Repeats of one command scatter by {short(floor)}: the gap is {ratio:.2g} times that."
    return Headline("plain", words, detail)


def diagnosis_section(diagnosis: Diagnosis) -> Section:
    """The causes of a gap, their shares and the failure modes that were looked for."""
    modes = sorted(diagnosis.modes, key=lambda mode: not mode.found)
    rows = [(m.name, "yes" if m.found else "no", m.evidence) for m in modes]
    if diagnosis.attribution is not None:
        rest = diagnosis.attribution.rest / max(diagnosis.attribution.before, 1e-300)
        shares = {**diagnosis.attribution.shares, "not explained": Estimate(rest, rest, rest, 0, "1")}
        title, x = "Share of the gap by cause (Shapley values, simultaneous 95 % intervals)", "share of the gap"
    else:
        gains = {c.candidate.cause: c.gain for c in diagnosis.candidates}
        shares = {n: Estimate(e.value, max(e.low, -0.5), min(e.high, 1.0), e.n, "1") for n, e in gains.items()}
        title, x = "Share of the squared error that one change explains on held-out pieces", "share explained"
    figures = [bars_figure(shares, title=title, x=x)] if shares else []
    table = Table(("failure mode", "found", "evidence"), rows)
    return Section("Causes", " ".join([str(diagnosis), *diagnosis.ties]), [*figures, table])


def checks_section(checks: DataChecks) -> Section:
    """The problems that the checks found in recordings."""
    rows = [[p.check, p.channel, p.sentence] for p in checks.problems]
    caption = "Problems found in the recordings." if rows else "No problem was found in the recordings."
    return Section("Data checks", "", [Table(("check", "channel", "problem"), rows, caption)], folded=True)


def torque_gap_page(gap: TorqueGap, facts: Mapping[str, str] | None = None) -> HtmlReport:
    """The page of a torque gap: error of each joint, what would remove it, measured and predicted torques."""
    overall, norm = gap.scores[TORQUE_ERROR], gap.scores[TORQUE_NORM]
    headline = f"The torques of {gap.scene!r} are {formatted(overall, interval=False)} off those measured."
    worst = max(gap.joints, key=lambda joint: gap.scores[f"{joint} of rms torque"].value)
    because = f"The largest relative error is that of {worst}; instep torque DATA SCENE identifies its causes."
    numbers = [
        Number("error over torque", formatted(overall), f"{overall.n} blocks of rows"),
        Number("mean norm of the error", formatted(norm), f"{len(gap.runs)} runs"),
    ]
    shown = {run.name: torque_figure(run, {"scene": p}) for run, p in zip(gap.runs, gap.predicted, strict=True)}
    bars = {joint: gap.scores[f"{joint} rms"] for joint in gap.joints}
    figure = bars_figure(bars, title="Torque error by joint", x="root mean square error")
    rows: list[tuple[str, ...]] = []
    for joint in gap.joints:
        scores = [formatted(gap.scores[f"{joint} {what}"]) for what in ("rms", "of rms torque", "of range")]
        rows.append((joint, *scores, *(f"{100 * share:.0f} %" for share in gap.shares[joint].values())))
    effects = tuple(next(iter(gap.shares.values())))
    head = ("joint", "error", "of its RMS torque", "of its torque range", *(f"removed by {s}" for s in effects))
    table = Table(head, rows, "Removed: the share of the squared error that this effect alone would explain.")
    sections = [
        Section("Error of each joint", "Root mean square, with 95 % intervals.", [figure, table]),
        Section("Torques", "Measured torques, and those of the scene for the measured motion.", [FigureTabs(shown)]),
        Section("Notes", "", list(gap.notes)),
    ]
    subtitle = f"{len(gap.runs)} recorded runs against the inverse dynamics of {gap.scene!r}"
    title = f"Torque gap of {gap.scene}"
    return HtmlReport(title, subtitle, Headline("plain", headline, because), numbers, sections, facts or {})


def torque_figure(run: TorqueRun, predicted: Mapping[str, Array]) -> Figure:
    """Measured torques of a run and predictions by name, one panel per joint."""
    torques = {"measured": run.torque, **predicted}
    panels = {
        f"{joint} [Nm]": {name: (run.t, torque[:, k]) for name, torque in torques.items()}
        for k, joint in enumerate(run.joints)
    }
    styles = [{"color": "@ink", "width": 1.4}]
    styles += [{"color": series_color(i), "width": 1.8, "dash": "dot" if i else "solid"} for i in range(len(predicted))]
    return panels_figure(panels, styles=styles)


def _run_sections(gap: Gap, causes: Sequence[Section]) -> list[Section]:
    """Everything but the details, as far as it was measured."""
    sections = [_horizon_section(gap)]
    sections += [_runs_section(gap), *causes]
    sections += [_growth_section(gap, gap.growth)] if gap.growth is not None else []
    sections += [_events_section(gap, gap.event_agreement)] if gap.event_agreement is not None else []
    sections += [_images_section(gap)] if gap.cameras else []
    sections += [_arms_section(gap)] if gap.joint_errors else []
    sections += _actions_sections(gap)
    return [*sections, *([_following_section(gap.following)] if gap.following is not None else [])]


def _numbers(gap: Gap) -> list[Number]:
    """The numbers on top: one step, half a second and whole run."""
    curve = gap.headline
    found: list[Number] = []
    for label, horizon in (("one step ahead", 0.0), ("half a second ahead", 0.5), ("whole run, open loop", inf)):
        if horizon == 0.5 and 0.5 not in curve.horizons:
            continue
        estimate, floor = _percent(curve, curve.at(horizon)), gap.floor.get(curve.name)
        beside = f" · floor {formatted(_percent(curve, floor.at(horizon)), interval=False)}" if floor else ""
        of = ", of the usual motion" if curve.name == "overall" else ""
        found.append(Number(label + of, formatted(estimate, interval=False), _interval(estimate) + beside))
    return found


def _horizon_figures(gap: Gap) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    single = [n for n in gap.curves if not n.startswith("all ") and n != "overall"]
    for unit in dict.fromkeys(gap.curves[n].unit for n in single):
        same = [n for n in single if gap.curves[n].unit == unit]
        shown = [f"all {unit}", *same] if f"all {unit}" in gap.curves else same
        title = f"Error over the prediction horizon [{unit}]"
        figures[f"in {unit}" if unit != "1" else "without unit"] = horizon_figure(gap.curves, gap.floor, shown, title)
    title = "All channels, each by the scale of its unit"
    return figures | {"overall": horizon_figure(gap.curves, gap.floor, ["overall"], title)}


def _horizon_section(gap: Gap) -> Section:
    """The error over the horizon, and every channel at every horizon with command following and noise floor."""
    following = gap.following.rmse if gap.following is not None else dict[str, Estimate]()
    head = ["channel", *next(iter(gap.curves.values())).names(), *(["command following"] if following else [])]
    rows: list[list[str]] = []
    for name, curve in gap.curves.items():
        row = [channel_words(name, curve.unit), *(formatted(e, interval=False) for e in curve.estimates)]
        if following:
            row.append(formatted(following[name], interval=False) if name in following else "")
        if gap.floor:
            row.append(formatted(gap.floor[name].at(inf), interval=False) if name in gap.floor else "")
        rows.append(row)
    model = "'command following' is the error of the model that the robot is at its command." * bool(following)
    table = Table([*head, *(["floor, full"] if gap.floor else [])], rows, f"Root mean square errors. {model}")
    lead = (
        "The simulator starts at the recorded state and gets the recorded commands. Errors grow with the prediction "
        "horizon. Bands are 95 % intervals over runs. The dashed line is the noise floor: the scatter of the robot "
        "when a command is repeated."
    )
    return Section("Error over the prediction horizon", lead, [FigureTabs(_horizon_figures(gap)), table])


def _runs_section(gap: Gap) -> Section:
    """The best, the median and the worst run beside their replays."""
    ranked = sorted((p for p in gap.pairs if math.isfinite(p.error)), key=lambda pair: pair.error)
    if not ranked:
        return Section("Runs", "Every replay diverged, so there is nothing to draw.")
    picks = {"median": ranked[len(ranked) // 2], "worst": ranked[-1], "best": ranked[0]}
    figures: dict[str, Figure] = {}
    for word, pair in picks.items():
        if len(ranked) > 1 or word == "median":
            errors = np.sqrt(np.nanmean((pair.sim.q - pair.real.q) ** 2, axis=0))
            labels = [pair.real.spec.q.labels[int(i)] for i in np.sort(np.argsort(-errors)[:MAX_PANELS])]
            title = f"{pair.name or 'run'}: overall error {pair.error:.3g}"
            figures[f"{word} run{': ' + pair.name if pair.name else ''}"] = runs_figure(pair, labels, title=title)
    lead = "The measured run, and the simulator with the same commands from the same start."
    return Section("Runs beside their replays", lead, [FigureTabs(figures)])


def _arms_section(gap: Gap) -> Section:
    """The joint error of each arm and overall, the errors of the tips, and the distribution."""
    finite = [p for p in gap.joint_errors if np.isfinite(p.overall).all()]
    ranked = sorted(finite, key=lambda p: float(np.mean(p.overall**2)))
    if not ranked:
        return Section("Arms and tips", "Every replay diverged, so there is nothing to draw.")
    shown = ranked[len(ranked) // 2]
    name = shown.name or "median run"

    def over_time(series: Mapping[str, Array], title: str, y: str) -> Figure:
        return lines_figure({n: (shown.t, v) for n, v in series.items()}, title=title, x="time [s]", y=y)

    first = {**shown.rmse, "overall": shown.overall} if len(shown.rmse) > 1 else {"overall": shown.overall}
    figures = [over_time(first, f"(a) RMSE over time, {name}", "RMSE_norm")]
    if shown.position:
        distance = {arm: 1e3 * e for arm, e in shown.position.items()}
        angle = {arm: np.degrees(e) for arm, e in shown.orientation.items()}
        figures.append(over_time(distance, f"(b) Distance of the tips, {name}", "distance [mm]"))
        figures.append(over_time(angle, f"(c) Angle between the tips, {name}", "angle [deg]"))
    spread = {arm: np.concatenate([p.rmse[arm] for p in ranked]) for arm in shown.rmse}
    spread |= {"overall": np.concatenate([p.overall for p in ranked])} if len(spread) > 1 else {}
    figures.append(histogram_figure(spread, title="(d) Distribution of the RMSE, all runs", x="RMSE_norm"))
    shares = {label: float(np.mean([p.shares[label] for p in ranked])) for label in shown.shares}
    rows = [[label, f"{100 * share:.0f} %"] for label, share in sorted(shares.items(), key=lambda item: -item[1])]
    lead = (
        "The error of each joint by its range; squares are averaged over arms. Tip errors come from the kinematic "
        "chain, in metres and radians."
    )
    own = {n: e for n, e in gap.scores.items() if n.startswith(("RMSE_norm", "tip "))}
    table = Table(("joint", "share of the squared error of its arm"), rows)
    return Section("Arms and tips", lead, [FigureRow(figures), score_table(own), table])


def _actions_sections(gap: Gap) -> list[Section]:
    """The commands of both worlds; none if they are equal."""
    pairs = [p for p in gap.pairs if "action" in p.real and "action" in p.sim and p.real.spec.action.labels]
    parted = [p for p in pairs if not np.array_equal(p.real.action[:-1], p.sim.action[:-1])]
    if not parted:
        return []
    size = [float(np.sqrt(np.nanmean((p.sim.action - p.real.action)[:-1] ** 2))) for p in parted]
    median = parted[int(np.argsort(size)[len(size) // 2])]
    labels = list(median.real.spec.action.labels)[: 2 * MAX_PANELS]
    figure = runs_figure(median, labels, title=f"{median.name or 'median run'}: actions", column="action")
    lead = "Actions in both worlds. With a policy in the loop, this shows where its decisions first differ."
    return [Section("Actions", lead, [figure])]


def _growth_section(gap: Gap, growth: ErrorGrowth) -> Section:
    """The growth of errors over a run, and their doubling time."""
    errors = growth.errors
    shape = {"exponential": "exponentially", "power": f"with the power {growth.rate.value:.2g} of time"}
    words = shape.get(growth.shape, "and levels off")
    doubling = ""
    if math.isfinite(growth.doubling.value):
        doubling = f" At first it doubles every {formatted(growth.doubling)}."
    lead = f"Open loop, the error grows {words}.{doubling} Each line is a run; the bold one is their median."
    lines = [errors[int(i)] for i in np.linspace(0, len(errors) - 1, min(len(errors), 20)).astype(int)]
    floor = gap.floor["overall"].at(inf).value if "overall" in gap.floor else None
    title = "Overall error over a run, open loop"
    longest = max((t for t, _ in errors), key=len)
    table = np.full((len(errors), len(longest)), np.nan)
    for i, (_, error) in enumerate(errors):
        table[i, : len(error)] = error
    enough = np.isfinite(table).sum(axis=0) >= max(1, len(errors) // 2)
    median = longest[enough], np.nanmedian(table[:, enough], axis=0)
    figure = ensemble_figure(lines, median, title=title, x="time [s]", floor=floor)
    rows = [[shape, f"{100 * weight:.0f} %"] for shape, weight in growth.weights.items()]
    return Section("Error growth", lead, [figure, Table(("shape", "support"), rows)])


def _events_section(gap: Gap, found: EventAgreement) -> Section:
    """Delays of events between the worlds, and events that one of them lacks."""
    pairs = [pair for pair in gap.pairs if np.isfinite(pair.sim.q).all()]
    runs = found.runs
    order = np.argsort([sum(m.real is None or m.sim is None for m in run) for run in runs], kind="stable")
    picks = {"median": int(order[len(order) // 2]), "largest difference": int(order[-1])}
    figures: dict[str, Figure] = {}
    for word, place in picks.items():
        name = pairs[place].name or f"run {place}"
        if runs[place]:
            figures[f"{word}: {name}"] = timeline_figure(runs[place], title=f"Events of {name}")
    rows = [
        [name, str(matched), str(missing), str(extra), f"{1e3 * delay:+.0f} ms" if math.isfinite(delay) else ""]
        for name, (matched, missing, extra, delay) in found.by_name.items()
    ]
    low, middle, high = (1e3 * x for x in found.middle)
    lead = (
        f"Matched events come {middle:+.0f} ms later in the simulator (half of them between {low:+.0f} and "
        f"{high:+.0f} ms). The simulator lacks {found.missing.value:.0%} of the robot's events; "
        f"{found.extra.value:.0%} of its own are extra."
    )
    head = ("event", "in both", "missing", "extra", "later by")
    frames = _key_frames(runs[picks["median"]], pairs[picks["median"]])
    return Section("Events", lead, [FigureTabs(figures), Table(head, rows), *([frames] if frames else [])])


def _key_frames(run: Sequence[EventMatch], pair: RunPair, most: int = 8) -> list[ReportImage]:
    """Frames of the first camera at the begin of events, if images were recorded."""
    camera = next((c for c in pair.real.columns if c.startswith(IMAGES)), None)
    if camera is None:
        return []
    events = [m.real for m in run if m.real is not None][:most]
    return [
        ReportImage.of(pair.real[camera][event.row], f"({number}) {event.name}, {event.t:.1f} s")
        for number, event in enumerate(events, 1)
    ]


def _images_section(gap: Gap) -> Section:
    """The similarity of the images of both worlds, camera by camera."""
    blocks: list[Table | list[ReportImage]] = []
    for camera in gap.cameras:
        words = (f"{camera.camera}, real", f"{camera.camera}, simulated")
        blocks.append([ReportImage.of(image, caption) for image, caption in zip(camera.example, words, strict=True)])
        blocks.append(score_table(camera.scores))
    lead = (
        "Paired frames: PSNR and SSIM, as they are and with matched exposure, and the overlap of masks. Image scores "
        "see neither collisions nor dynamics."
    )
    return Section("Images", lead, blocks)


def _following_verdict(following: CommandFollowing) -> tuple[Headline, list[Number]]:
    """The conclusion and the numbers of the distance from the commands, of all joints together."""
    name = next((n for n in following.rmse if n.startswith("all ")), next(iter(following.rmse)))
    rmse, lag, left = following.rmse[name], following.lag[name], following.shifted[name]
    late = f" and come {1e3 * lag.value:.0f} ms after them" if math.isfinite(lag.value) else ""
    words = f"Positions are {formatted(rmse, interval=False)} from their commands{late}."
    rest = formatted(left, interval=False)
    detail = f"At that lag {rest} are left. A lag is not a delay; a scene separates the two."
    numbers = [
        Number("distance from the command", formatted(rmse, interval=False), _interval(rmse)),
        Number("best lag", f"{1e3 * lag.value:.0f} ms", _lag(lag).partition(" ms ")[2] + f" · {lag.n} runs"),
        Number("left at that lag", rest, _interval(left)),
    ]
    return Headline("plain", words, detail), numbers


def _following_section(f: CommandFollowing) -> Section:
    shown = [n for n in f.by_lag if n.startswith("all ")] or list(f.by_lag)[:MAX_PANELS]
    lines = {n: (1e3 * f.lags, f.by_lag[n]) for n in shown}
    best = 1e3 * f.lag[shown[0]].value
    marks = [(best, f"{best:.0f} ms")] if math.isfinite(best) else []
    title, y = "Distance from the command, with the command delayed by a lag", f"error [{f.rmse[shown[0]].unit}]"
    rows = [
        [channel_words(n, e.unit), formatted(e), formatted(f.shifted[n], interval=False), _lag(f.lag[n])]
        for n, e in f.rmse.items()
    ]
    lead = (
        "The simplest model of a robot: it is at its command. A lag is not a delay: a servo trails its command even "
        "without any. Nothing here is shifted by it."
    )
    table = Table(("joint", "distance from command", "at the best lag", "best lag"), rows)
    figure = lines_figure(lines, title=title, x="lag [ms]", y=y, marks=marks)
    return Section("Command following", lead, [figure, table])


def _clocks(gap: Gap) -> tuple[Headline, list[Number], list[Section]]:
    """The offsets between the clocks of streams."""
    words = "; ".join(f"{n}: {1e3 * p.offset.seconds.value:+.1f} ms" for n, p in gap.streams.items())
    detail = "Add the offset to the stamps of the slower stream. Numbers are given with and without it."
    figures, numbers, rows = dict[str, Figure](), list[Number](), list[list[str]]()
    for name, pair in gap.streams.items():
        o, start = pair.offset, pair.speeds[0][0][0]
        value, spread = f"{1e3 * o.seconds.value:+.1f} ms", f"{1e3 * o.spread:.1f} ms"
        interval = f"[{1e3 * o.seconds.low:.1f}, {1e3 * o.seconds.high:.1f}] ms"
        numbers.append(Number(name, value, f"{interval} · spread {spread}"))
        left = [f"{pair.before:.3g}", f"{pair.after:.3g} {pair.unit}"]
        rows.append([name, value, interval, spread, str(len(o.windows)), *left])
        lines = {
            pair.first: (pair.speeds[0][0] - start, pair.speeds[0][1]),
            f"{pair.second}, aligned": (pair.speeds[1][0] + o.seconds.value - start, pair.speeds[1][1]),
        }
        figures[name] = lines_figure(lines, title=f"Speeds of both, {name}", x="time [s]", y=f"speed [{pair.unit}]")
    head = ("streams", "offset", "95 % interval", "spread", "windows", "difference as stamped", "aligned")
    lead = "The peak of the cross-correlation of the two speeds in several windows: the median and its spread."
    section = Section("Clocks", lead, [FigureTabs(figures), Table(head, rows)])
    return Headline("plain", f"The clocks are apart by {words}.", detail), numbers, [section]


def horizon_figure(curves: Mapping[str, Curve], floor: Mapping[str, Curve], shown: Sequence[str], title: str) -> Figure:
    """E(k) of channels of one unit with their intervals, and the noise floor."""
    some = [curves[name] for name in shown]
    size = max((e.value for c in some for e in c.estimates if math.isfinite(e.value)), default=1.0)
    factor, unit = display_unit(some[0].unit, size)
    data: list[dict[str, Any]] = []
    for i, curve in enumerate(some):
        main = i == 0
        lines = _banded(curve, factor, series_color(i), 3 if main else 1.6)
        # Seven bands cannot be read; the other intervals are in the hover and in the table.
        data += lines if main or len(some) <= MAX_BANDS else lines[1:]
        if curve.name in floor:
            values = [e.value * factor for e in floor[curve.name].estimates]
            style: dict[str, Any] = {"color": "@floor", "dash": "dash", "width": 2 if main else 1}
            line = line_trace(f"floor: {curve.name}", list(floor[curve.name].names()), values, **style)
            data.append(line | {"visible": True if main else "legendonly"})
    across = {"title": "prediction horizon", "type": "category"}
    return plot(data, title=title, x=across, y={"title": f"error [{unit or '1'}]", **LOG_AXIS}, height=420)


def _banded(curve: Curve, factor: float, color: str, width: float) -> list[dict[str, Any]]:
    """A curve with its band; an end of an interval that is not known lies on the curve."""
    name = plain_text(channel_words(curve.name, curve.unit))
    x = list(curve.names())
    value = [e.value * factor for e in curve.estimates]
    low = [e.low * factor if math.isfinite(e.low) else v for e, v in zip(curve.estimates, value, strict=True)]
    high = [e.high * factor if math.isfinite(e.high) else v for e, v in zip(curve.estimates, value, strict=True)]
    band = line_trace(name, x + x[::-1], high + low[::-1], width=0)
    band |= {"fill": "toself", "fillcolor": f"{color}:0.13", "hoverinfo": "skip", "showlegend": False}
    line = line_trace(name, x, value, mode="lines+markers", color=color, width=width)
    line |= {"marker": {"size": 6 if width > 2 else 4}, "customdata": [[a, b] for a, b in zip(low, high, strict=True)]}
    line["hovertemplate"] = "%{x}: %{y:.3g} [%{customdata[0]:.3g}, %{customdata[1]:.3g}]<extra>" + name + "</extra>"
    return [band | {"legendgroup": name}, line | {"legendgroup": name}]


def channel_words(name: str, unit: str) -> str:
    """The name of a channel for readers: 'all rad' is 'all coordinates'."""
    return "all coordinates" if name == f"all {unit}" else name


def runs_figure(pair: RunPair, labels: Sequence[str], *, title: str = "", column: str = "q") -> Figure:
    """A measured run and its replay, one panel per channel; or the commands of both, with column "action"."""
    channel = pair.real.spec.q if column == "q" else pair.real.spec.action
    t = np.asarray(pair.real.t, float)
    panels: dict[str, Lines] = {}
    for label in labels:
        i = channel.labels.index(label)
        sides = {"real": pair.real, "simulated": pair.sim}
        panels[f"{label} [{channel.units[i]}]"] = {n: (t, np.asarray(e[column], float)[:, i]) for n, e in sides.items()}
    return panels_figure(panels, title=title)


def timeline_figure(run: Sequence[EventMatch], *, title: str) -> Figure:
    """The events of both worlds over time: a bar from begin to end, the measured one above, the other below."""
    names = list(dict.fromkeys(m.name for m in run))
    last = max(e.t if math.isinf(e.end) else e.end for m in run for e in (m.real, m.sim) if e is not None)
    data: list[dict[str, Any]] = []
    for side, color, lift in (("real", "@1", 0.16), ("simulated", "@2", -0.16)):
        x: list[float | None] = []
        y: list[float | None] = []
        for m in run:
            event = m.real if side == "real" else m.sim
            if event is not None:
                x += [event.t, max(min(event.end, 1.02 * last), event.t + 0.004 * last), None]
                y += [len(names) - 1 - names.index(m.name) + lift] * 2 + [None]
        data.append(line_trace(side, x, y, color=color, width=9))
    ticks = {"tickvals": list(range(len(names))), "ticktext": [plain_text(n) for n in reversed(names)]}
    layout: dict[str, Any] = {
        "legend": {"orientation": "h", "x": 0.0, "y": -48 / (50 + 46 * len(names)), "yanchor": "top"}
    }
    first = next((m.real or m.sim for m in run if m.real is None or m.sim is None), None)
    if first is not None:
        layout["shapes"] = [upright_line(first.t, "@bad")]
        layout["annotations"] = [upright_note(first.t, "first divergence", color="@bad", size=11)]
    up = {**ticks, "range": [-0.6, len(names) - 0.4], "zeroline": False}
    return plot(data, title=title, x="time [s]", y=up, height=150 + 46 * len(names), **layout)


def _percent(curve: Curve, estimate: Estimate) -> Estimate:
    """The overall error, a share of the usual motion, in percent; other errors as they are."""
    return percent(estimate) if curve.name == "overall" else estimate


def _interval(estimate: Estimate) -> str:
    text = formatted(estimate)
    return text[text.index("[") :] + f" · {estimate.n} runs" if "[" in text else "one run, no interval"


def _lag(lag: Estimate) -> str:
    if not math.isfinite(lag.value):
        return "unclear"
    return f"{1e3 * lag.value:.0f} ms [{1e3 * lag.low:.0f}, {1e3 * lag.high:.0f}]"
