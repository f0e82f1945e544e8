"""The pages of torques: the gap of a scene, and an identification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.statistics import Estimate
from instep.core.world import Array

from .figures import bars_figure, downsampled, plain_text, series_color, titled
from .page import Figure, FigureRow, FigureTabs, Headline, HtmlReport, Number, Section, Table, formatted

if TYPE_CHECKING:
    from instep.gap.torque_gap import TorqueGap, TorqueRun
    from instep.tune.torque.torque_identification import TorqueIdentification


ERROR, NORM = "torque error", "torque error, mean norm"
"""Scores over all joints."""


def torque_identification_page(found: TorqueIdentification, facts: Mapping[str, str] | None = None) -> HtmlReport:
    """The page: gates, torques of held-out runs, friction, base parameters, inertias, payloads."""
    after, before = found.after[ERROR], found.before[ERROR]
    words = f"The torque error on held-out recordings is {after.value:.3g} % instead of {before.value:.3g} %."
    open_gates = [f"{gate.name} {gate.state}" for gate in found.gates if gate.required and not gate.passed]
    because = f"Not promoted: {', '.join(open_gates)}." if open_gates else "All gates were passed."
    good = sum(base.identified for base in found.base)
    numbers = [
        Number.of("torque error, held-out", after, f"{formatted(before)} before"),
        Number.of("mean norm of the error", found.after[NORM], f"{formatted(found.before[NORM])} before"),
        Number("base parameters identified", f"{good} of {len(found.base)}", f"fit {found.status}"),
    ]
    sections = [_gates(found), _torques(found), _terms(found), _base(found), _bodies(found)]
    sections += [_payloads(found)] if found.payloads else []
    subtitle = f"{len(found.fitted)} recordings fitted, {len(found.held_out)} held out"
    verdict = Headline("good" if found.passed else "bad", words, because)
    return HtmlReport(f"Torques of {found.scene.name}", subtitle, verdict, numbers, sections, facts or {})


def torque_gap_page(gap: TorqueGap, facts: Mapping[str, str] | None = None) -> HtmlReport:
    """The page: error of each joint, the effects that would remove it, measured and predicted torques."""
    overall, norm = gap.scores[ERROR], gap.scores[NORM]
    headline = f"The torques of {gap.scene!r} are {formatted(overall, interval=False)} off those measured."
    worst = max(gap.joints, key=lambda joint: gap.scores[f"{joint} of rms torque"].value)
    because = f"The largest relative error is that of {worst}; instep torque DATA SCENE identifies its cause."
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
    shares = tuple(next(iter(gap.shares.values())))
    head = ("joint", "error", "of its RMS torque", "of its torque range", *(f"removed by {s}" for s in shares))
    table = Table(head, rows, "Removed: the share of the squared error that this effect alone would explain.")
    sections = [
        Section("Error of each joint", "Root mean square, with 95 % intervals.", [figure, table]),
        Section("Torques", "Measured torques, and those of the scene for the measured motion.", [FigureTabs(shown)]),
        Section("Notes", "", list(gap.notes)),
    ]
    subtitle = f"{len(gap.runs)} recorded runs against the inverse dynamics of {gap.scene!r}"
    verdict = Headline("plain", headline, because)
    return HtmlReport(f"Torque gap of {gap.scene}", subtitle, verdict, numbers, sections, facts or {})


def torque_figure(run: TorqueRun, predicted: Mapping[str, Array], title: str = "") -> Figure:
    """Measured torques of a run and predictions by name, one panel per joint."""
    data: list[dict[str, Any]] = []
    count = len(run.joints)
    layout: dict[str, Any] = {"title": titled(title), "height": 110 + 120 * count}
    layout["grid"] = {"rows": count, "columns": 1, "pattern": "independent"}
    for k, joint in enumerate(run.joints):
        axis = "" if k == 0 else str(k + 1)
        lines = {"measured": (run.torque, {"color": "@ink", "width": 1.4})}
        for i, (name, torque) in enumerate(predicted.items()):
            lines[name] = (torque, {"color": series_color(i), "width": 1.8, "dash": "dot" if i else "solid"})
        for name, (torque, line) in lines.items():
            x, y = downsampled(run.t, torque[:, k])
            trace = {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line}
            data.append(trace | {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": k == 0})
        layout[f"yaxis{axis}"] = {"title": {"text": f"{plain_text(joint)} [Nm]", "font": {"size": 11}}}
        layout[f"xaxis{axis}"] = {"title": "time [s]" if k == count - 1 else ""}
    return {"data": data, "layout": layout}


def _bars(found: TorqueIdentification, side: str) -> Figure:
    scores = found.after if side == "after" else found.before
    bars = {joint: scores[f"{joint} rms"] for joint in found.held_out[0].joints}
    return bars_figure(bars, title=f"Torque error by joint, {side}", x="root mean square error")


def _gates(found: TorqueIdentification) -> Section:
    rows = [
        (gate.name, gate.state if gate.required else f"{gate.state} (advice)", gate.message) for gate in found.gates
    ]
    lead = "In the order in which they were run. Whiteness is advice; every other gate must be passed for promotion."
    return Section("Gates", lead, [Table(("gate", "state", "message"), rows)])


def _torques(found: TorqueIdentification) -> Section:
    shown: dict[str, Figure] = {}
    for k, run in enumerate(found.held_out):
        shown[run.name] = torque_figure(run, {side: found.predicted[side][k] for side in ("after", "before")})
    rows: list[tuple[str, ...]] = []
    for joint in found.held_out[0].joints:
        sides = [formatted(scores[f"{joint} rms"]) for scores in (found.before, found.after)]
        rows.append((joint, *sides, formatted(found.after[f"{joint} of rms torque"])))
    table = Table(("joint", "error before", "error after", "of its RMS torque"), rows)
    bars = FigureRow([_bars(found, "before"), _bars(found, "after")])
    return Section(
        "Held-out torques, before and after", "Recordings that were not fitted.", [bars, table, FigureTabs(shown)]
    )


def _terms(found: TorqueIdentification) -> Section:
    rows = [
        (name, f"{found.given[name]:.4g}", f"{now.value:.4g}", _ends(now), now.unit)
        for name, now in found.values.items()
    ]
    tried = [(name, f"{gain:.1%}") for name, gain in sorted(found.gains.items(), key=lambda item: -item[1])]
    blocks = [Table(("parameter", "before", "after", "95 % interval", "unit"), rows)]
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
    head = (
        "body",
        "mass before [kg]",
        "after",
        "centre of mass before [m]",
        "after",
        "moments before [kg m2]",
        "after",
    )
    lead = (
        "Of all inertias with these torques, the ones nearest to the scene's. Torques do not determine single "
        "values, only the combinations above."
    )
    return Section("Inertias", lead, [Table(head, rows)], folded=True)


def _payloads(found: TorqueIdentification) -> Section:
    rows: list[tuple[str, ...]] = []
    for name, load in found.payloads.items():
        centre = ", ".join(formatted(part) for part in load.centre)
        rows.append((name, load.body, formatted(load.mass), centre, _list(np.array(load.moments))))
    head = ("payload", "on", "mass", "centre of mass", "moments [kg m2]")
    return Section("Payloads", "Bodies added to the last link, in its frame.", [Table(head, rows)])


def _ends(estimate: Estimate) -> str:
    return f"{estimate.low:.4g} to {estimate.high:.4g}" if np.isfinite(estimate.low) else ""


def _list(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
