"""The page of a gap: verdict, three numbers, curves, runs, causes, events, details."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.diagnose.attribution import Attribution
from instep.diagnose.candidates import CandidateResult
from instep.diagnose.data_checks import DataChecks
from instep.diagnose.failure_modes import MODES, FailureMode, found_modes
from instep.gap.command_following import CommandFollowing
from instep.gap.error_growth import Growth
from instep.gap.events import EventAgreement
from instep.gap.gap_figures import horizon_figure, runs_figure, timeline_figure
from instep.gap.gap_result import Curve, EventMatch, Gap, RunPair
from instep.gap.image_scores import CameraScores
from instep.gap.joint_error import JointErrorProfile
from instep.gap.stream_alignment import AlignedStreams
from instep.report.figures import bars_figure, ensemble_figure, histogram_figure, lines_figure
from instep.report.page import (
    Figure,
    FigureRow,
    FigureTabs,
    Headline,
    Number,
    ReportImage,
    Section,
    Table,
    formatted,
    score_table,
)

MOST_CHANNELS = 7
"""More panels than these are shown by the worst channels only."""


def headline(curves: Mapping[str, Curve]) -> Curve:
    """The curve that stands for the whole: of the only unit where there is one, overall otherwise."""
    units = [name for name in curves if name.startswith("all ")]
    single = [name for name in curves if not name.startswith("all ") and name != "overall"]
    kinds = {curves[name].unit for name in single}
    if len(kinds) == 1:
        return curves[units[0]] if units else curves[single[0]]
    return curves["overall"]


def verdict(gap: Gap, what: str) -> Headline:
    """What to remember of a gap."""
    curve = headline(gap.curves)
    point = curve.at(0.5) if 0.5 in curve.horizons else curve.estimates[0]
    when = "after half a second" if 0.5 in curve.horizons else "one step ahead"
    words = f"{what} {_short(curve, point)} off {when}, {_short(curve, curve.at(inf))} over whole runs."
    if curve.name not in gap.floor:
        return Headline(
            "plain", words, "No command was repeated, so how much of this is the robot's scatter is unknown."
        )
    floor = gap.floor[curve.name].at(inf)
    ratio = curve.at(inf).value / floor.value if floor.value > 0 else math.inf
    scatter = _short(curve, floor)
    return Headline("plain", words, f"Repeats of one command scatter by {scatter}: the gap is {ratio:.2g} times that.")


def judged(plain: Headline, broken: Sequence[str], limits: int) -> Headline:
    """The verdict with its limits: bad where one is broken, good where all hold, plain where none was given."""
    if broken:
        return Headline("bad", "A limit is broken: " + "; ".join(broken), plain.headline)
    return replace(plain, status="good") if limits else plain


def numbers(gap: Gap) -> list[Number]:
    """The three numbers on top: one step, half a second, whole run."""
    curve = headline(gap.curves)
    found: list[Number] = []
    for label, horizon in (("one step ahead", 0.0), ("half a second ahead", 0.5), ("whole run, open loop", inf)):
        if horizon == 0.5 and 0.5 not in curve.horizons:
            continue
        estimate = curve.at(horizon)
        floor = gap.floor.get(curve.name)
        beside = f" · floor {_share(curve, floor.at(horizon))}" if floor else ""
        of = ", of the usual motion" if curve.name == "overall" else ""
        found.append(Number(label + of, _share(curve, estimate), _interval(_percent(curve, estimate)) + beside))
    return found


def horizon_section(gap: Gap, following: CommandFollowing | None = None) -> Section:
    """E(k) by unit, with the floor."""
    figures: dict[str, Figure] = {}
    single = [n for n in gap.curves if not n.startswith("all ") and n != "overall"]
    for unit in dict.fromkeys(gap.curves[n].unit for n in single):
        same = [n for n in single if gap.curves[n].unit == unit]
        shown = [f"all {unit}", *same] if f"all {unit}" in gap.curves else same
        figures[f"in {unit}" if unit != "1" else "without unit"] = horizon_figure(
            gap.curves, gap.floor, shown, f"Error against how far ahead it is predicted [{unit}]"
        )
    figures["overall"] = horizon_figure(
        gap.curves, gap.floor, ["overall"], "All channels, each by the scale of its unit"
    )
    lead = (
        "The simulator is placed where the robot was and given the same commands. The further ahead it must see, the "
        "more its errors add up. Bands are 95 % intervals over runs; the dashed line is how far the robot is from "
        "itself when a command is repeated."
    )
    return Section("How far off, how far ahead", lead, [FigureTabs(figures), curve_table(gap, following)])


def curve_table(gap: Gap, following: CommandFollowing | None = None) -> Table:
    """Every channel at every horizon, what command following leaves, and the floor."""
    first = next(iter(gap.curves.values()))
    head = ["channel", *first.names()]
    if following is not None:
        head.append("told = done")
    if gap.floor:
        head.append("floor, full")
    rows: list[list[str]] = []
    for name, curve in gap.curves.items():
        row = [name, *(formatted(e, interval=False) for e in curve.estimates)]
        if following is not None:
            row.append(formatted(following.rmse[name], interval=False) if name in following.rmse else "")
        if gap.floor:
            row.append(formatted(gap.floor[name].at(inf), interval=False) if name in gap.floor else "")
        rows.append(row)
    caption = "Root mean square errors. "
    caption += "'told = done' is what is left when the robot is taken to be where it was told." if following else ""
    return Table(head, rows, caption)


def runs_section(gap: Gap) -> Section:
    """The best, the middle and the worst run beside their replays."""
    ranked = ranked_pairs(gap)
    if not ranked:
        return Section("Runs", "Every replay diverged, so there is nothing to draw.")
    picks = {"middle": ranked[len(ranked) // 2], "worst": ranked[-1], "best": ranked[0]}
    figures: dict[str, Figure] = {}
    for word, (error, pair) in picks.items():
        labels = _worst_labels(pair)
        name = f"{word} run{': ' + pair.name if pair.name else ''}"
        if len(ranked) > 1 or word == "middle":
            figures[name] = runs_figure(pair, labels, title=f"{pair.name or 'run'}: overall error {error:.3g}")
    lead = "What was measured, and what the simulator does when it is given the same commands from the same start."
    return Section("Runs beside their replays", lead, [FigureTabs(figures)])


def ranked_pairs(gap: Gap) -> list[tuple[float, RunPair]]:
    """Runs with their error, the best first; replays that diverged are left out."""
    found = [(pair.error, pair) for pair in gap.pairs if math.isfinite(pair.error)]
    return sorted(found, key=lambda entry: entry[0])


def arms_section(profiles: Sequence[JointErrorProfile], scores: Mapping[str, Estimate]) -> Section:
    """The joint error of each arm and overall, the errors of the tips, and the distribution."""
    ranked = sorted((p for p in profiles if np.isfinite(p.overall).all()), key=lambda p: float(np.mean(p.overall**2)))
    if not ranked:
        return Section("Arms and tips", "Every replay diverged, so there is nothing to draw.")
    shown = ranked[len(ranked) // 2]
    first = {**shown.rmse, "overall": shown.overall} if len(shown.rmse) > 1 else {"overall": shown.overall}
    name = shown.name or "middle run"
    figures: list[Figure] = [_over_time(first, shown.t, f"(a) RMSE over time, {name}", "RMSE_norm")]
    if shown.position:
        distance = {arm: 1e3 * e for arm, e in shown.position.items()}
        angle = {arm: np.degrees(e) for arm, e in shown.orientation.items()}
        figures.append(_over_time(distance, shown.t, f"(b) Distance of the tips, {name}", "distance [mm]"))
        figures.append(_over_time(angle, shown.t, f"(c) Angle between the tips, {name}", "angle [deg]"))
    spread = {arm: np.concatenate([p.rmse[arm] for p in ranked]) for arm in shown.rmse}
    spread |= {"overall": np.concatenate([p.overall for p in ranked])} if len(spread) > 1 else {}
    figures.append(histogram_figure(spread, title="(d) Distribution of the RMSE, all runs", x="RMSE_norm"))
    shares = {label: float(np.mean([p.shares[label] for p in ranked])) for label in shown.shares}
    rows = [[label, f"{100 * share:.0f} %"] for label, share in sorted(shares.items(), key=lambda item: -item[1])]
    lead = (
        "Each joint's error by its range, the arms' squares averaged, then the root. The tips come from the chain of "
        "joints: metres and radians are kept apart."
    )
    own = {n: e for n, e in scores.items() if n.startswith(("RMSE_norm", "tip "))}
    table = Table(("joint", "share of the squared error of its arm"), rows)
    return Section("Arms and tips", lead, [FigureRow(figures), score_table(own), table])


def _over_time(series: Mapping[str, Array], t: Array, title: str, y: str) -> Figure:
    return lines_figure({name: (t, values) for name, values in series.items()}, title=title, x="time [s]", y=y)


def commands_section(gap: Gap) -> Section | None:
    """What was commanded in both worlds: predicted actions beside recorded ones."""
    pairs = [p for p in gap.pairs if "action" in p.real and "action" in p.sim and p.real.spec.action.labels]
    parted = [p for p in pairs if not np.array_equal(p.real.action[:-1], p.sim.action[:-1])]
    if not parted:
        return None
    size = [float(np.sqrt(np.nanmean((p.sim.action - p.real.action)[:-1] ** 2))) for p in parted]
    middle = parted[int(np.argsort(size)[len(size) // 2])]
    labels = list(middle.real.spec.action.labels)[: 2 * MOST_CHANNELS]
    figure = runs_figure(middle, labels, title=f"{middle.name or 'middle run'}: actions", column="action")
    lead = "Actions of both worlds on one axis: where a policy decided, this is where it first decided otherwise."
    return Section("Actions", lead, [figure])


def growth_section(grown: Growth, errors: Sequence[tuple[Array, Array]], floor: float | None) -> Section:
    """How errors grow over a run, and how fast they double."""
    shape = {"exponential": "exponentially", "power": f"with the power {grown.rate.value:.2g} of time"}
    words = shape.get(grown.shape, "and levels off")
    doubling = ""
    if math.isfinite(grown.doubling.value):
        doubling = f" At first it doubles every {formatted(grown.doubling)}."
    lead = f"Left to itself, the error grows {words}.{doubling} Each line is a run; the bold one is their median."
    thick = _median_line(errors)
    lines = [errors[i] for i in np.linspace(0, len(errors) - 1, min(len(errors), 20)).astype(int)]
    figure = ensemble_figure(lines, thick, title="Overall error over a run, open loop", x="time [s]", floor=floor)
    rows = [[shape, f"{100 * weight:.0f} %"] for shape, weight in grown.weights.items()]
    return Section("How errors grow", lead, [figure, Table(("shape", "support"), rows)])


def _median_line(errors: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    longest = max((t for t, _ in errors), key=len)
    table = np.full((len(errors), len(longest)), np.nan)
    for i, (_, e) in enumerate(errors):
        table[i, : len(e)] = e
    enough = np.isfinite(table).sum(axis=0) >= max(1, len(errors) // 2)
    return longest[enough], np.nanmedian(table[:, enough], axis=0)


def events_section(runs: Sequence[Sequence[EventMatch]], found: EventAgreement, pairs: Sequence[RunPair]) -> Section:
    """When what happened in both worlds, and which events one of them lacks."""
    counts = [sum(m.real is None or m.sim is None for m in run) for run in runs]
    order = np.argsort(counts, kind="stable")
    picks = {"middle": int(order[len(order) // 2]), "most apart": int(order[-1])}
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
        f"{high:+.0f} ms); {found.missing.value:.0%} of the robot's events are missing there, "
        f"{found.extra.value:.0%} of its own are extra."
    )
    head = ("event", "in both", "missing", "extra", "later by")
    blocks: list[FigureTabs | Table | list[ReportImage]] = [FigureTabs(figures), Table(head, rows)]
    frames = key_frames(runs[picks["middle"]], pairs[picks["middle"]])
    return Section("Events", lead, [*blocks, *([frames] if frames else [])])


def key_frames(run: Sequence[EventMatch], pair: RunPair, most: int = 8) -> list[ReportImage]:
    """What the first camera saw when events began, where images were recorded."""
    camera = next((c for c in pair.real.columns if c.startswith("observation.images.")), None)
    if camera is None:
        return []
    from instep.data.frames import encode_png

    frames: list[ReportImage] = []
    for number, event in enumerate([m.real for m in run if m.real is not None][:most], 1):
        image = np.asarray(pair.real[camera][event.row])
        frames.append(ReportImage(encode_png(image), f"({number}) {event.name}, {event.t:.1f} s"))
    return frames


def looks_section(found: Sequence[CameraScores]) -> Section:
    """How alike the images of both worlds are, camera by camera."""
    from instep.data.frames import encode_png

    blocks: list[Table | list[ReportImage]] = []
    for look in found:
        pair = [np.asarray(image) for image in look.example]
        words = (f"{look.camera}, real", f"{look.camera}, simulated")
        blocks.append([ReportImage(encode_png(image), word) for image, word in zip(pair, words, strict=True)])
        blocks.append(score_table(look.scores))
    lead = (
        "Paired frames: PSNR and SSIM as usual, a distance of gradient features (GMSD over three scales), the distance "
        "of edges, and the share of pixels that nothing explains. Image scores see neither collision nor dynamics."
    )
    return Section("Images", lead, blocks)


def causes_section(
    modes: Sequence[FailureMode], owned: Attribution | None, results: Sequence[CandidateResult]
) -> Section:
    """What may be behind the gap: failure modes with their evidence, and who owns how much."""
    found = found_modes(modes)
    if found:
        lead = "Most likely " + " and ".join(f"{m.name}: {MODES[m.name]}" for m in found[:2]) + "."
    else:
        lead = "No single cause explains the gap for certain."
    blocks: list[Figure | Table] = []
    if owned is not None:
        bars = dict(owned.causes) | {"not explained": Estimate(owned.rest, owned.rest, owned.rest, 0, "1")}
        title = "Who owns the gap (Shapley values, 95 % for all together)"
        blocks.append(bars_figure(bars, title=title, x="share of the usual motion taken off"))
    elif results:
        bars = {}
        for q in results:
            bars.setdefault(q.candidate.name, q.gain)
        shown = {n: Estimate(e.value, max(e.low, -0.5), min(e.high, 1.0), e.n, "1") for n, e in bars.items()}
        title = "How much of the squared error one change explains, on runs it was not chosen by"
        blocks.append(bars_figure(shown, title=title, x="share explained"))
    rows = [[m.name, "yes" if m.found else "no", m.evidence] for m in sorted(modes, key=lambda m: not m.found)]
    return Section("What may be behind it", lead, [*blocks, Table(("failure mode", "found", "evidence"), rows)])


def floors_section(groups: Mapping[str, Mapping[str, Curve]]) -> Section:
    """How far the robot is from itself, for each command that was repeated."""
    channels = list(next(iter(groups.values())))
    shown = [n for n in channels if n != "overall"]
    rows = [
        [
            name,
            str(next(iter(curves.values())).at(inf).n),
            *(formatted(curves[n].at(inf), interval=False) for n in shown),
        ]
        for name, curves in groups.items()
    ]
    lead = (
        "Scatter of repeats about their mean, root mean square over the whole run. A simulator that gets this far is "
        "as good as the robot is repeatable; nothing below it means anything."
    )
    return Section("The robot against itself", lead, [Table(("command", "runs", *shown), rows)])


def following_section(following: CommandFollowing) -> Section:
    """How positions follow commands."""
    shown = [n for n in following.by_lag if n.startswith("all ")] or list(following.by_lag)[:MOST_CHANNELS]
    lines = {n: (1e3 * following.lags, following.by_lag[n]) for n in shown}
    marks = [(1e3 * following.lag[n].value, f"{1e3 * following.lag[n].value:.0f} ms") for n in shown[:1]]
    marks = [mark for mark in marks if math.isfinite(mark[0])]
    unit = following.rmse[shown[0]].unit
    figure = lines_figure(
        lines, title="Distance from the command, if the command were that much older", x="lag [ms]",
        y=f"error [{unit}]", marks=marks,
    )  # fmt: skip
    rows = [
        [
            n,
            formatted(following.rmse[n]),
            formatted(following.shifted[n], interval=False),
            _lag(following.lag[n]),
        ]
        for n in following.rmse
    ]
    lead = (
        "The plainest model of a robot is that it is where it was told to be. A lag is not a delay: a servo trails "
        "its command even without any; nothing here is shifted by it."
    )
    table = Table(("joint", "distance from command", "at the best lag", "best lag"), rows)
    return Section("Commands and answers", lead, [figure, table])


def following_page(following: CommandFollowing) -> tuple[Headline, list[Number]]:
    """The verdict and the numbers where commands are all there is to compare with."""
    name = next((n for n in following.rmse if n.startswith("all ")), next(iter(following.rmse)))
    rmse, lag, left = following.rmse[name], following.lag[name], following.shifted[name]
    late = f" and come {1e3 * lag.value:.0f} ms after them" if math.isfinite(lag.value) else ""
    words = f"Positions are {formatted(rmse, interval=False)} from their commands{late}."
    because = (
        f"At that lag {formatted(left, interval=False)} are left. A lag is not a delay; a scene separates the two."
    )
    numbers = [
        Number("distance from the command", formatted(rmse, interval=False), _interval(rmse)),
        Number("best lag", f"{1e3 * lag.value:.0f} ms", _lag(lag).partition(" ms ")[2] + f" · {lag.n} runs"),
        Number("left at that lag", formatted(left, interval=False), _interval(left)),
    ]
    return Headline("plain", words, because), numbers


def clocks_page(found: Mapping[str, AlignedStreams]) -> tuple[Headline, list[Number], Section]:
    """The verdict, the numbers and the section where the clocks of streams are compared."""
    numbers: list[Number] = []
    rows: list[list[str]] = []
    figures: dict[str, Figure] = {}
    for name, pair in found.items():
        o = pair.offset
        value, spread = 1e3 * o.seconds.value, 1e3 * o.spread
        interval = f"[{1e3 * o.seconds.low:.1f}, {1e3 * o.seconds.high:.1f}] ms"
        numbers.append(Number(name, f"{value:+.1f} ms", f"{interval} · spread {spread:.1f} ms"))
        left = [f"{pair.before:.3g}", f"{pair.after:.3g} {pair.unit}"]
        rows.append([name, f"{value:+.1f} ms", interval, f"{spread:.1f} ms", str(len(o.windows)), *left])
        start = pair.speeds[0][0][0]
        lines = {
            pair.first: (pair.speeds[0][0] - start, pair.speeds[0][1]),
            f"{pair.second}, aligned": (pair.speeds[1][0] + o.seconds.value - start, pair.speeds[1][1]),
        }
        figures[name] = lines_figure(lines, title=f"Speed seen by both, {name}", x="time [s]", y=f"speed [{pair.unit}]")
    head = ("streams", "offset", "95 % interval", "spread", "windows", "difference as stamped", "aligned")
    lead = "The peak of the correlation of the two speeds, found in several windows; the median and its spread."
    words = "; ".join(f"{n}: {1e3 * p.offset.seconds.value:+.1f} ms" for n, p in found.items())
    because = "Add the offset to the stamps of the slower stream. Numbers are given with and without it."
    verdict = Headline("plain", f"The clocks are apart by {words}.", because)
    return verdict, numbers, Section("Clocks", lead, [FigureTabs(figures), Table(head, rows)])


def details_section(gap: Gap, preflight: DataChecks | None) -> Section:
    """What the numbers rest on."""
    blocks: list[Table] = []
    if preflight is not None:
        rows = [[f.check, f.channel, f.sentence] for f in preflight.problems]
        caption = (
            "What was found when looking at the recordings." if rows else "Nothing was found wrong with the recordings."
        )
        blocks.append(Table(("check", "channel", "finding"), rows, caption))
    if gap.notes:
        blocks.append(Table(("decisions and doubts",), [[note] for note in gap.notes]))
    blocks.append(score_table(gap.scores, "Every score with its 95 % interval and the number of runs behind it."))
    return Section("Details", "", blocks, folded=True)


def _worst_labels(pair: RunPair) -> list[str]:
    labels = list(pair.real.spec.q.labels)
    if len(labels) <= MOST_CHANNELS:
        return labels
    errors = np.sqrt(np.nanmean((pair.sim.q - pair.real.q) ** 2, axis=0))
    keep = set(np.argsort(-errors)[:MOST_CHANNELS].tolist())
    return [label for i, label in enumerate(labels) if i in keep]


def _short(curve: Curve, estimate: Estimate) -> str:
    """A value without its interval; where units are mixed, as a share of how much everything usually moves."""
    return _share(curve, estimate) + (" of the usual motion" if curve.name == "overall" else "")


def _share(curve: Curve, estimate: Estimate) -> str:
    return formatted(_percent(curve, estimate), interval=False)


def _percent(curve: Curve, estimate: Estimate) -> Estimate:
    if curve.name != "overall":
        return estimate
    return Estimate(100 * estimate.value, 100 * estimate.low, 100 * estimate.high, estimate.n, "%")


def _interval(estimate: Estimate) -> str:
    text = formatted(estimate)
    return text[text.index("[") :] + f" · {estimate.n} runs" if "[" in text else "one run, no interval"


def _lag(lag: Estimate) -> str:
    return (
        f"{1e3 * lag.value:.0f} ms [{1e3 * lag.low:.0f}, {1e3 * lag.high:.0f}]"
        if math.isfinite(lag.value)
        else "unclear"
    )
