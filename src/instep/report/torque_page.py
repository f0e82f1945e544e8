"""The page of an identification from torques."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from instep.core.statistics import Estimate
from instep.gap.torque_gap import NORM, RELATIVE, torque_figure
from instep.physics.inverse_dynamics import body_inertia

from .figures import bars_figure
from .page import Figure, FigureRow, FigureTabs, Headline, HtmlReport, Number, Section, Table, formatted

if TYPE_CHECKING:
    from instep.tune.torque.torque_identification import TorqueIdentification


def page(found: TorqueIdentification, facts: Mapping[str, str]) -> HtmlReport:
    """The whole page."""
    after, before = found.after[RELATIVE], found.before[RELATIVE]
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
    return HtmlReport(f"Torques of {found.scene.name}", subtitle, verdict, numbers, sections, facts)


def figures(found: TorqueIdentification) -> list[Figure]:
    """Errors of the joints after identification, and the torques of a held-out run."""
    shown = {name: sides[0] for name, sides in reversed(list(found.predicted.items()))}
    return [_bars(found, "after"), torque_figure(found.held_out[0], shown)]


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
    problem = found.solution.problem
    for body, given, pi in zip(problem.bodies, problem.given, found.solution.inertial, strict=False):
        cells: list[str] = []
        for some in (given, pi):
            mass, centre, inertia = body_inertia(some)
            cells += [f"{mass:.3g}", _list(centre), _list(np.linalg.eigvalsh(inertia))]
        rows.append((found.scene.model.body(body).name, *cells[::3], *cells[1::3], *cells[2::3]))
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
