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
from instep.core.world import Array, Observation, State, World, frozen_dataclass, put, stack
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
        self, task: str, engine_name: Engine, cameras: Sequence[str], scene: str, virtual: VirtualCameras | None
    ):
        if task not in TASKS:
            raise UnknownName("task", task, TASKS)
        self.scene = Scene.load(scene or TASKS[task].scene)
        self.world: Tasked[World] = Tasked(open_world(self.scene, engine_name), task_of(self.scene, task))
        self._rendered: Any = None
        if virtual is not None:
            from instep.splat.rendered_world import load_rendered_cameras

            self._rendered = load_rendered_cameras(virtual.file, self.scene, cameras, device=virtual.device)
        self._cameras = [self._camera(name) for name in cameras] if self._rendered is None else self._rendered.cameras
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
            NAMES[name]: np.clip(np.array(value, np.float64), -WIDE, WIDE) for name, value in self._seen(state).items()
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

    def _seen(self, state: State) -> Observation:
        return {name: value for name, value in self.world.observe(state).items() if name in NAMES}

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

    def _camera(self, name: str) -> Any:
        if name not in self.scene.cameras:
            raise UnknownName("camera", name, self.scene.cameras)
        return self.scene.cameras[name]

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


class InstepEnv(gymnasium.Env[dict[str, Any], Array]):
    """One world with a task."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012, Gymnasium's own way

    def __init__(
        self, task: str, *, engine: Engine = "mujoco", cameras: Sequence[str] = (), scene: str = "",
        virtual: VirtualCameras | None = None, render_mode: str | None = None,
    ):  # fmt: skip
        self._shown = _Shown(task, engine, cameras, scene, virtual)
        self._world, self._state = self._shown.world, None
        self.observation_space, self.action_space = self._shown.observation_space, self._shown.action_space
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / self._world.spec.dt)}
        self.render_mode = render_mode
        self.task, self.task_description = task, self._world.task.text
        self._max_episode_steps = self._world.steps
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; the same seed gives the same start."""
        super().reset(seed=seed)
        start = int(self.np_random.integers(2**31)) if seed is None else seed
        self._state, self._step = self._world.reset(start), 0
        return self._shown.observe(self._state), self._info()

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Go on by one control period."""
        if self._state is None:
            raise BadInput("An episode begins with reset; step came before it.")
        self._state, self._step = self._world.step(self._state, np.asarray(action, float)), self._step + 1
        reward = float(self._world.score(self._state))
        over = bool(self._world.done(self._state))
        late = self._step >= self._max_episode_steps and not over
        return self._shown.observe(self._state), reward, over, late, self._info()

    def render(self) -> Array | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """An image by the scene's first camera."""
        if self.render_mode != "rgb_array" or self._state is None:
            return None
        return self._shown.image(self._state.q)

    def close(self) -> None:
        """Give the graphics memory back."""
        self._shown.close()

    def _info(self) -> dict[str, Any]:
        if self._state is None:
            return {}
        which = int(self._world.failure(self._state))
        failure = self._world.task.failures[which] if which >= 0 else ""
        reached = int(self._world.reached(self._state).sum())
        return {"is_success": bool(self._world.success(self._state)), "failure": failure, "events": reached}


class InstepVectorEnv(gymnasium.vector.VectorEnv[dict[str, Any], Array, Array]):
    """Many worlds with a task, stepped in one native call."""

    def __init__(
        self, task: str, num_envs: int = 1, *, engine: Engine = "mujoco", cameras: Sequence[str] = (), scene: str = "",
        virtual: VirtualCameras | None = None, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ):  # fmt: skip
        self._shown = _Shown(task, engine, cameras, scene, virtual)
        self._world, self.num_envs = self._shown.world, num_envs
        self._mode = AutoresetMode(autoreset_mode)
        self.metadata = {
            **type(self).metadata,
            "autoreset_mode": self._mode,
            "render_fps": round(1 / self._world.spec.dt),
        }
        self.single_observation_space = self._shown.observation_space
        self.single_action_space = self._shown.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.task, self.task_description = task, self._world.task.text
        self._max_episode_steps = self._world.steps
        self._state: State | None = None
        self._steps = np.zeros(num_envs, int)
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode in every world, or in those of `options["reset_mask"]`."""
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool)), bool)
        if isinstance(seed, int):
            super().reset(seed=seed)
            seeds: list[int | None] = [seed + i for i in range(self.num_envs)]
        else:
            seeds = [None] * self.num_envs if seed is None else list(seed)
        self._restart(np.flatnonzero(mask), seeds)
        return self._seen(), self._info()

    def step(self, actions: Array) -> tuple[dict[str, Any], Array, Array, Array, dict[str, Any]]:
        """Go on by one control period in every world; those that ended begin anew, as the autoreset mode says."""
        if self._state is None:
            raise BadInput("An episode begins with reset; step came before it.")
        actions = np.array(actions, float)
        anew = self._ended & (self._mode == AutoresetMode.NEXT_STEP)
        self._state = self._world.step(self._state, actions)
        self._steps += 1
        if anew.any():
            self._restart(np.flatnonzero(anew), [None] * self.num_envs)
        over, reward = np.array(self._world.done(self._state)), np.array(self._world.score(self._state), float)
        reward[anew] = 0.0
        late = (self._steps >= self._max_episode_steps) & ~over
        self._ended = over | late
        info = self._info()
        if self._mode == AutoresetMode.SAME_STEP and self._ended.any():
            info = self._final(info)
            self._restart(np.flatnonzero(self._ended), [None] * self.num_envs)
            self._ended = np.zeros(self.num_envs, bool)
        return self._seen(), reward, over, late, info

    def close_extras(self, **kwargs: Any) -> None:
        """Give the graphics memory back."""
        self._shown.close()

    def _restart(self, rows: Array, seeds: Sequence[int | None]) -> None:
        chosen = [int(self.np_random.integers(2**31)) if s is None else s for s in (seeds[int(i)] for i in rows)]
        fresh = stack([self._world.reset(seed) for seed in chosen]) if len(rows) else None
        if self._state is None or len(rows) == self.num_envs:
            self._state = fresh
        elif fresh is not None:
            self._state = put(self._state, rows, fresh)
        self._steps[rows], self._ended[rows] = 0, False

    def _seen(self) -> dict[str, Any]:
        return {} if self._state is None else self._shown.observe(self._state)

    def _info(self) -> dict[str, Any]:
        if self._state is None:
            return {}
        every = np.ones(self.num_envs, bool)
        events = np.asarray(self._world.reached(self._state).sum(axis=-1))
        success = np.array(self._world.success(self._state))
        return {"is_success": success, "_is_success": every, "events": events, "_events": every.copy()}

    def _final(self, info: dict[str, Any]) -> dict[str, Any]:
        """The last observation and info of the worlds that ended, before they begin anew."""
        ended, seen = self._ended.copy(), self._seen()
        last = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(ended):
            last[i] = _row(seen, int(i))
        final: dict[str, Any] = {
            k: np.where(ended, v, np.zeros_like(v)) if not k.startswith("_") else ended for k, v in info.items()
        }
        return {**info, "final_obs": last, "_final_obs": ended, "final_info": final, "_final_info": ended.copy()}


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


def _row(tree: Any, i: int) -> Any:
    return {k: _row(v, i) for k, v in tree.items()} if is_table(tree) else np.array(tree[i])


register()
