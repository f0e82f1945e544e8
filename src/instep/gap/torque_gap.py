"""The gap in torques: what a scene's inverse dynamics needs for a recorded motion, against what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import check_inside, present
from instep.core.records import array_dataclass
from instep.core.schema import NUMBER, checked_table, table_of
from instep.core.statistics import Estimate, log_jackknife, pooled
from instep.core.world import Array
from instep.physics.actuators import read_actuators
from instep.physics.inverse_dynamics import direction, model_torques, rigid_torques
from instep.report.figures import bars_figure, downsampled, plain_text, series_color, titled
from instep.report.page import Figure, FigureTabs, Headline, HtmlReport, Number, Section, Table, formatted, write_html
from instep.report.plots import matplotlib_figure
from instep.scene.folder import SCENE_FILE, Scene
from instep.scene.settings_file import read_table

from .torque_rows import TorqueOptions, TorqueRun, torque_runs

RELATIVE, NORM = "torque error", "torque error, mean norm"
"""Scores over all joints: norm of all errors over norm of all torques [%], and mean norm of a row [Nm]."""
OFFSETS_FILE = "torque_sensors.toml"
"""File of a scene folder with the offset of each joint's torque sensor [Nm]."""
OPPOSED = 2.0
"""Actuator models take friction as a share of |external - motor torque|, twice the load where the two balance."""
BLOCKS = 20
"""Blocks of neighbouring rows behind an interval: neighbouring rows repeat each other."""


@array_dataclass
class TorqueGap:
    """Measured torques beside those of a scene's inverse dynamics."""

    scene: str
    """Name of the scene."""
    runs: tuple[TorqueRun, ...]
    predicted: tuple[Array, ...]
    """Torques of the scene for each run [rows, joints]."""
    scores: Mapping[str, Estimate]
    """Over all joints `torque error` [%] and `torque error, mean norm` [Nm]; of each joint `JOINT rms` [Nm], `JOINT of
    rms torque` [%] and `JOINT of range` [%]."""
    shares: Mapping[str, Mapping[str, float]]
    """For each joint, the share of its squared error that friction or an offset alone would remove."""
    notes: tuple[str, ...] = ()

    @property
    def joints(self) -> tuple[str, ...]:
        """The joints with measured torques."""
        return self.runs[0].joints

    def report(self, facts: Mapping[str, str] | None = None) -> HtmlReport:
        """The page: error of each joint, what would remove it, measured and predicted torques."""
        overall, norm = self.scores[RELATIVE], self.scores[NORM]
        headline = f"The torques of {self.scene!r} are {formatted(overall, interval=False)} off those measured."
        worst = max(self.joints, key=lambda joint: self.scores[f"{joint} of rms torque"].value)
        because = (
            f"The largest relative error is that of {worst}; instep tune DATA SCENE --torque identifies what causes it."
        )
        numbers = [
            Number("error over torque", formatted(overall), f"{overall.n} blocks of rows"),
            Number("mean norm of the error", formatted(norm), f"{len(self.runs)} runs"),
        ]
        shown = {run.name: torque_figure(run, {"scene": p}) for run, p in zip(self.runs, self.predicted, strict=True)}
        sections = [
            Section("Error of each joint", "Root mean square, with 95 % intervals.", [self._figure(), self._table()]),
            Section("Torques", "Measured, and what the scene needs for the measured motion.", [FigureTabs(shown)]),
            Section("Notes", "", list(self.notes)),
        ]
        subtitle = f"{len(self.runs)} recorded runs against the inverse dynamics of {self.scene!r}"
        return HtmlReport(f"Torque gap of {self.scene}", subtitle, Headline("plain", headline, because), numbers,
                          sections, facts or {})  # fmt: skip

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML file."""
        return write_html(path, self.report())

    def plot(self) -> Any:
        """Error of each joint and the torques of the first run, as a `matplotlib.figure.Figure`."""
        return matplotlib_figure([self._figure(), torque_figure(self.runs[0], {"scene": self.predicted[0]})])

    def _figure(self) -> Figure:
        bars = {joint: self.scores[f"{joint} rms"] for joint in self.joints}
        return bars_figure(bars, title="Torque error by joint", x="root mean square error")

    def _table(self) -> Table:
        rows: list[tuple[str, ...]] = []
        for joint in self.joints:
            scores = [formatted(self.scores[f"{joint} {what}"]) for what in ("rms", "of rms torque", "of range")]
            rows.append((joint, *scores, *(f"{100 * share:.0f} %" for share in self.shares[joint].values())))
        shares = tuple(next(iter(self.shares.values())))
        head = ("joint", "error", "of its RMS torque", "of its torque range", *(f"removed by {s}" for s in shares))
        caption = "Removed: the share of the squared error that this effect alone would explain."
        return Table(head, rows, caption)


def measure_torque_gap(
    scene: Scene | str | Path, episodes: Sequence[Episode], options: TorqueOptions | None = None
) -> TorqueGap:
    """Compare measured torques with the inverse dynamics of a scene along the measured motion."""
    scene = scene if isinstance(scene, Scene) else Scene.load(scene)
    runs = torque_runs(scene, episodes, options)
    check_same_joints(runs)
    predicted = [scene_torques(scene, run) for run in runs]
    errors = [run.torque - p for run, p in zip(runs, predicted, strict=True)]
    scores = torque_scores(errors, [run.torque for run in runs], runs[0].joints)
    return TorqueGap(scene.name, tuple(runs), tuple(predicted), scores, _shares(runs, errors), _notes(scene, runs))


def scene_torques(scene: Scene, run: TorqueRun) -> Array:
    """The torques that a scene needs for the motion of a run, as its sensors would show them [rows, joints].

    Load-dependent friction of its actuator models and the offsets of its torque sensors are included.
    """
    torque = model_torques(scene.model, run.motion)[:, run.dofs]
    settings = read_actuators(scene.root)
    share = np.array([settings.get(f"joint.{joint}.load", 0.0) for joint in run.joints])
    if share.any():
        load = np.abs(rigid_torques(scene.model, run.motion)[:, run.dofs])
        torque = torque + OPPOSED * share * load * direction(run.motion.v[:, run.dofs])
    return torque + np.array([sensor_offsets(scene).get(joint, 0.0) for joint in run.joints])


def sensor_offsets(scene: Scene) -> dict[str, float]:
    """Offsets of a scene's torque sensors by joint [Nm]; empty where its folder has no `torque_sensors.toml`."""
    path = scene.root / OFFSETS_FILE
    if not present(path) or not (scene.root / SCENE_FILE).is_file():
        return {}
    table = checked_table(read_table(check_inside(scene.root, path)), {"settings": table_of(NUMBER)}, path.name)
    return {joint: float(value) for joint, value in table.get("settings", {}).items()}


def check_same_joints(runs: Sequence[TorqueRun]) -> None:
    """Refuse recordings whose torques belong to different joints."""
    for run in runs[1:]:
        if run.joints != runs[0].joints:
            raise BadInput(
                f"{runs[0].name!r} has torques of {', '.join(runs[0].joints)}, but {run.name!r} of "
                f"{', '.join(run.joints)}; compare recordings of the same joints."
            )


def torque_scores(errors: Sequence[Array], torques: Sequence[Array], joints: Sequence[str]) -> dict[str, Estimate]:
    """Errors of torques over all joints and by joint, with intervals over blocks of neighbouring rows."""
    parts = max(1, BLOCKS // len(errors))
    blocks = [part for rows in errors for part in np.array_split(rows, parts)]
    means = [part for rows in torques for part in np.array_split(rows, parts)]
    square = np.array([(b**2).sum(axis=0) for b in blocks])
    power = np.array([(b**2).sum(axis=0) for b in means])
    count = np.array([len(b) for b in blocks], float)
    scores = {RELATIVE: _ratio(square.sum(axis=1), power.sum(axis=1))}
    norms = np.array([np.linalg.norm(b, axis=1).sum() for b in blocks])
    scores[NORM] = pooled(norms[:, None], count, power=1.0, unit="Nm")[0]
    every = np.concatenate(list(torques))
    for k, (joint, rms) in enumerate(zip(joints, pooled(square, count, unit="Nm"), strict=True)):
        scores[f"{joint} rms"] = rms
        scores[f"{joint} of rms torque"] = _ratio(square[:, k], power[:, k])
        span = max(float(np.ptp(every[:, k])), 1e-12)
        scores[f"{joint} of range"] = Estimate(
            100 * rms.value / span, 100 * rms.low / span, 100 * rms.high / span, rms.n, "%"
        )
    return scores


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


def _ratio(square: Array, power: Array) -> Estimate:
    """100 sqrt(sum of squares / sum of powers) [%] over blocks [blocks]."""
    whole = np.array([square.sum() / max(float(power.sum()), 1e-300)])
    if len(square) < 2:
        value = 100 * float(whole[0]) ** 0.5
        return Estimate(value, float("nan"), float("nan"), 1, "%")
    without = (square.sum() - square) / np.maximum(power.sum() - power, 1e-300)
    found = log_jackknife(whole, without[:, None])[0]
    return Estimate(100 * found.value, 100 * found.low, 100 * found.high, found.n, "%")


def _shares(runs: Sequence[TorqueRun], errors: Sequence[Array]) -> dict[str, dict[str, float]]:
    v = np.concatenate([run.motion.v[:, run.dofs] for run in runs])
    error = np.concatenate(list(errors))
    out: dict[str, dict[str, float]] = {}
    for k, joint in enumerate(runs[0].joints):
        e = error[:, k]
        parts = {"offset": [np.ones(len(e))], "friction": [direction(v[:, k]), v[:, k]]}
        parts["both"] = [*parts["offset"], *parts["friction"]]
        out[joint] = {}
        for name, columns in parts.items():
            a = np.stack(columns, axis=1)
            left = e - a @ np.linalg.lstsq(a, e, rcond=None)[0]
            out[joint][name] = float(1 - (left @ left) / max(float(e @ e), 1e-300))
    return out


def _notes(scene: Scene, runs: Sequence[TorqueRun]) -> tuple[str, ...]:
    source = runs[0].notes["torque"]
    notes = [
        f"Torques are the column {source!r}" + (" (commanded, not measured)." if source == "action" else "."),
        f"Accelerations are {runs[0].notes['acceleration']}; low-pass and rows: "
        + "; ".join(f"{run.name} {run.cutoff:.3g} Hz, {len(run)} rows" for run in runs) + ".",
    ]  # fmt: skip
    loaded = sorted({run.payload for run in runs if run.payload})
    if loaded:
        notes.append(f"Runs with a payload ({', '.join(loaded)}) are compared with the scene as it is, without one.")
    if scene.model.neq:
        notes.append("Equality constraints of the scene and contacts are left out: they are no function of the motion.")
    return tuple(notes)
