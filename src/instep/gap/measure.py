"""Measure a gap: replays of recordings in a simulator, two sets of paired runs, or recordings alone.

Each function returns a `Gap` with everything its data allow: curves over the horizon, noise floor, command following,
joint errors of arms, error growth, lags, events and images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.replay import Watch
from instep.core.statistics import Estimate
from instep.core.world import Simulator
from instep.physics.actuators import with_inputs
from instep.physics.engines import open_world
from instep.scene.couplings import with_joint_labels
from instep.scene.folder import Scene

from .arm_kinematics import Arm, arms_of, continuous_joints
from .command_following import CommandFollowing, command_following, position_servos
from .dtw import warped_error
from .error_growth import crossing, error_growth, time_to_threshold
from .events import EventRule, default_event_rules, event_agreement, find_events, match_events
from .gap_result import Curve, Gap
from .horizon import HorizonOptions, error_over_time, measure_horizon, scores_of
from .image_scores import camera_scores
from .joint_error import joint_error_profile, metric_notes, profile_scores
from .noise_floor import noise_floors, repeated_runs, with_noise_floor
from .paired_runs import compare_runs
from .preparation import PreparedRuns, prepare, recorded_at_rate
from .time_alignment import align_all_streams, stream_groups, world_lag


def measure_gap(
    sim: Scene | Simulator | str | Path,
    episodes: Sequence[Episode],
    *,
    options: HorizonOptions | None = None,
    events: Sequence[EventRule] | None = None,
    watch: Watch | None = None,
) -> Gap:
    """How far a simulator is from recorded runs: it is placed at recorded states and given the recorded commands.

    `sim` is a scene (or its name or path) or a simulator. Joint errors of arms and grippers need the scene, which a
    simulator made by `open_world` knows. `events` replaces the default event rules; `watch` receives the number of
    control steps simulated since its last call.
    """
    world, scene = opened(sim)
    ready = prepared_for(world, scene, episodes)
    options = replace(options or HorizonOptions(), wrapping=ready.wrapping)
    gap = measure_horizon(world, ready.episodes, options=options, watch=watch)
    gap = with_noise_floor(gap, ready.episodes, options=options)
    gap = replace(gap, notes=(*gap.notes, *ready.notes))
    commanded = with_joint_labels(scene.model, ready.episodes) if scene is not None else ready.episodes
    if position_servos(commanded):
        following = command_following(commanded)
        gap = replace(gap, following=following).with_scores(_following_scores(following))
    gap = _with_details(gap, _arms_in(scene, gap), options, events)
    floors = noise_floors(repeated_runs(ready.episodes), options=options)
    scores = {f"floor: {group}: {n}": c.at(inf) for group, curves in floors.items() for n, c in curves.items()}
    return replace(gap, floors=floors).with_scores(scores)


def measure_pairs(
    real: Sequence[Episode],
    sim: Sequence[Episode],
    *,
    scene: Scene | None = None,
    options: HorizonOptions | None = None,
    events: Sequence[EventRule] | None = None,
) -> Gap:
    """How far two sets of paired runs are apart; a scene adds the errors of arms and tips."""
    options = replace(options or HorizonOptions(), wrapping=prepare(real).wrapping)
    gap = with_noise_floor(compare_runs(real, sim, options=options), real, options=options)
    gap = _with_details(gap, _arms_in(scene, gap), options, events)
    warped = warped_error(gap.pairs, options=options)
    cameras = tuple(camera_scores(gap.pairs))
    gap = replace(gap, kind="paired", cameras=cameras, wrapping=options.wrapping)
    scores = {name: estimate for camera in cameras for name, estimate in camera.scores.items()}
    return gap.with_scores(scores | ({"overall, time-warped": warped} if warped is not None else {}))


def measure_recordings(episodes: Sequence[Episode]) -> Gap:
    """The gap of recordings alone: positions against their commands, or the clocks of streams of one motion."""
    groups = stream_groups(episodes)
    if groups:
        streams = align_all_streams(groups)
        scores = {f"clock offset: {name}": pair.offset.seconds for name, pair in streams.items()}
        notes = [
            f"The offset of {name} scatters by {1e3 * pair.offset.spread:.1f} ms over windows."
            for name, pair in streams.items()
        ]
        return Gap({}, scores, notes=tuple(notes), kind="clocks", streams=streams)
    following = command_following(episodes)
    curves = {name: Curve(name, e.unit, (inf,), (e,), episodes[0].spec.dt) for name, e in following.rmse.items()}
    scores = {**scores_of(curves), **_following_scores(following)}
    return Gap(curves, scores, kind="commands", following=following)


def opened(sim: Scene | Simulator | str | Path) -> tuple[Simulator, Scene | None]:
    """A simulator and its scene, where it has one."""
    if isinstance(sim, Scene | str | Path):
        world = open_world(sim)
        return world, world.scene
    return sim, getattr(sim, "scene", None)


def prepared_for(sim: Simulator, scene: Scene | None, episodes: Sequence[Episode]) -> PreparedRuns:
    """Runs ready to be replayed in a simulator: at its rate, with unwrapped angles and velocities without lag."""
    fitting, notes = recorded_at_rate(episodes, sim.spec.dt)
    wrapping: Sequence[str] = ()
    if scene is not None:
        fitting = with_inputs(scene, fitting)
        wrapping = [n for n in continuous_joints(scene) if n in fitting[0].spec.q.labels]
    ready = prepare(fitting, wrapping)
    return replace(ready, notes=(*ready.notes, *notes))


def _with_details(gap: Gap, arms: Sequence[Arm], options: HorizonOptions, events: Sequence[EventRule] | None) -> Gap:
    if arms:
        profiles = tuple(joint_error_profile(pair, arms) for pair in gap.pairs)
        gap = replace(gap, joint_errors=profiles).with_scores(profile_scores(profiles), metric_notes(arms))
    return _with_events(_with_growth(gap, options), arms, events)


def _arms_in(scene: Scene | None, gap: Gap) -> list[Arm]:
    """The arms of a scene whose joints were all compared."""
    arms = arms_of(scene) if scene is not None else []
    return [arm for arm in arms if all(label in gap.curves for label in arm.labels)]


def _with_growth(gap: Gap, options: HorizonOptions) -> Gap:
    """The gap with the growth of its error, its lag, and when it crosses three times the floor."""
    errors = error_over_time(gap.pairs, options=options)
    scores: dict[str, Estimate] = {}
    lag = world_lag(gap.pairs, options=options)
    if lag is not None:
        scores = {"lag of the second world": lag.lag, "overall, as timed": lag.before, "overall, lag off": lag.after}
    if "overall" in gap.floor and (floor := gap.floor["overall"].at(inf).value):
        scores["time to 3 x floor"] = time_to_threshold([crossing(t, e, 3 * floor) for t, e in errors])
    try:
        growth = error_growth([t for t, _ in errors], [e for _, e in errors])
    except BadInput as none:
        return gap.with_scores(scores, [str(none)])
    name = "growth exponent" if growth.shape == "power" else "growth rate"
    scores |= {name: growth.rate} | ({"doubling time": growth.doubling} if growth.shape != "power" else {})
    return replace(gap, growth=growth).with_scores(scores)


def _with_events(gap: Gap, arms: Sequence[Arm], rules: Sequence[EventRule] | None) -> Gap:
    """The gap with its events, where the rules find any in either world."""
    if rules is None:
        grippers = {arm.gripper: arm.ranges[arm.gripper] for arm in arms if arm.gripper}
        rules = default_event_rules(gap.pairs[0].real, grippers)
    finite = [pair for pair in gap.pairs if np.isfinite(pair.sim.q).all()]
    runs = [match_events(find_events(p.real, rules), find_events(p.sim, rules), run=p.name) for p in finite]
    found = event_agreement(runs)
    if found is None:
        return gap
    scores = {"events later by": found.delay, "events missing": found.missing, "events extra": found.extra}
    gap = replace(gap, events=tuple(m for run in runs for m in run), event_agreement=found)
    return gap.with_scores(scores | {"event order edits": found.order})


def _following_scores(following: CommandFollowing) -> dict[str, Estimate]:
    errors = {f"command following: {name}": estimate for name, estimate in following.rmse.items()}
    return errors | {f"lag: {name}": estimate for name, estimate in following.lag.items()}
