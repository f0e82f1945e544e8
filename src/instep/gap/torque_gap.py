"""The gap in torques: the inverse dynamics of a scene along a recorded motion, against measured torques.

Motion and torques pass the same low-pass without delay; then they are differentiated and thinned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np
from scipy.signal import butter, sosfiltfilt

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import NUMBER, check_inside, checked_table, present, table_of
from instep.core.statistics import Estimate, log_jackknife, pooled
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.data.resample import onto
from instep.physics.inverse_dynamics import Motion, direction, model_torques, rigid_torques
from instep.scene.folder import SCENE_FILE, Scene, read_table
from instep.scene.robot_structure import driven_joints

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
    settings = scene.actuator_settings
    share = np.array([settings.get(f"joint.{joint}.load", 0.0) for joint in run.joints])
    if share.any():
        load = np.abs(rigid_torques(scene.model, run.motion)[:, run.dofs])
        torque = torque + OPPOSED * share * load * direction(run.motion.v[:, run.dofs])
    return torque + np.array([sensor_offsets(scene).get(joint, 0.0) for joint in run.joints])


def sensor_offsets(scene: Scene) -> dict[str, float]:
    """Offsets of a scene's torque sensors by joint [Nm]; empty if its folder has no `torque_sensors.toml`."""
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
        share = 100 / max(float(np.ptp(every[:, k])), 1e-12)
        scores[f"{joint} of range"] = Estimate(share * rms.value, share * rms.low, share * rms.high, rms.n, "%")
    return scores


def _ratio(square: Array, power: Array) -> Estimate:
    """100 sqrt(sum of squares / sum of powers) [%] over blocks [blocks]."""
    whole = np.array([square.sum() / max(float(power.sum()), 1e-300)])
    without = (square.sum() - square) / np.maximum(power.sum() - power, 1e-300)
    found = (
        log_jackknife(whole, without[:, None])[0] if len(square) > 1 else Estimate(whole[0] ** 0.5, np.nan, np.nan, 1)
    )
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


TORQUE, ACCELERATION = "observation.effort", "observation.acceleration"
"""Columns of measured torques and of recorded accelerations."""
TORQUE_UNITS = ("Nm", "N m", "N*m", "N", "")
"""Units of torques and forces; a log without units counts as SI."""
BANDWIDTH = 5.0
"""The low-pass passes so many times the frequency below which the motion lies."""
MIN_SIGNAL = 100.0
"""Power over that of the encoders' noise from which on a frequency belongs to the motion."""
MIN_CUTOFF_HZ = 8.0
"""Below this, reversals of dry friction would be smoothed away."""
ROWS_PER_PERIOD = 2.5
"""Rows kept per period of the low-pass: more would repeat each other."""
AT_REST = 0.02
"""Share of its usual speed below which a joint counts as at rest."""
MIN_ROWS = 20


@options_dataclass
class TorqueOptions:
    """How recordings become rows of motion and torque."""

    cutoff: float = 0.0
    """Cut-off of the low-pass [Hz]; 0 finds it from the motion."""
    payload: str = ""
    """Name of a payload of every recording; if empty, `payload` in the metadata of each recording."""


@array_dataclass
class TorqueRun:
    """One recording: the motion of the whole model and the measured torques of some of its joints."""

    name: str
    t: Array
    """Time of each row [s]."""
    motion: Motion
    torque: Array
    """Measured torques [rows, joints]."""
    joints: tuple[str, ...]
    dofs: Array
    """Places of the joints among the velocities of the model."""
    cutoff: float
    """Cut-off of the low-pass [Hz]."""
    payload: str = ""
    """Name of the payload that it carries; empty if none."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])

    def __len__(self) -> int:
        return len(self.t)

    def rows(self, which: Array | slice) -> TorqueRun:
        """Some rows of it."""
        return replace(self, t=self.t[which], motion=self.motion.rows(which), torque=self.torque[which])


def torque_runs(scene: Scene, episodes: Sequence[Episode], options: TorqueOptions | None = None) -> list[TorqueRun]:
    """The rows of motion and torque of recordings, for the joints of the scene whose torque was recorded.

    Positions, velocities, accelerations and torques pass the same zero-phase low-pass, so that none is late against
    another. Velocities and accelerations are derivatives of the positions: recorded velocities are often late. A log
    with accelerations was smoothed if it was made, so it is taken as it is, unless a cut-off is given. Rows in which
    the robot rests at the start and end are left out.
    """
    options = options or TorqueOptions()
    if not episodes:
        raise BadInput("There are no recordings, so there are no torques to compare.")
    return [_run(scene, episode, i, options) for i, episode in enumerate(episodes)]


def _run(scene: Scene, episode: Episode, number: int, options: TorqueOptions) -> TorqueRun:
    name = episode.meta.get("name") or episode.meta.get("source") or f"episode {number}"
    joints, torque, source = _torques(scene, episode, name)
    labels = [label for label in joints if label in episode.spec.q.labels]
    places = [episode.spec.q.labels.index(label) for label in labels]
    stamps = np.asarray(episode.t, float)
    if len(stamps) < MIN_ROWS or (np.diff(stamps) <= 0).any():
        raise BadInput(f"The times of {name!r} do not advance, or it is too short.")
    recorded = {"q": episode.q[:, places], "torque": torque}
    shapes = {episode[name].shape for name in ("q", "v", ACCELERATION) if name in episode}
    if ACCELERATION in episode and "v" in episode and len(shapes) == 1:
        recorded |= {"v": episode["v"][:, places], "a": episode[ACCELERATION][:, places]}
    t = np.linspace(float(stamps[0]), float(stamps[-1]), len(stamps))  # filters need even times
    columns = {key: onto(t, stamps, np.asarray(values, float), "linear") for key, values in recorded.items()}
    rate = (len(t) - 1) / (t[-1] - t[0])
    cutoff = options.cutoff or _cutoff(columns["q"], rate)
    if not 0 < cutoff < rate / 2:
        raise BadInput(f"--cutoff must lie between 0 and {rate / 2:g} Hz, half the rate of {name!r}, not {cutoff:g}.")
    smooth = columns
    if "a" not in columns or options.cutoff:
        sections, padding = butter(4, cutoff, fs=rate, output="sos"), min(len(t) - 1, int(2 * rate / cutoff))
        smooth = {k: np.asarray(sosfiltfilt(sections, x, axis=0, padlen=padding)) for k, x in columns.items()}
    if "a" not in smooth:
        smooth["v"] = np.gradient(smooth["q"], t, axis=0)
        smooth["a"] = np.gradient(smooth["v"], t, axis=0)
    # Rows from where the robot begins to move to where it stops, less the edges of the filter, thinned.
    v = smooth["v"]
    usual = np.sqrt((v**2).mean(axis=0))
    moving = np.flatnonzero((np.abs(v) > AT_REST * np.maximum(usual, 1e-12)).any(axis=1))
    edge = int(rate / cutoff)
    first = max(edge, int(moving[0])) if len(moving) else 0
    last = min(len(v) - edge, int(moving[-1]) + 1) if len(moving) else 0
    kept = np.arange(first, last, max(1, int(rate / (ROWS_PER_PERIOD * cutoff))))
    if len(kept) < MIN_ROWS:
        raise BadInput(
            f"{name!r} has {len(kept)} rows in which the robot moves, at {cutoff:.3g} Hz; at least {MIN_ROWS} are "
            "needed. Record longer, or raise --cutoff."
        )
    dofs = np.array([int(scene.model.joint(label).dofadr[0]) for label in labels])
    payload = options.payload or payload_of(episode)
    notes = {"torque": source, "acceleration": "recorded" if ACCELERATION in episode else "derived from q"}
    motion = _placed(scene, labels, {key: smooth[key][kept] for key in ("q", "v", "a")})
    return TorqueRun(name, t[kept], motion, smooth["torque"][kept], tuple(labels), dofs, cutoff, payload, notes)


def _torques(scene: Scene, episode: Episode, name: str) -> tuple[list[str], Array, str]:
    """The joints whose torques were recorded, in the scene's order, their torques, and the column they come from."""
    units = episode.spec.action.units
    commanded = "action" in episode and units and all(unit in ("Nm", "N") for unit in units)
    source = TORQUE if TORQUE in episode else "action"
    if TORQUE not in episode and not commanded:
        raise BadInput(
            f"{name!r} has no measured torques: a column {TORQUE!r} [Nm] with one number for each joint was expected "
            "(a mapping adds it), or commands in Nm. Compare positions with: instep gap DATA SCENE"
        )
    channel = episode.spec.action if source == "action" else episode.spec.observation.get(TORQUE)
    values = np.asarray(episode[source], float)
    labels = _labels(scene, episode, channel.labels if channel else (), values.shape[-1])
    units = channel.units if channel else ()
    wrong = sorted({unit for unit in units if unit not in TORQUE_UNITS})
    if wrong:
        raise BadInput(
            f"{source!r} of {name!r} is in {', '.join(wrong)}, not in Nm, so the torques of a model cannot be "
            "compared with it; give its scale to Nm in a mapping."
        )
    recorded = [label for label in scene.robot if label in labels and label in episode.spec.q.labels]
    if not recorded:
        raise BadInput(
            f"No joint of the scene {scene.name!r} ({', '.join(scene.robot)}) has both a position and a torque in "
            f"{name!r} (torques: {', '.join(labels) or 'without names'}); rename the labels in a mapping."
        )
    chosen = values[:, [labels.index(label) for label in recorded]]
    if not np.isfinite(chosen).all() or not np.isfinite(np.asarray(episode.q, float)).all():
        raise BadInput(f"{name!r} has torques or positions that are not finite numbers; cut those rows out.")
    still = [label for label, column in zip(recorded, chosen.T, strict=True) if np.ptp(column) == 0]
    if len(still) == len(recorded):
        raise BadInput(f"The torques of {name!r} never change, so they were not measured.")
    return recorded, chosen, source


def _labels(scene: Scene, episode: Episode, labels: Sequence[str], count: int) -> list[str]:
    """Joints of the torques: by name, by actuator, or in the order of the positions if there are as many."""
    model = scene.model
    driven = {model.actuator(a).name: next(iter(driven_joints(model, a)), "") for a in range(model.nu)}
    named = [label if label in scene.robot else driven.get(label, label) for label in labels]
    if any(label in scene.robot for label in named):
        return named
    return list(episode.spec.q.labels) if count == len(episode.spec.q.labels) else named


def _cutoff(q: Array, rate: float) -> float:
    """The cut-off that keeps the motion: some times the frequency below which 99 % of the velocities' power lies.

    The spectrum of the positions falls to the noise of the encoders; only power well above that floor is motion.
    """
    power = np.abs(np.fft.rfft((q - q.mean(axis=0)) * np.hanning(len(q))[:, None], axis=0)) ** 2
    floor = np.median(power[len(power) // 2 :], axis=0)
    moving = np.where(power > MIN_SIGNAL * floor, power, 0.0).sum(axis=1) * np.arange(len(power)) ** 2
    total = np.cumsum(moving)
    if total[-1] <= 0:
        return min(MIN_CUTOFF_HZ, 0.4 * rate)
    edge = int((total < 0.99 * total[-1]).sum()) * rate / len(q)
    return float(np.clip(BANDWIDTH * edge, min(MIN_CUTOFF_HZ, 0.2 * rate), 0.4 * rate))


def payload_of(episode: Episode) -> str:
    """Name of the payload that a recording carries, from its metadata; empty if none."""
    named = episode.meta.get("payload", "").strip()
    return "" if named.lower() in ("", "0", "0.0", "none", "no", "false", "empty") else named


def _placed(scene: Scene, labels: Sequence[str], values: Mapping[str, Array]) -> Motion:
    """The motion of the whole model; joints that were not recorded rest at the scene's start."""
    start, _ = scene.start()
    rows = len(values["q"])
    q, v, a = np.tile(start, (rows, 1)), np.zeros((rows, scene.model.nv)), np.zeros((rows, scene.model.nv))
    for k, label in enumerate(labels):
        joint = scene.model.joint(label)
        q[:, joint.qposadr[0]] = values["q"][:, k]
        v[:, joint.dofadr[0]], a[:, joint.dofadr[0]] = values["v"][:, k], values["a"][:, k]
    return Motion(q, v, a)
