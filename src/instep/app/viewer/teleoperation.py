"""Robots in the viewer: a simulated one that the page moves, a real one that follows it, and one behind a link."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.poses import matrix_from_quat, normalized
from instep.core.reading import is_mapping
from instep.core.world import Array, State, array_dataclass
from instep.physics.engines import open_world
from instep.policy.push_expert import EndEffector, rotation_between
from instep.robot.link import LinkSession, LiveConnection, RobotWorld
from instep.scene.folder import Scene

from .messages import (
    IMAGES,
    Level,
    LiveRow,
    PositionMap,
    all_poses,
    channel_names,
    encode,
    image_message,
    live_track,
    scene_message,
    status_message,
)
from .showing import finite_numbers
from .view_server import ViewContent, ViewServer, running_beside

TRACK, FOLLOWER_TRACK = "robot", "real"
RATE = 60.0
"""Most rows per second that are shown [Hz]."""
GRAB_TIMEOUT_S = 0.3
"""Time without a word from the page after which a simulated robot stops [s]."""
MAX_SPEED = 1.5
"""Largest speed of a commanded joint [rad/s or m/s]."""
GAIN = 8.0
"""How fast an end effector approaches its target [1/s]."""
FREE_JOINTS = 6
"""An arm with so many joints takes the orientation of the hand too."""
BEGIN_TIMEOUT_S = 2.0
"""Time within which the simulated robot must go to where a robot is [s]."""
Publish = Callable[[Mapping[str, LiveRow], Mapping[str, bytes]], None]


@array_dataclass
class Grab:
    """Where an end effector shall be."""

    tip: int
    place: Array
    """[3] [m]."""
    frame: Array | None
    """Orientation [3, 3]; None where any will do."""
    at: float
    """When the page said so [s]."""


class TeleopContent(ViewContent):
    """A simulated robot in its scene that can be grabbed in the page."""

    def __init__(self, scene: Scene, real: FollowingRobot | None = None):
        self._scene, self._world, self._real = scene, open_world(scene), real
        self._scale = _commands_per_position(scene.model)
        self._arms = [arm for name in scene.tips if (arm := self._arm(name)) is not None]
        if not self._arms:
            raise BadInput(f"Scene {scene.name!r} names no end effector that position servos move; add 'tip' to it.")
        self._grab: Grab | None = None
        self._begin: Mapping[str, float] | None = None
        self._begun = threading.Event()
        self.action = scene.rest_action()
        self.t = 0.0

    def _arm(self, tip: str) -> EndEffector | None:
        """The end effector with the servo joints that move it; None where there are none."""
        model = self._scene.model
        chain, body = set[int](), int(model.site_bodyid[model.site(tip).id])
        while body:
            chain.add(body)
            body = int(model.body_parentid[body])
        driven = {place for place, _ in self._scale.values()}
        moving = [j for j in range(model.njnt) if int(model.jnt_bodyid[j]) in chain]
        joints = tuple(model.joint(j).name for j in moving if int(model.jnt_qposadr[j]) in driven)
        return EndEffector.of(self._scene, tip, joints) if joints else None

    def opening(self) -> Sequence[bytes]:
        """The scene and its live tracks."""
        spec, real = self._scene.spec, self._real
        channels = [*channel_names(spec.q, ""), *channel_names(spec.action, "action")]
        label = "robot" if real is None else "simulated robot"
        tracks = [live_track(TRACK, label, channels, offset=[0, 0, 0]), *([] if real is None else [real.track()])]
        info = {
            "title": self._scene.name, "images": list[str](), "grab": True, "arm": real is not None,
            "subtitle": "drag the ring of an end effector, double-click where it shall go, or grab it in VR",
        }  # fmt: skip
        return [scene_message(self._scene), *tracks, encode("info", info)]

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """A new target of an end effector, its release, or whether the robot is armed."""
        given = request.get("grab")
        if "arm" in request and self._real is not None:
            self._real.tell(request["arm"])
        if is_mapping(given):
            self._grab = None  # a request that is refused lets go
            tip, turn, frame = given.get("tip", 0), given.get("turn"), None
            if not isinstance(tip, int) or not 0 <= tip < len(self._arms):
                raise BadInput(f"There is no end effector {tip!r}; there are {len(self._arms)}.")
            if turn is not None:
                quat = finite_numbers(turn, 4, "A turn (quaternion w x y z)")
                frame = matrix_from_quat(normalized(quat)) if np.linalg.norm(quat) > 1e-6 else None
            self._grab = Grab(tip, finite_numbers(given.get("place"), 3, "A place [m]"), frame, time.monotonic())
        elif "release" in request:
            self._grab = None
        return ()

    @contextmanager
    def running(self, server: ViewServer) -> Generator[None]:
        """Simulate in real time and show it, in a thread, until the context ends; a robot follows in another."""
        real = self._real
        follower = nullcontext() if real is None else running_beside(lambda over: real.run(over, self, server.publish))
        with follower, running_beside(lambda over: self._run(server, over)):
            yield

    def begin_at(self, positions: Mapping[str, float]) -> None:
        """Go to positions by label at once, and stay there until something is grabbed."""
        self._begun = begun = threading.Event()
        self._begin = positions
        if not begun.wait(BEGIN_TIMEOUT_S):
            raise LinkLost("The simulated robot stands still; open the page again.")

    def _run(self, server: ViewServer, over: threading.Event) -> None:
        state = self._world.reset(0)
        begin, shown = time.monotonic(), 0.0
        commanded = state.q.copy()
        while not over.wait(max(0.0, begin + state.t - time.monotonic())):
            behind = time.monotonic() - begin - state.t
            if behind > 0.5:  # a machine that was asleep or too slow does not race to catch up
                begin += behind
            if self._begin is not None:
                state = self._placed(state, self._begin)
                commanded = state.q.copy()
            self.action = self.command(commanded, self.action)
            state = self._world.step(state, self.action)
            self.t = float(state.t)
            if state.t - shown >= 1 / RATE:
                shown, poses = self.t, all_poses(self._scene.model, state.q)
                server.publish({TRACK: LiveRow(self.t, poses, np.concatenate([state.q, self.action]))})

    def _placed(self, state: State, positions: Mapping[str, float]) -> State:
        """The state at some positions; servos hold them."""
        q, labels = state.q.copy(), self._scene.spec.q.labels
        for label in positions.keys() & set(labels):
            q[labels.index(label)] = positions[label]
        self._grab = self._begin = None
        self.action = self._holding(q, np.array(self.action), range(len(q)))
        self._begun.set()
        return self._world.place(q, np.zeros_like(state.v), float(state.t), self.action[None])

    def _holding(self, q: Array, action: Array, joints: Container[int]) -> Array:
        """The action whose servos of some joints hold positions."""
        out = np.array(action)
        for actuator, (place, scale) in self._scale.items():
            if place in joints:
                out[actuator] = scale * q[place]
        return out

    def command(self, commanded: Array, action: Array) -> Array:
        """The next action; `commanded` are the positions [nq] that it stands for, moved towards what is grabbed."""
        grab = self._grab
        if grab is None or time.monotonic() - grab.at > GRAB_TIMEOUT_S:
            return action
        arm, dt = self._arms[grab.tip], self._world.spec.dt
        place, frame, jacobian = arm.kinematics(commanded)
        move, most = min(1.0, GAIN * dt) * (grab.place - place), MAX_SPEED * dt
        if grab.frame is None or len(arm.joints) < FREE_JOINTS:
            step = arm.step(jacobian[:3], move, np.zeros(0))
        else:
            step = arm.step(jacobian, move, min(1.0, GAIN * dt) * rotation_between(frame, grab.frame))
        step *= min(1.0, most / max(1e-9, float(np.abs(step).max())))
        commanded[arm.joints] = np.clip(commanded[arm.joints] + step, arm.low, arm.high)
        return self._holding(commanded, action, arm.joints)


def _commands_per_position(model: mujoco.MjModel) -> dict[int, tuple[int, float]]:
    """Position servos: actuator -> place of its joint in q, and command per unit of position."""
    found: dict[int, tuple[int, float]] = {}
    for u in range(model.nu):
        gain, bias = float(model.actuator_gainprm[u, 0]), float(model.actuator_biasprm[u, 1])
        if model.actuator_trntype[u] == mujoco.mjtTrn.mjTRN_JOINT and gain and bias:
            place = int(model.jnt_qposadr[int(model.actuator_trnid[u, 0])])
            found[u] = place, -bias / gain * float(model.actuator_gear[u, 0])
    return found


ARM_TIMEOUT_S = 1.0
"""Time without a word from the page that armed a robot after which it is sent nothing more [s]; the simulated robot
stops sooner where the page falls silent while it holds an end effector."""
IDLE_S = 0.05
"""Time between looks at a robot that is not armed [s]."""
NOT_ARMED = "Not armed: the robot does not follow."


class FollowingRobot:
    """A robot that is sent the actions of a simulated one while it is armed."""

    def __init__(self, address: str, token: str, scene: Scene):
        self._scene, self._world = scene, RobotWorld(address, token)
        labels = self._world.spec.action.labels
        missing = [label for label in labels if label not in scene.spec.action.labels]
        if missing:
            self._world.close()
            words = f"The robot takes {', '.join(missing)}, which scene {scene.name!r} does not"
            raise BadInput(f"{words}; give the scene of this robot.")
        self._columns = [scene.spec.action.labels.index(label) for label in labels]
        self._positions = PositionMap.of(scene, self._world.spec.q.labels, "The robot")
        self._press = self._ended = 0
        self._told = -math.inf

    def track(self) -> bytes:
        """The track of the robot: a ghost beside the simulated one."""
        spec = self._world.spec
        channels = [*channel_names(spec.q, "real"), *channel_names(spec.action, "real action")]
        return live_track(FOLLOWER_TRACK, "real robot", channels, role="ghost")

    @property
    def armed(self) -> bool:
        """Whether a page says so, and did a moment ago."""
        return self._press != self._ended and time.monotonic() - self._told < ARM_TIMEOUT_S

    def tell(self, press: object) -> None:
        """A page says that the robot is armed, by the number of the press of its button; 0 where it is no longer."""
        if not isinstance(press, int) or isinstance(press, bool):
            raise BadInput("A page arms a robot by the number of a press.")
        if press and self.armed and press != self._press:
            raise BadInput("Another page has armed this robot; let go there first.")
        self._press, self._told = (press, time.monotonic()) if press else (self._ended, -math.inf)

    def run(self, over: threading.Event, leader: TeleopContent, publish: Publish) -> None:
        """Follow while armed, and show where the robot is, until the event is set."""

        def say(text: str, level: Level) -> None:
            publish({}, {"status": status_message(text, level, ended=self._ended)})

        say(NOT_ARMED, "info")
        shown = -math.inf
        try:
            while not over.wait(IDLE_S):
                try:
                    if self.armed:
                        say("The robot goes to its start.", "warn")
                        self._follow(over, leader, publish, lambda: say("Armed: the robot follows.", "warn"))
                        self._ended = self._press
                        say(NOT_ARMED, "info")
                    state = self._world.latest()
                except InstepError as error:
                    self._ended = self._press  # it is armed again by another press only
                    say(str(error), "bad")
                    over.wait(1.0)
                    continue
                if state.t != shown:
                    shown = float(state.t)
                    publish({FOLLOWER_TRACK: self._row(state, leader.t)}, {})
        finally:
            self._world.close()

    def _follow(
        self, over: threading.Event, leader: TeleopContent, publish: Publish, begun: Callable[[], None]
    ) -> None:
        """Reset the robot, take the simulated one to where it is, and send its actions while armed."""
        state, period = self._world.reset(0), self._world.spec.dt
        leader.begin_at(dict(zip(self._world.spec.q.labels, map(float, state.q), strict=True)))
        begun()
        shown = -math.inf
        while self.armed and not over.is_set():
            began = time.monotonic()
            state = self._world.step(state, leader.action[self._columns])
            if time.monotonic() - shown >= 1 / RATE:
                shown = time.monotonic()
                publish({FOLLOWER_TRACK: self._row(state, leader.t)}, {})
            if self._world.pace == "step":  # it moves as fast as it is asked to
                over.wait(max(0.0, began + period - time.monotonic()))

    def _row(self, state: State, t: float) -> LiveRow:
        poses = all_poses(self._scene.model, self._positions(state.q))
        return LiveRow(t, poses, np.concatenate([state.q, state.hidden["link"]["sent"]]))


CONNECT_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0
"""Time within which a robot must say that it has stopped [s]."""


class RobotContent(ViewContent):
    """The newest state of a robot in a scene; the link is opened again where it breaks."""

    def __init__(self, address: str, token: str, scene: Scene, *, may_stop: bool = False):
        self._address, self._scene, self._may_stop = address, scene, may_stop
        self._session = LinkSession(address, token, "watch")
        try:
            self._spec = self._session.wait(CONNECT_TIMEOUT_S).hello.spec
            self._positions = PositionMap.of(scene, self._spec.q.labels, "The robot")
        except BaseException:
            self._session.close()
            raise
        self._stamps: dict[str, float] = {}

    def opening(self) -> Sequence[bytes]:
        """The scene and its live track."""
        channels = [*channel_names(self._spec.q, ""), *channel_names(self._spec.action, "action")]
        cameras = [name.removeprefix(IMAGES) for name in self._spec.observation if name.startswith(IMAGES)]
        info = {
            "title": self._scene.name, "subtitle": f"robot at {self._address}", "images": cameras,
            "stop": self._may_stop,
        }  # fmt: skip
        return [scene_message(self._scene), encode("info", info), live_track(TRACK, "robot", channels)]

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """A page asks nothing of a robot but to stop, where that is allowed."""
        if "stop" not in request:
            return ()
        if not self._may_stop:
            raise BadInput("This page may not stop the robot; open it with --allow-stop.")
        self._session.stop(STOP_TIMEOUT_S)  # raises, and the page says so, where the robot does not confirm it
        return [status_message("The robot has stopped; make it safe, then reset it.", "bad")]

    @contextmanager
    def running(self, server: ViewServer) -> Generator[None]:
        """Show the robot until the context ends."""
        try:
            with running_beside(lambda over: self._run(server, over)):
                yield
        finally:
            self._session.close()

    def _run(self, server: ViewServer, over: threading.Event) -> None:
        shown, said = (0, -1), b""
        while not over.wait(1 / RATE):
            rows, messages = dict[str, LiveRow](), dict[str, bytes]()
            try:
                live = self._session.wait(1.0)
            except InstepError as error:
                status = status_message(str(error), "bad")
            else:
                mode, reason = live.report.mode, live.report.reason
                status = status_message(f"{mode}: {reason}" if reason else str(mode), "warn" if reason else "info")
                if (live.report.episode, live.report.tick) != shown:
                    shown = live.report.episode, live.report.tick
                    poses = all_poses(self._scene.model, self._positions(live.report.q))
                    values = np.concatenate([live.report.q, live.report.sent])
                    rows, messages = {TRACK: LiveRow(float(live.report.t), poses, values)}, self._images(live)
            if status != said:
                messages["status"] = said = status
            server.publish(rows, messages)

    def _images(self, live: LiveConnection) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, image in live.report.seen.items():
            stamp = live.report.stamps.get(name, live.report.t)
            if name.startswith(IMAGES) and self._stamps.get(name) != stamp:
                self._stamps[name] = stamp
                camera = name.removeprefix(IMAGES)
                found[camera] = image_message(camera, camera, float(live.report.t), np.asarray(image, np.uint8))
        return found
