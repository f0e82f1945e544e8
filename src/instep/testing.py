"""The laws every world keeps, as functions to run on your own worlds.

    import pytest
    from instep.testing import SIMULATOR_LAWS, WORLD_LAWS

    @pytest.mark.parametrize("law", WORLD_LAWS + SIMULATOR_LAWS)
    def test_law(law):
        law(MyWorld())

Each law takes a world and raises AssertionError with a sentence where it is broken. They act by small steps around
the action `middle` of a world; give your own where that is not safe: `law(world, action)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Observation, Simulator, State, World, inner_with, stack, take


def middle(world: World) -> Array:
    """An action to try: that of the scene at rest where the world has a scene, else zeros."""
    inner = inner_with(world, "scene")
    return np.zeros(world.spec.action.shape) if inner is None else np.asarray(inner.scene.rest_action())


def the_same_seed_gives_the_same_episode(world: World, action: Array | None = None) -> None:
    """Two runs from one seed agree bit by bit, and a reset in between changes nothing."""
    one = _run(world, 3, action)
    world.reset(7)
    _same(one, _run(world, 3, action), "two runs from the same seed")


def step_does_not_change_its_argument(world: World, action: Array | None = None) -> None:
    """A state that was stepped is as it was."""
    state, u = world.reset(1), _action(world, action)
    before, asked = _copy(state), u.copy()
    world.step(state, u)
    _same_state(state, before, "a state before and after it was stepped")
    assert np.array_equal(u, asked), "step changed the action it was given"


def step_depends_on_nothing_else(world: World, action: Array | None = None) -> None:
    """Stepping one state twice, with other states stepped in between, gives the same state twice."""
    u = _action(world, action)
    state = world.step(world.reset(2), u)
    first = world.step(state, u)
    other = world.reset(5)
    for _ in range(3):
        other = world.step(other, u)
    _same_state(first, world.step(state, u), "one state stepped twice")


def time_advances_by_dt(world: World, action: Array | None = None) -> None:
    """A step takes one control period."""
    state, u = world.reset(0), _action(world, action)
    for _ in range(5):
        after = world.step(state, u)
        assert abs(after.t - state.t - world.spec.dt) < 1e-9, (
            f"time advanced by {after.t - state.t} s in a step, but the control period is {world.spec.dt} s"
        )
        state = after


def numbers_fit_the_spec(world: World, action: Array | None = None) -> None:
    """Positions, velocities and observations have the sizes the spec says."""
    state = world.step(world.reset(0), _action(world, action))
    spec = world.spec
    assert state.q.shape == spec.q.shape == (len(spec.q.labels),), f"q has shape {state.q.shape}, not {spec.q.shape}"
    assert state.v.shape == spec.v.shape == (len(spec.v.labels),), f"v has shape {state.v.shape}, not {spec.v.shape}"
    seen = world.observe(state)
    for name, channel in spec.observation.items():
        assert name in seen, f"{name} is in the spec, but not observed"
        assert seen[name].shape == channel.shape, f"{name} has shape {seen[name].shape}, not {channel.shape}"


def a_wrong_action_is_refused(world: World, action: Array | None = None) -> None:
    """An action of another size, or one that is not finite, raises BadInput and moves nothing."""
    state, u = world.reset(0), _action(world, action)
    if not u.size:
        return
    for bad in (np.append(u, 0.0), np.full_like(u, np.nan)):
        try:
            world.step(state, bad)
        except BadInput:
            continue
        raise AssertionError(f"an action of shape {bad.shape} with values {bad[:2]}... was taken without complaint")


def batched_equals_looped(world: World, action: Array | None = None) -> None:
    """Worlds stepped side by side do bit by bit what they do alone."""
    seeds, u = (0, 1, 2, 3), _action(world, action)
    actions = np.stack([_nearby(u, i) for i in range(len(seeds))])
    alone = [world.reset(seed) for seed in seeds]
    together = stack(alone)
    for _ in range(4):
        alone = [world.step(state, a) for state, a in zip(alone, actions, strict=True)]
        together = world.step(together, actions)
    for i, state in enumerate(alone):
        _same_state(state, take(together, i), f"world {i} alone and in a batch")
        _same_seen(world.observe(state), {k: x[i] for k, x in world.observe(together).items()})


def a_saved_state_goes_on_as_before(world: World, action: Array | None = None) -> None:
    """A copy of a state, stepped later, goes on bit by bit like the original."""
    u = _action(world, action)
    state = world.reset(4)
    for _ in range(3):
        state = world.step(state, u)
    saved = _copy(state)
    for _ in range(3):
        state = world.step(state, u)
    for _ in range(3):
        saved = world.step(saved, u)
    _same_state(state, saved, "a run and its continuation from a saved state")


def place_then_observe_returns_what_was_placed(sim: Simulator, action: Array | None = None) -> None:
    """A placed state has the positions, velocities and time it was given."""
    somewhere = sim.step(sim.reset(3), _action(sim, action))
    placed = sim.place(somewhere.q, somewhere.v, 1.5)
    # A second engine may keep single precision inside; what it reports must still be what was placed.
    assert np.allclose(placed.q, somewhere.q, rtol=0, atol=1e-6), "place changed the positions it was given"
    assert np.allclose(placed.v, somewhere.v, rtol=0, atol=1e-5), "place changed the velocities it was given"
    assert placed.t == 1.5, f"place was given t = 1.5 s and set {placed.t} s"


def placing_many_equals_placing_each(sim: Simulator, action: Array | None = None) -> None:
    """A batch of placed states is the batch of states placed one by one."""
    states = [sim.step(sim.reset(seed), _action(sim, action)) for seed in (0, 1, 2)]
    past = np.stack([np.stack([_nearby(_action(sim, action), i + k) for k in range(3)]) for i in range(3)])
    together = sim.place(np.stack([s.q for s in states]), np.stack([s.v for s in states]), 0.5, past)
    for i, state in enumerate(states):
        _same_state(sim.place(state.q, state.v, 0.5, past[i]), take(together, i), f"placing world {i}")


def a_nudge_is_felt_once(sim: Simulator, action: Array | None = None) -> None:
    """A wrench changes the next step and leaves nothing behind."""
    u, calm = _action(sim, action), sim.reset(0)
    inner: Any = sim
    while not hasattr(inner, "model"):
        inner = inner.world
    bodies = int(inner.model.nbody) - 1
    zero = np.zeros((bodies, 6))
    push = zero.copy()
    push[:, :3], push[:, 3:] = 0.5, 0.05
    _same_state(sim.step(calm, u), sim.step(sim.nudge(calm, zero), u), "a step with and without a nudge of nothing")
    pushed = sim.step(sim.nudge(calm, push), u)
    assert not np.array_equal(pushed.v, sim.step(calm, u).v), "a nudge was not felt"
    _same_state(
        sim.step(pushed, u), sim.step(sim.nudge(pushed, zero), u), "the step after a nudge with its forces cleared"
    )


def tuned_leaves_the_original_alone(sim: Simulator, action: Array | None = None) -> None:
    """Setting a parameter makes another world; the one it came from goes on as before."""
    before = _run(sim, 0, action)
    other = sim.tuned({"option.gravity": 3.0})
    after = _run(sim, 0, action)
    _same(before, after, "a world before and after another was tuned from it")
    assert other.spec.q == sim.spec.q, "tuned changed the meaning of the positions"


WORLD_LAWS: tuple[Callable[..., None], ...] = (
    the_same_seed_gives_the_same_episode,
    step_does_not_change_its_argument,
    step_depends_on_nothing_else,
    time_advances_by_dt,
    numbers_fit_the_spec,
    a_wrong_action_is_refused,
    batched_equals_looped,
    a_saved_state_goes_on_as_before,
)
SIMULATOR_LAWS: tuple[Callable[..., None], ...] = (
    place_then_observe_returns_what_was_placed,
    placing_many_equals_placing_each,
    a_nudge_is_felt_once,
    tuned_leaves_the_original_alone,
)


def _action(world: World, action: Array | None) -> Array:
    return np.asarray(middle(world) if action is None else action, float)


def _nearby(action: Array, i: int) -> Array:
    return action + 0.01 * np.sin(i + np.arange(action.size))


def _run(world: World, seed: int, action: Array | None) -> list[tuple[State, Observation]]:
    state, u = world.reset(seed), _action(world, action)
    rows = [(state, world.observe(state))]
    for i in range(4):
        state = world.step(state, _nearby(u, i))
        rows.append((state, world.observe(state)))
    return rows


def _copy(node: Any) -> Any:
    if isinstance(node, State):
        return State(node.t, node.q.copy(), node.v.copy(), _copy(node.hidden))
    if isinstance(node, dict):
        return {key: _copy(value) for key, value in cast(dict[str, Any], node).items()}
    if isinstance(node, tuple):
        return tuple(_copy(part) for part in cast(tuple[Any, ...], node))
    return np.array(node, copy=True)


def _same(a: list[tuple[State, Observation]], b: list[tuple[State, Observation]], what: str) -> None:
    for (state_a, seen_a), (state_b, seen_b) in zip(a, b, strict=True):
        _same_state(state_a, state_b, what)
        _same_seen(seen_a, seen_b)


def _same_state(a: State, b: State, what: str) -> None:
    assert np.array_equal(a.q, b.q), f"{what} differ in position by {np.abs(a.q - b.q).max()}"
    assert np.array_equal(a.v, b.v), f"{what} differ in velocity by {np.abs(a.v - b.v).max()}"


def _same_seen(a: Observation, b: Observation) -> None:
    assert set(a) == set(b), f"observations differ in their names: {sorted(set(a) ^ set(b))}"
    for name, value in a.items():
        assert np.array_equal(value, b[name]), f"{name} differs between two observations of the same state"
