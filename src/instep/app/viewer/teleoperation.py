"""Robots in the viewer: a simulated one that the page moves, a real one that follows it, and one behind a link."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import mujoco
import numpy as np

from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.poses import matrix_from_quat, normalized
from instep.core.reading import is_mapping, is_sequence
from instep.core.world import Array, State, array_dataclass
from instep.physics.engines import open_world
from instep.policy.push_expert import EndEffector, rotation_between
from instep.robot.link import LinkSession, LiveConnection, RobotWorld
from instep.scene.folder import Scene

from .contents import IMAGES
from .messages import encode, image_message
from .tracks import channel_names, live_row, scene_message
from .view_server import LiveRow, ViewServer, running_beside

FOLLOWER_TRACK = "real"
ARM_TIMEOUT_S = 1.0
"""Time without a word from the page that armed a robot after which it is sent nothing more [s]; the simulated robot
stops sooner where the page falls silent while it holds an end effector."""
IDLE_S = 0.05
"""Time between looks at a robot that is not armed [s]."""
SHOWN_HZ = 60.0
NOT_ARMED = "Not armed: the robot does not follow."


class Leader(Protocol):
    """The simulated robot that is followed."""

    @property
    def action(self) -> Array:
        """Its newest action."""
        ...

    @property
    def t(self) -> float:
        """Its time [s]."""
        ...

    def begin_at(self, positions: Mapping[str, float]) -> None:
        """Go to positions by label at once, and stay there."""
        ...


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
        self._start = scene.start(0)[0]
        self._press = self._ended = 0
        self._told = -math.inf

    @property
    def header(self) -> dict[str, Any]:
        """The track of the robot: a ghost beside the simulated one."""
        spec = self._world.spec
        channels = [*channel_names(spec.q, "real"), *channel_names(spec.action, "real action")]
        return {"id": FOLLOWER_TRACK, "label": "real robot", "role": "ghost", "live": True, "channels": channels}

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

    def run(
        self,
        over: threading.Event,
        leader: Leader,
        publish: Callable[[Mapping[str, LiveRow], Mapping[str, bytes]], None],
    ) -> None:
        """Follow while armed, and show where the robot is, until the event is set."""

        def say(text: str, level: str) -> None:
            publish({}, {"status": encode("status", {"text": text, "level": level, "ended": self._ended})})

        say(NOT_ARMED, "info")
        shown = -math.inf
        try:
            while not over.wait(IDLE_S):
                try:
                    if self.armed:
                        self._follow(over, leader, publish, say)
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
        self,
        over: threading.Event,
        leader: Leader,
        publish: Callable[[Mapping[str, LiveRow], Mapping[str, bytes]], None],
        say: Callable[[str, str], None],
    ) -> None:
        """Reset the robot, take the simulated one to where it is, and send its actions while armed."""
        say("The robot goes to its start.", "warn")
        state, period = self._world.reset(0), self._world.spec.dt
        leader.begin_at(dict(zip(self._world.spec.q.labels, map(float, state.q), strict=True)))
        say("Armed: the robot follows.", "warn")
        shown = -math.inf
        while self.armed and not over.is_set():
            began = time.monotonic()
            state = self._world.step(state, leader.action[self._columns])
            if time.monotonic() - shown >= 1 / SHOWN_HZ:
                shown = time.monotonic()
                publish({FOLLOWER_TRACK: self._row(state, leader.t)}, {})
            if self._world.pace == "step":  # it moves as fast as it is asked to
                over.wait(max(0.0, began + period - time.monotonic()))

    def _row(self, state: State, t: float) -> LiveRow:
        labels, q = self._scene.spec.q.labels, self._start.copy()
        for label, value in zip(self._world.spec.q.labels, state.q, strict=True):
            if label in labels:
                q[labels.index(label)] = value
        return live_row(self._scene, t, q, np.concatenate([state.q, state.hidden["link"]["sent"]]))


TRACK = "robot"
GRAB_TIMEOUT_S = 0.3
"""Time without a word from the page after which a robot stops [s]."""
MAX_SPEED = 1.5
"""Largest speed of a commanded joint [rad/s or m/s]."""
GAIN = 8.0
"""How fast an end effector approaches its target [1/s]."""
FREE_JOINTS = 6
"""An arm with so many joints takes the orientation of the hand too."""
BEGIN_TIMEOUT_S = 2.0
"""Time within which the simulated robot must go to where a robot is [s]."""


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


class TeleopContent:
    """A simulated robot in its scene that can be grabbed in the page."""

    gaussians = False

    def __init__(self, scene: Scene, real: FollowingRobot | None = None):
        self._scene, self._world, self._real = scene, open_world(scene), real
        self._arms = [arm for name in scene.tips if (arm := _arm(scene, name)) is not None]
        if not self._arms:
            raise BadInput(f"Scene {scene.name!r} names no end effector that position servos move; add 'tip' to it.")
        self._scale = _commands_per_position(scene.model)
        self._grab: Grab | None = None
        self._begin: Mapping[str, float] | None = None
        self._begun = threading.Event()
        self.action = scene.rest_action()
        self.t = 0.0

    def opening(self) -> Sequence[bytes]:
        """The scene and its live track."""
        channels = [*channel_names(self._scene.spec.q, ""), *channel_names(self._scene.spec.action, "action")]
        header: dict[str, Any] = {
            "id": TRACK, "label": "robot" if self._real is None else "simulated robot", "role": "main", "live": True,
            "channels": channels, "offset": [0, 0, 0],
        }  # fmt: skip
        words = "drag the ring of an end effector, double-click where it shall go, or grab it in VR"
        info = {
            "title": self._scene.name, "subtitle": words, "images": list[str](), "grab": True,
            "arm": self._real is not None,
        }  # fmt: skip
        tracks = [header] if self._real is None else [header, self._real.header]
        return [scene_message(self._scene), *(encode("track", track) for track in tracks), encode("info", info)]

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """A new target of an end effector, its release, or whether the robot is armed."""
        given = request.get("grab")
        if "arm" in request and self._real is not None:
            self._real.tell(request["arm"])
        if is_mapping(given):
            self._grab = _grab(given, len(self._arms))
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
                state, commanded = self._placed(state, self._begin)
            self.action = self.command(commanded, self.action)
            state = self._world.step(state, self.action)
            self.t = float(state.t)
            if state.t - shown >= 1 / SHOWN_HZ:
                shown = self.t
                values = np.concatenate([state.q, self.action])
                server.publish({TRACK: live_row(self._scene, self.t, state.q, values)})

    def _placed(self, state: State, positions: Mapping[str, float]) -> tuple[State, Array]:
        """The state and commanded positions at some positions; servos hold them."""
        q, labels = state.q.copy(), self._scene.spec.q.labels
        for label, value in positions.items():
            if label in labels:
                q[labels.index(label)] = value
        self._grab = self._begin = None
        action = np.array(self.action)
        for actuator, (place_in_q, scale) in self._scale.items():
            action[actuator] = scale * q[place_in_q]
        self.action = action
        self._begun.set()
        return self._world.place(q, np.zeros_like(state.v), float(state.t), action[None]), q.copy()

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
        following = np.array(action)
        for actuator, (place_in_q, scale) in self._scale.items():
            if place_in_q in arm.joints:
                following[actuator] = scale * commanded[place_in_q]
        return following


def _arm(scene: Scene, tip: str) -> EndEffector | None:
    """The end effector with the servo joints that move it; None where there are none."""
    model = scene.model
    chain, body = set[int](), int(model.site_bodyid[model.site(tip).id])
    while body:
        chain.add(body)
        body = int(model.body_parentid[body])
    places = {place for place, _ in _commands_per_position(model).values()}
    joints = tuple(
        model.joint(j).name
        for j in range(model.njnt)
        if int(model.jnt_bodyid[j]) in chain and int(model.jnt_qposadr[j]) in places
    )
    return EndEffector.of(scene, tip, joints) if joints else None


def _commands_per_position(model: mujoco.MjModel) -> dict[int, tuple[int, float]]:
    """Position servos: actuator -> place of its joint in q, and command per unit of position."""
    found: dict[int, tuple[int, float]] = {}
    for u in range(model.nu):
        gain, bias = float(model.actuator_gainprm[u, 0]), float(model.actuator_biasprm[u, 1])
        on_joint = model.actuator_trntype[u] == mujoco.mjtTrn.mjTRN_JOINT
        if on_joint and gain and bias:
            joint = int(model.actuator_trnid[u, 0])
            found[u] = int(model.jnt_qposadr[joint]), -bias / gain * float(model.actuator_gear[u, 0])
    return found


def _grab(given: Mapping[Any, Any], arms: int) -> Grab | None:
    """What a page wants; None where it is not a pose of finite numbers."""
    tip, place, turn = given.get("tip", 0), _numbers(given.get("place"), 3), _numbers(given.get("turn"), 4)
    if place is None or not isinstance(tip, int) or not 0 <= tip < arms:
        return None
    frame = None
    if turn is not None and np.linalg.norm(turn) > 1e-6:
        frame = matrix_from_quat(normalized(turn))
    return Grab(tip, place, frame, time.monotonic())


def _numbers(given: Any, count: int) -> Array | None:
    if not is_sequence(given) or len(given) != count or not all(isinstance(x, int | float) for x in given):
        return None
    numbers = np.array(given, float)
    return numbers if np.isfinite(numbers).all() else None


CONNECT_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0
"""Time within which a robot must say that it has stopped [s]."""
RATE = 60.0
"""Most rows per second that are shown [Hz]."""


class RobotContent:
    """The newest state of a robot in a scene; the link is opened again where it breaks."""

    gaussians = False

    def __init__(self, address: str, token: str, scene: Scene, *, may_stop: bool = False):
        self._address, self._scene, self._may_stop = address, scene, may_stop
        self._session = LinkSession(address, token, "watch")
        try:
            self._spec = self._session.wait(CONNECT_TIMEOUT_S).hello.spec
        except BaseException:
            self._session.close()
            raise
        places = {label: i for i, label in enumerate(self._spec.q.labels)}
        self._shared = [(i, places[label]) for i, label in enumerate(scene.spec.q.labels) if label in places]
        if not self._shared:
            self._session.close()
            raise BadInput(f"The robot reports no position of scene {scene.name!r}; give the --scene of this robot.")
        self._start, self._stamps = scene.start(0)[0], dict[str, float]()

    def opening(self) -> Sequence[bytes]:
        """The scene and its live track."""
        channels = [*channel_names(self._spec.q, ""), *channel_names(self._spec.action, "action")]
        header: dict[str, Any] = {"id": TRACK, "label": "robot", "role": "main", "live": True, "channels": channels}
        cameras = [name.removeprefix(IMAGES) for name in self._spec.observation if name.startswith(IMAGES)]
        info = {
            "title": self._scene.name, "subtitle": f"robot at {self._address}", "images": cameras,
            "stop": self._may_stop,
        }  # fmt: skip
        return [scene_message(self._scene), encode("info", info), encode("track", header)]

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """A watcher asks nothing of a robot but to stop, where that is allowed."""
        if "stop" not in request:
            return ()
        if not self._may_stop:
            raise BadInput("This page may not stop the robot; open it with --allow-stop.")
        self._session.stop(STOP_TIMEOUT_S)  # raises, and the page says so, where the robot does not confirm it
        return [encode("status", {"text": "The robot has stopped; make it safe, then reset it.", "level": "bad"})]

    @contextmanager
    def running(self, server: ViewServer) -> Generator[None]:
        """Show the robot until the context ends."""
        try:
            with running_beside(lambda over: self._run(server, over)):
                yield
        finally:
            self._session.close()

    def _run(self, server: ViewServer, over: threading.Event) -> None:
        shown, words = (0, -1), ""
        while not over.wait(1 / RATE):
            try:
                live = self._session.wait(1.0)
            except InstepError as error:
                live, said = None, (str(error), "bad")
            else:
                mode, reason = live.report.mode, live.report.reason
                said = (f"{mode}: {reason}" if reason else str(mode), "warn" if reason else "info")
            messages = {"status": encode("status", {"text": said[0], "level": said[1]})} if said[0] != words else {}
            words = said[0]
            if live is None:
                server.publish({}, messages)
                continue
            if (live.report.episode, live.report.tick) != shown:
                shown = live.report.episode, live.report.tick
                server.publish({TRACK: self._row(live)}, {**messages, **self._images(live)})

    def _row(self, live: LiveConnection) -> LiveRow:
        q: Array = self._start.copy()
        q[[i for i, _ in self._shared]] = live.report.q[[k for _, k in self._shared]]
        return live_row(self._scene, float(live.report.t), q, np.concatenate([live.report.q, live.report.sent]))

    def _images(self, live: LiveConnection) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, image in live.report.seen.items():
            stamp = live.report.stamps.get(name, live.report.t)
            if name.startswith(IMAGES) and self._stamps.get(name) != stamp:
                self._stamps[name] = stamp
                camera = name.removeprefix(IMAGES)
                found[camera] = image_message(camera, camera, float(live.report.t), np.asarray(image, np.uint8))
        return found
