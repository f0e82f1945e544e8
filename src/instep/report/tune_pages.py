"""Pages of identification: by motion, by torques, and on line while a robot runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.statistics import Estimate
from instep.core.world import Array, Spec

from .figures import (
    LOG_AXIS,
    Lines,
    band_traces,
    bars_figure,
    downsampled,
    error_bars,
    line_trace,
    panels_figure,
    plain_text,
    plot,
    series_color,
    upright_line,
)
from .gap_page import TORQUE_ERROR, TORQUE_NORM, torque_figure
from .page import (
    Figure,
    FigureRow,
    FigureTabs,
    Headline,
    HtmlReport,
    Number,
    Section,
    Table,
    display_unit,
    formatted,
    percent,
)

if TYPE_CHECKING:
    from instep.tune.excitation import ExcitationDesign
    from instep.tune.excitation_limits import ExcitationLimits
    from instep.tune.gated_fit import Traces
    from instep.tune.gates import GateResult
    from instep.tune.identification import Identification
    from instep.tune.online.reidentification import Reidentification
    from instep.tune.posterior.posterior_checks import PosteriorCheck, PredictiveBand
    from instep.tune.torque.torque_identification import TorqueIdentification

MAX_PANELS = 6
"""Most channels of a figure of one window; the table has them all."""
MAX_CORNER, CORNER_DRAWS = 8, 400
"""Most parameters and draws of the scatter plots of a posterior."""
MAX_FIGURES = 12
"""Most parameters that are plotted over time; the table has them all."""
MAX_EVENTS = 200
"""Most listed events; result.json has them all."""
MARKED = ("change", "applied", "rolled back")
"""Events that are marked in the figures."""
PARAMETER = ("parameter", "before", "after", "95 % interval", "unit")


def identification_page(found: Identification, facts: Mapping[str, str] | None = None) -> HtmlReport:
    """Gates, parameters, held-out motion, posterior and searches of an identification."""
    sections = [gates_section(found.gates), _params(found), _held_out(found)]
    sections += [_posterior(found.posterior)] if found.posterior is not None else []
    sections.append(_search(found.cost_history))
    counts = f"{len(found.fitted)} recordings fitted, {len(found.held_out)} held out"
    subtitle = f"{found.scene.name}: {len(found.fit.params)} parameters, {counts}"
    return HtmlReport("instep tune", subtitle, _verdict(found), _numbers(found), sections, _facts(found, facts or {}))


def gates_section(gates: Sequence[GateResult]) -> Section:
    """The gates of an identification with verdicts and remedies."""
    rows = [
        (gate.name, gate.state if gate.passed or gate.required else "advice", f"{gate.message} {gate.remedy}".strip())
        for gate in gates
    ]
    lead = "In the order of evaluation. Whiteness is advice; promotion needs all other gates to pass."
    return Section("Gates", lead, [Table(("gate", "verdict", "message"), rows)])


def _facts(found: Identification, facts: Mapping[str, str]) -> dict[str, str]:
    fit, dt = found.fit, found.sim.spec.dt
    return {
        **facts,
        "seed": str(found.seed),
        "windows": f"{len(fit.windows)} of {fit.windows.action.shape[1] * dt:g} s",
        "simulated": f"{fit.worlds} windows in {fit.seconds:.1f} s in the last search",
        "time": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.stage_seconds.items()),
        "engine": f"MuJoCo {version('mujoco')}",
        "status": str(found.status),
        **({"notes": " ".join(notes)} if (notes := found.as_dict()["notes"]) else {}),
    }


def _verdict(found: Identification) -> Headline:
    gain = found.comparison.improvement
    failed = [gate.name for gate in found.gates if gate.state == "failed" and gate.required]
    missing = [gate.name for gate in found.gates if gate.state == "not run" and gate.required]
    moved = "fell" if gain.value >= 0 else "rose"
    said = f"The error on held-out recordings {moved} by {100 * abs(gain.value):.3g} %."
    if failed or missing:
        words = [f"{_named(failed)} not passed"] * bool(failed) + [f"{_named(missing)} not run"] * bool(missing)
        return Headline("bad" if failed else "plain", f"Not promoted: the {', the '.join(words)}.", said)
    return Headline("good", said, "All gates were passed; the new scene is in the folder of this report.")


def _named(gates: Sequence[str]) -> str:
    return f"gate {gates[0]} was" if len(gates) == 1 else f"gates {' and '.join(gates)} were"


def _numbers(found: Identification) -> list[Number]:
    gain = found.comparison.improvement
    # An interrupted run may not have fixed the unobservable parameters, so the fit itself says which were estimated.
    estimated = [param.address for param in found.fit.params]
    every = {*estimated, *found.identifiability.unobservable}
    good = [name for name in estimated if name not in found.identifiability.unidentifiable]
    rest = len(every) - len(good)
    detail = f"{rest} not identifiable" if rest else "all identifiable"
    ends = f"{_ends(percent(gain))} %, {gain.n} blocks"
    numbers = [
        Number("reduction of held-out error", formatted(percent(gain), interval=False), ends),
        Number("parameters identified", f"{len(good)} of {len(every)}", detail),
    ]
    for gate in found.gates:
        if "recovered" in gate.scores:
            share = gate.scores["recovered"].value
            numbers.append(Number("planted parameters recovered", f"{share:.0%}", "inside 90 % intervals"))
    return numbers


def _params(found: Identification) -> Section:
    rows: list[tuple[str, ...]] = []
    start, bounds, weak = found.result.before, set(found.fit.at_bounds), found.identifiability
    for name, now in found.intervals.items():
        note = "at a bound of its range" if name in bounds else ""
        note = "confounded: held by a prior" if name in weak.confounded else note or str(found.status)
        rows.append((name, _value(start.get(name)), _value(now.value), _ends(now), now.unit, note))
    for name, value in found.result.unidentified.items():
        note = f"not identifiable, value kept. {found.motion_for(name)}"
        rows.append((name, _value(start.get(name)), _value(value), "", "", note))
    table, forest = Table((*PARAMETER, "state"), rows), _forest(found)
    lead = "Each parameter before and after. Bars are 95 % intervals; a narrow bar far from 1 is a clear finding."
    if found.status != "converged":
        lead = f"Each parameter before and after. The search did not converge ({found.status}): there are no intervals."
    return Section("Parameters", lead, [table] if forest is None else [forest, table])


def _forest(found: Identification) -> Figure | None:
    """Values over their values before, with intervals; None if no ratio is positive."""
    start = found.result.before
    ratios = {
        n: Estimate(now.value / start[n], now.low / start[n], now.high / start[n], now.n)
        for n, now in reversed(found.intervals.items())
        if start.get(n, 0.0) > 0 and not now.low <= 0
    }
    if not ratios:
        return None
    trace = {
        "type": "scatter", "mode": "markers", "name": "after over before", "y": [plain_text(n) for n in ratios],
        "x": [ratio.value for ratio in ratios.values()], "marker": {"color": series_color(0), "size": 9},
        "error_x": error_bars(list(ratios.values()), color=series_color(0, 0.6)),
    }  # fmt: skip
    x, high = {"title": "value over its value before", **LOG_AXIS}, 130 + 30 * len(ratios)
    return plot([trace], x=x, y={"automargin": True}, height=high, showlegend=False, shapes=[upright_line(1)])


def _held_out(found: Identification) -> Section:
    traces, band = found.traces, None if found.posterior is None else found.posterior.band
    order = np.argsort(np.nan_to_num(traces.errors("after"), nan=np.inf))
    picks = {"median window": order[len(order) // 2], "worst window": order[-1], "best window": order[0]}
    shown = {name: _window(traces, int(which), band) for name, which in picks.items()}
    rows: list[tuple[str, ...]] = []
    units = dict(zip(traces.names, traces.units, strict=True))
    for name, (before, after) in found.comparison.channels.items():
        factor, unit = display_unit(units.get(name, "1"), max(abs(before), abs(after)))
        reduction = f"{100 * (1 - after / before):.3g} %" if before > 0 else "–"
        rows.append((name, f"{factor * before:.3g}", f"{factor * after:.3g}", unit, reduction))
    caption = "Root mean square errors over windows of held-out recordings, started at the measured state."
    table = Table(("channel", "before", "after", "unit", "reduction"), rows, caption)
    lead = "Recordings that were not fitted. The simulator starts at the measured state and gets the same commands."
    if band is not None:
        lead += " The band holds 90 % of the posterior's predictions: parameters, start states and sensor noise."
    return Section("Held-out recordings, before and after", lead, [FigureTabs(shown), table])


def _window(traces: Traces, which: int, band: PredictiveBand | None) -> Figure:
    """One held-out window: measured, before and after; the channels that move most."""
    rows = np.flatnonzero(traces.inside[which])
    t = (rows + 1) * traces.dt
    panels, bands = dict[str, Lines](), dict[str, tuple[Array, Array, Array]]()
    for i in map(int, np.sort(np.argsort(-np.ptp(traces.measured[which][rows], axis=0))[:MAX_PANELS])):
        measured = traces.measured[which][rows, i]
        factor, unit = display_unit(traces.units[i], float(np.abs(measured).max(initial=0.0)))
        label = f"{traces.names[i]} [{unit or '1'}]"
        paths = {**{name: traces.predicted[name] for name in ("before", "after")}, "measured": traces.measured}
        panels[label] = {name: (t, factor * path[which][rows, i]) for name, path in paths.items()}
        if band is not None and band.low.shape[:2] == traces.measured.shape[:2]:
            low, high = (factor * (measured + edge[which][rows, i]) for edge in (band.low, band.high))
            bands[label] = (t, low, high)
    styles = (
        {"color": series_color(1), "dash": "dot", "width": 2},
        {"color": series_color(0), "width": 2},
        {"color": "@ink", "width": 1.4},
    )
    return panels_figure(panels, x="time since the start of the window [s]", styles=styles, bands=bands)


def _posterior(found: PosteriorCheck) -> Section:
    rows: list[tuple[str, ...]] = [("method", found.method, "")]
    checked, inside = found.calibration, found.band.inside
    if checked is not None:
        for level, share in found.coverage.items():
            said = f"{share.value:.0%}, from {share.low:.0%} to {share.high:.0%}"
            rows.append((f"planted truths inside {level:.0%} intervals", said, f"{len(checked.ranks)} truths"))
        least = min(checked.uniformity.values())
        rows.append(("ranks of truths uniform, smallest p", f"{least:.2g}", "below 0.01 a posterior is miscalibrated"))
    rows.append(("held-out rows inside the 90 % band", f"{inside.value:.0%}", f"{inside.n} windows and channels"))
    p = f"{found.misspecification_p:.2g}"
    rows.append(("misspecification, p", p, "below 0.05 something is missing in the model"))
    draws = found.belief.sample(CORNER_DRAWS, np.random.default_rng((0, 0xC0)))
    shown = [(plain_text(name), np.asarray(values)) for name, values in list(draws.items())[:MAX_CORNER]]
    blocks: list[Any] = [Table(("check", "result", "of"), rows), *([_corner(shown)] if len(shown) > 1 else [])]
    return Section("Posterior", found.message, blocks)


def _corner(shown: Sequence[tuple[str, Array]]) -> Figure:
    """Draws of each pair of parameters; plain scatter, since Plotly's own matrix needs WebGL and hangs without it."""
    size, data, cells = len(shown) - 1, list[dict[str, Any]](), list[list[str]]()
    axes: dict[str, Any] = {}
    for row in range(size):
        for column in range(row + 1):
            points = {"x": shown[column][1], "y": shown[row + 1][1], "mode": "markers", "type": "scatter"}
            place = {"xaxis": _axis("x", column), "yaxis": _axis("y", row)}
            data.append({**points, **place, "marker": {"size": 3, "color": series_color(0, 0.4)}})
        cells.append([_axis("x", c) + _axis("y", row) if c <= row else "" for c in range(size)])
        axes["xaxis" + _axis("x", row)[1:]] = {"title": shown[row][0], "nticks": 4}
        axes["yaxis" + _axis("y", row)[1:]] = {"title": shown[row + 1][0], "nticks": 4}
    grid = {"rows": size, "columns": size, "subplots": cells}
    figure = plot(data, title="Pairs of parameters", height=180 + 150 * size, showlegend=False, grid=grid)
    return {"data": data, "layout": {**figure["layout"], **axes}}


def _axis(side: str, number: int) -> str:
    return f"{side}{number + 1 if number else ''}"


def _search(history: Sequence[Sequence[float]]) -> Section:
    data: list[dict[str, Any]] = []
    for i, search in enumerate(history):
        steps, color = list(range(1, len(search) + 1)), series_color(i)
        line = line_trace(f"search {i + 1}", steps, search, mode="lines+markers", color=color, width=1.8)
        data.append(line | {"marker": {"size": 5, "color": color}})
    lead = (
        "Cost after each iteration of each search: the first fit, the compared searches, and the last search over all "
        "windows. Searches scale residuals by their own size, so compare shapes, not heights."
    )
    figure = plot(data, x="iteration", y={"title": "cost", **LOG_AXIS})
    return Section("Search", lead, [figure if data else "No iterations were done."], folded=True)


def excitation_page(design: ExcitationDesign, limits: ExcitationLimits, spec: Spec) -> HtmlReport:
    """A designed motion: commands and positions of each joint, and the standard deviation of each parameter."""
    t, spread = np.arange(len(design.actions)) * spec.dt, design.spread()
    panels = {
        f"{name} [{spec.q.units[limits.at[k]]}]": {
            "position": (t, design.q[:, limits.at[k]]),
            "command": (t, design.actions[:, limits.actuators[k]]),
        }
        for k, name in enumerate(limits.joints[:MAX_FIGURES])
    }
    rows = [(p.address, f"{spread[p.address]:.3g}" if p.address in spread else "") for p in design.params]
    table = Table(("parameter", "standard deviation (share of its range)"), rows, "Empty: not identifiable.")
    kept = "All limits are respected." if design.feasible else "No motion inside the limits was found; allow more."
    sections = [Section("Motion", "", [panels_figure(panels)]), Section("Parameters", "", [table])]
    number = Number("identifiable parameters", f"{len(spread)} of {len(rows)}")
    verdict = Headline("good" if design.feasible else "bad", kept)
    return HtmlReport("instep excite", f"{t[-1] + spec.dt:.3g} s", verdict, [number], sections)


def _ends(estimate: Estimate) -> str:
    return "" if not estimate.has_interval else f"{estimate.low:.4g} to {estimate.high:.4g}"


def _value(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.4g}"


def reidentification_page(title: str, found: Reidentification, facts: Mapping[str, str]) -> HtmlReport:
    """The page of recordings that were replayed through the on-line filter."""
    seconds = found.points[-1].t if found.points else 0.0
    subtitle = f"{len(found.params)} parameters, {len(found.points)} windows, {seconds:.1f} s"
    verdict = _drift_verdict(found)
    return HtmlReport(title, subtitle, verdict, drift_numbers(found), drift_sections(found), dict(facts))


def _drift_verdict(found: Reidentification) -> Headline:
    if found.mismatch is not None and not found.ready:
        headline, _, because = str(found.mismatch).partition(": ")
        return Headline("bad", f"{headline}.", because[:1].upper() + because[1:])
    if not found.ready:
        return Headline("bad", "Too few windows to measure the noise.", "Nothing was estimated; record a longer run.")
    counts, gain = found.counts(), found.improvement()
    said = f"{_times(counts['change'], 'sudden change')}, {_times(counts['applied'], 'update')} applied, "
    said += f"{counts['rolled back']} rolled back."
    if not gain.has_interval:
        return Headline("plain", said, "The recordings are too short to compare estimates with the first values.")
    with_first = "The error of the next window with the values in use is"
    because = f"{with_first} {_compared(gain)}; with the estimate, {_compared(found.improvement('estimate'))}."
    return Headline("good" if gain.low > 0 else "bad" if gain.high < 0 else "plain", said, because)


def _compared(gain: Estimate) -> str:
    """How large an error is, given its reduction."""
    if gain.value == 0:
        return "that of the first values"
    moved, ends = "smaller" if gain.value > 0 else "larger", f"{100 * gain.low:.3g} to {100 * gain.high:.3g} %"
    return f"{100 * abs(gain.value):.3g} % {moved} than with the first ones ({ends})"


def _times(count: int, words: str) -> str:
    return f"{count} {words}{'' if count == 1 else 's'}"


def drift_numbers(found: Reidentification) -> list[Number]:
    """The key numbers."""
    counts = found.counts()
    lost = f"{found.lost} lost, {found.diverged} diverged"
    return [
        Number("sudden changes", str(counts["change"]), "detected"),
        Number("updates", str(counts["applied"]), f"{counts['rolled back']} rolled back"),
        Number("windows", str(len(found.points)), lost),
    ]


def drift_sections(found: Reidentification) -> list[Section]:
    """Parameters over time, their last values, and all that happened to them."""
    if not found.points:
        return [Section("Re-identification", "No window was complete; nothing was estimated.")]
    lead = "Estimates with 95 % intervals, and the values in use (dotted). Marks: changes, updates, roll-backs."
    figures = [_figure(found, i) for i in range(min(len(found.params), MAX_FIGURES))]
    values: list[tuple[str, ...]] = []
    for first, (name, now) in zip(found.points[0].used, found.estimates.items(), strict=True):
        used = f"{found.settings[name]:.4g}"
        values.append((name, f"{first:.4g}", f"{now.value:.4g}", _ends(now) or "not estimated", used, now.unit))
    table = Table(("parameter", "first", "last estimate", "95 % interval", "in use", "unit"), values)
    sections = [Section("Parameters over time", lead, [FigureRow(figures), table])]
    rows = [(f"{event.t:.1f}", event.kind, event.words) for event in found.events[:MAX_EVENTS]]
    more = len(found.events) - len(rows)
    said = f"{more} more are in result.json." if more else ""
    if rows:
        sections.append(Section("Changes and updates", said, [Table(("time [s]", "what", "how"), rows)]))
    return sections


def _figure(found: Reidentification, index: int) -> Figure:
    """One parameter over time, with its interval, the value in use, and marks of changes and updates."""
    t = np.array([point.t for point in found.points])
    columns = (np.array([getattr(p, name)[index] for p in found.points]) for name in ("values", "low", "high", "used"))
    values, low, high, used = columns
    data = band_traces(t, low, high, name="95 % interval")
    data.append(line_trace("estimate", *downsampled(t, values), color=series_color(0), width=1.8))
    data.append(line_trace("in use", *downsampled(t, used), color=series_color(1), width=1.4, dash="dot"))
    param = found.params[index]
    marks = [e for e in found.events if e.kind in MARKED and (e.kind != "change" or param.address in e.settings)]
    unit = f" [{param.unit}]" if param.unit else ""
    shapes = [upright_line(event.t) for event in marks]
    return plot(data, title=param.address, x="time [s]", y=f"value{unit}", height=300, shapes=shapes)


def torque_identification_page(found: TorqueIdentification, facts: Mapping[str, str] | None = None) -> HtmlReport:
    """Gates, held-out torques, friction, base parameters, inertias and payloads of an identification from torques."""
    after, before = found.after[TORQUE_ERROR], found.before[TORQUE_ERROR]
    words = f"The torque error on held-out recordings is {after.value:.3g} % instead of {before.value:.3g} %."
    open_gates = [f"{gate.name} {gate.state}" for gate in found.gates if gate.required and not gate.passed]
    because = f"Not promoted: {', '.join(open_gates)}." if open_gates else "All gates were passed."
    good = sum(base.identified for base in found.base)
    numbers = [
        Number.of("torque error, held-out", after, f"{formatted(before)} before"),
        Number.of("mean norm of the error", found.after[TORQUE_NORM], f"{formatted(found.before[TORQUE_NORM])} before"),
        Number("base parameters identified", f"{good} of {len(found.base)}", f"fit {found.status}"),
    ]
    sections = [gates_section(found.gates), _torques(found), _terms(found), _base(found), _bodies(found)]
    if found.payloads:
        rows = [
            (name, load.body, formatted(load.mass), ", ".join(map(formatted, load.centre)), _list(load.moments))
            for name, load in found.payloads.items()
        ]
        table = Table(("payload", "on", "mass", "centre of mass", "moments [kg m2]"), rows)
        sections.append(Section("Payloads", "Bodies added to the last link, in its frame.", [table]))
    subtitle = f"{len(found.fitted)} recordings fitted, {len(found.held_out)} held out"
    verdict = Headline("good" if found.passed else "bad", words, because)
    return HtmlReport(f"Torques of {found.scene.name}", subtitle, verdict, numbers, sections, facts or {})


def _torques(found: TorqueIdentification) -> Section:
    shown: dict[str, Figure] = {}
    for k, run in enumerate(found.held_out):
        shown[run.name] = torque_figure(run, {side: found.predicted[side][k] for side in ("after", "before")})
    rows: list[tuple[str, ...]] = []
    for joint in found.held_out[0].joints:
        sides = [formatted(scores[f"{joint} rms"]) for scores in (found.before, found.after)]
        rows.append((joint, *sides, formatted(found.after[f"{joint} of rms torque"])))
    table = Table(("joint", "error before", "error after", "of its RMS torque"), rows)
    bars: list[Figure] = []
    for side, scores in (("before", found.before), ("after", found.after)):
        errors = {joint: scores[f"{joint} rms"] for joint in found.held_out[0].joints}
        bars.append(bars_figure(errors, title=f"Torque error by joint, {side}", x="root mean square error"))
    blocks = [FigureRow(bars), table, FigureTabs(shown)]
    return Section("Held-out torques, before and after", "Recordings that were not fitted.", blocks)


def _terms(found: TorqueIdentification) -> Section:
    rows = [
        (name, f"{found.given[name]:.4g}", f"{now.value:.4g}", _ends(now), now.unit)
        for name, now in found.values.items()
    ]
    tried = [(name, f"{gain:.1%}") for name, gain in sorted(found.gains.items(), key=lambda item: -item[1])]
    blocks = [Table(PARAMETER, rows)]
    caption = "Reduction of the error on left-out stretches of the fitted recordings when a term was last tried."
    blocks += [Table(("further term", "reduction"), tried, caption)] if tried else []
    lead = f"Terms beside rigid bodies: {', '.join(term.name for term in found.terms)}."
    return Section("Friction, rotors, offsets", lead, blocks)


def _base(found: TorqueIdentification) -> Section:
    rows = [
        (base.name, f"{base.given:.4g}", f"{base.value.value:.4g}", _ends(base.value), base.value.unit,
         "identified" if base.identified else "not identifiable")
        for base in found.base
    ]  # fmt: skip
    lead = "The combinations of masses, first moments and inertias that joint torques determine."
    head = ("combination", "scene", "fitted", "95 % interval", "unit", "status")
    return Section(
        "Base parameters", lead, [Table(head, rows)] if rows else ["Only a payload was fitted."], folded=True
    )


def _bodies(found: TorqueIdentification) -> Section:
    rows: list[tuple[str, ...]] = []
    for body, sides in found.inertias().items():
        masses = [f"{side.mass:.3g}" for side in sides]
        rows.append((body, *masses, *(_list(side.centre) for side in sides), *(_list(side.moments) for side in sides)))
    before = ("mass before [kg]", "centre of mass before [m]", "moments before [kg m2]")
    head = ("body", *(word for name in before for word in (name, "after")))
    lead = "Torques determine only the combinations above. Of all that agree, these are nearest to the scene's."
    return Section("Inertias", lead, [Table(head, rows)], folded=True)


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
