"""Every task as a Gymnasium environment, alone and as a vector of them in one native call.

    import gymnasium, instep.app.gym_envs
    env = gymnasium.make("instep/PushT-v0")
    envs = gymnasium.make_vec("instep/PushT-v0", num_envs=64, vectorization_mode="vector_entry_point")

The observation is what LeRobot's evaluation expects: `agent_pos`, `environment_state`, `goal`, and `pixels` where
cameras are asked for; `info["is_success"]` is there after every reset and step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from instep.core.errors import BadInput, MissingExtra, UnknownName
from instep.core.reading import is_table
from instep.core.world import Array, State, World, frozen_dataclass, put, stack
from instep.physics.engines import Engine, open_world
from instep.scene.folder import Scene
from instep.scene.tasks import TASKS, task_of
from instep.scene.tasks.task import Tasked

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space
except ImportError:
    raise MissingExtra("Gymnasium", "gym") from None

NAMES = {
    "observation.state": "agent_pos",
    "observation.velocity": "agent_vel",
    "observation.environment_state": "environment_state",
    "observation.goal": "goal",
}
"""Our names of what is seen, and Gymnasium's."""
WIDE = 1e3
"""Bound of observations that have none of their own."""


@frozen_dataclass
class VirtualCameras:
    """Cameras that are rendered from Gaussians, for all worlds of a vector of environments in one call."""

    file: Path
    """a file of virtual cameras (TOML), as of `instep eval --virtual`; `cameras` chooses among them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """where they are rendered."""


class _Shown:
    """What an environment shows and takes: spaces, observations, images."""

    def __init__(
        self, task: str, *, engine: Engine = "mujoco", cameras: Sequence[str] = (), scene: str = "",
        virtual: VirtualCameras | None = None,
    ):  # fmt: skip
        if task not in TASKS:
            raise UnknownName("task", task, TASKS)
        self.scene = Scene.load(scene or TASKS[task].scene)
        self.world: Tasked[World] = Tasked(open_world(self.scene, engine), task_of(self.scene, task))
        self._rendered: Any = None
        if virtual is not None:
            from instep.splat.rendered_world import load_rendered_cameras

            self._rendered = load_rendered_cameras(virtual.file, self.scene, cameras, device=virtual.device)
        for name in cameras if self._rendered is None else ():
            if name not in self.scene.cameras:
                raise UnknownName("camera", name, self.scene.cameras)
        self._cameras: list[Any] = (
            [self.scene.cameras[n] for n in cameras] if self._rendered is None else self._rendered.cameras
        )
        self._open_renderer: Any = None
        model = self.scene.model
        limited = (model.actuator_ctrllimited == 1)[:, None]
        low, high = np.where(limited, model.actuator_ctrlrange, (-WIDE, WIDE)).astype(np.float32).T
        # Motors on a supply also take the gain of their firmware.
        gains = self.world.spec.action.shape[0] - model.nu
        self.action_space = spaces.Box(
            np.append(low, np.zeros(gains, np.float32)), np.append(high, np.full(gains, WIDE, np.float32))
        )
        self.observation_space = self._observations()

    def observe(self, state: State) -> dict[str, Any]:
        """What is seen, copied: an observation shares nothing with the next one."""
        seen: dict[str, Any] = {
            NAMES[name]: np.clip(np.array(value, np.float64), -WIDE, WIDE)
            for name, value in self.world.observe(state).items()
            if name in NAMES
        }
        if self._cameras:
            seen["pixels"] = {camera.name: self._images(state.q, camera) for camera in self._cameras}
        return seen

    def image(self, q: Array) -> Array:
        """The scene by its first camera."""
        if not self.scene.cameras:
            raise BadInput(f"Scene {self.scene.name!r} has no camera to render with.")
        return self._renderer().render(q, next(iter(self.scene.cameras.values())))

    def close(self) -> None:
        """Give the graphics memory back; twice is fine."""
        if self._open_renderer is not None:
            self._open_renderer.close()
            self._open_renderer = None

    def _images(self, q: Array, camera: Any) -> Array:
        if self._rendered is not None:
            from instep.splat.rendering import scene_poses

            layers = self._rendered.layers
            return layers.render_batch(camera, scene_poses(self.scene, layers.gaussians.names, q))
        flat = q.reshape(-1, q.shape[-1])
        images = np.stack([self._renderer().render(row, camera) for row in flat])
        return images.reshape(*q.shape[:-1], *images.shape[1:])

    def _renderer(self) -> Any:
        # Graphics are opened when first needed: a vector of environments forks before that.
        if self._open_renderer is None:
            from instep.physics.mujoco_cameras import MujocoRenderer

            self._open_renderer = MujocoRenderer(self.scene)
        return self._open_renderer

    def _observations(self) -> spaces.Dict:
        boxes: dict[str, spaces.Space[Any]] = {
            NAMES[name]: spaces.Box(-WIDE, WIDE, channel.shape, np.float64)
            for name, channel in self.world.spec.observation.items()
            if name in NAMES
        }
        if self._cameras:
            shapes: dict[str, spaces.Space[Any]] = {
                c.name: spaces.Box(0, 255, (c.height, c.width, 3), np.uint8) for c in self._cameras
            }
            boxes["pixels"] = spaces.Dict(shapes)
        return spaces.Dict(boxes)


class InstepVectorEnv(gymnasium.vector.VectorEnv[dict[str, Any], Array, Array]):
    """Many worlds with a task, stepped in one native call; `options` are those of `InstepEnv`."""

    def __init__(
        self, task: str, num_envs: int = 1, *, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **options: Any,
    ):  # fmt: skip
        self.shown = _Shown(task, **options)
        self.world, self.num_envs, self._mode = self.shown.world, num_envs, AutoresetMode(autoreset_mode)
        if self._mode == AutoresetMode.SAME_STEP:
            raise BadInput("Worlds begin anew in the next step (NEXT_STEP), or by a reset with a mask (DISABLED).")
        rate = round(1 / self.world.spec.dt)
        self.metadata = {**type(self).metadata, "autoreset_mode": self._mode, "render_fps": rate}
        self.single_observation_space = self.shown.observation_space
        self.single_action_space = self.shown.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.task, self.task_description = task, self.world.task.text
        self._max_episode_steps = self.world.steps
        self.state: State | None = None
        self._steps, self._ended = np.zeros(num_envs, int), np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode in every world, or in those of `options["reset_mask"]`."""
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool)), bool)
        if isinstance(seed, int):
            super().reset(seed=seed)
            seed = [seed + i for i in range(self.num_envs)]
        self._restart(np.flatnonzero(mask), seed)
        return self._seen(), self.info()

    def step(self, actions: Array) -> tuple[dict[str, Any], Array, Array, Array, dict[str, Any]]:
        """Go on by one control period in every world; those that ended begin anew where the autoreset mode says so."""
        if self.state is None:
            raise BadInput("An episode begins with reset; step came before it.")
        anew = self._ended & (self._mode == AutoresetMode.NEXT_STEP)
        self.state = self.world.step(self.state, np.array(actions, float))
        self._steps += 1
        if anew.any():
            self._restart(np.flatnonzero(anew), None)
        over, reward = np.array(self.world.done(self.state)), np.array(self.world.score(self.state), float)
        reward[anew] = 0.0
        late = (self._steps >= self._max_episode_steps) & ~over
        self._ended = over | late
        return self._seen(), reward, over, late, self.info()

    def close_extras(self, **kwargs: Any) -> None:
        """Give the graphics memory back."""
        self.shown.close()

    def _restart(self, rows: Array, seeds: Sequence[int | None] | None) -> None:
        given = [None if seeds is None else seeds[int(i)] for i in rows]
        if given:
            fresh = stack([self.world.reset(int(self.np_random.integers(2**31)) if s is None else s) for s in given])
            whole = self.state is None or len(rows) == self.num_envs
            self.state = fresh if whole or self.state is None else put(self.state, rows, fresh)
        self._steps[rows], self._ended[rows] = 0, False

    def _seen(self) -> dict[str, Any]:
        return {} if self.state is None else self.shown.observe(self.state)

    def info(self) -> dict[str, Any]:
        """Success and the number of events reached, of each world."""
        if self.state is None:
            return {}
        every, reached = np.ones(self.num_envs, bool), self.world.reached(self.state)
        found = {"is_success": np.array(self.world.success(self.state)), "events": np.asarray(reached.sum(axis=-1))}
        return {**found, **{f"_{name}": every.copy() for name in found}}


class InstepEnv(gymnasium.Env[dict[str, Any], Array]):
    """One world with a task: a vector of one."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012, Gymnasium's own way

    def __init__(self, task: str, *, render_mode: str | None = None, **options: Any):
        """`options`: engine, cameras, scene (another one than the task's), virtual."""
        self._one = one = InstepVectorEnv(task, 1, autoreset_mode=AutoresetMode.DISABLED, **options)
        self._world, self._shown = one.world, one.shown
        self.observation_space, self.action_space = one.shown.observation_space, one.shown.action_space
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": one.metadata["render_fps"]}
        self.render_mode, self.task, self.task_description = render_mode, task, one.task_description
        self._max_episode_steps, self._step = one.world.steps, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; the same seed gives the same start."""
        super().reset(seed=seed)
        self._step = 0
        seen, _ = self._one.reset(seed=[int(self.np_random.integers(2**31)) if seed is None else seed])
        return _first(seen), self._info()

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Go on by one control period."""
        seen, reward, over, _, _ = self._one.step(np.asarray(action, float)[None])
        self._step += 1
        late = self._step >= self._max_episode_steps and not over[0]
        return _first(seen), float(reward[0]), bool(over[0]), late, self._info()

    def render(self) -> Array | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """An image by the scene's first camera."""
        state = self._one.state
        return None if self.render_mode != "rgb_array" or state is None else self._shown.image(state.q[0])

    def close(self) -> None:
        """Give the graphics memory back."""
        self._one.close()

    def _info(self) -> dict[str, Any]:
        state, task = self._one.state, self._world
        which = -1 if state is None else int(np.asarray(task.failure(state))[0])
        info = {name: values[0].item() for name, values in self._one.info().items() if not name.startswith("_")}
        return {**info, "failure": task.task.failures[which] if which >= 0 else ""}


def register() -> None:
    """Register every task with Gymnasium; done when this file is imported."""
    for name, entry in TASKS.items():
        identity = f"instep/{entry.title}-v0"
        if identity not in gymnasium.registry:
            cast(Any, gymnasium).register(
                identity,
                entry_point="instep.app.gym_envs:InstepEnv",
                vector_entry_point="instep.app.gym_envs:InstepVectorEnv",
                kwargs={"task": name},
            )


def _first(tree: Any) -> Any:
    return {name: _first(value) for name, value in tree.items()} if is_table(tree) else np.array(tree[0])


register()
