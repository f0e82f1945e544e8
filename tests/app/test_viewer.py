"""The web viewer without a browser: messages, what is sent of scenes and recordings, and attacks on its server."""

from __future__ import annotations

import json
import struct
import time
from contextlib import nullcontext
from dataclasses import replace
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from instep import Constant, MujocoWorld, rollout
from instep.app.cli import main
from instep.app.viewer.live_view import NUMBERS, LiveView, SharedRow
from instep.app.viewer.messages import (
    ChannelTable,
    LiveRow,
    TrackOptions,
    container,
    encode,
    error_marks,
    event_message,
    recorded_marks,
    row_message,
    scene_message,
    track_message,
)
from instep.app.viewer.replay_view import RecordingContent, Replays, measured_run, pair_viewer, report_viewer
from instep.app.viewer.showing import PlacingContent
from instep.app.viewer.teleoperation import GRAB_TIMEOUT_S, FollowingRobot, RobotContent, TeleopContent
from instep.app.viewer.view_server import FixedContent, ViewServer, absence, running_beside
from instep.core.episode import Episode
from instep.core.errors import BadInput, Unsupported
from instep.core.poses import quat_from_matrix
from instep.core.world import Channel, vector
from instep.gap.gap_result import RunPair
from instep.physics import mujoco_cameras
from instep.physics.engines import open_world
from instep.robot import RobotServer, WorldDriver
from instep.scene import body_poses
from instep.scene.folder import Scene
from instep.twin.scene_bodies import load_starts

NUMPY = {"f32": "<f4", "i16": "<i2", "u16": "<u2", "u32": "<u4", "u8": "u1"}
needs_viewer = pytest.mark.skipif(bool(absence()), reason=f"needs the web viewer: {absence() or 'built'}")


def decoded(message: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    """A message as the page reads it."""
    [length] = struct.unpack_from("<I", message)
    header = json.loads(message[4 : 4 + length])
    buffers = {
        name: np.frombuffer(message, NUMPY[layout["type"]], layout["length"], 4 + length + layout["offset"])
        for name, layout in header.pop("buffers").items()
    }
    return header, buffers


def read_opening(link) -> list[str]:
    """The kinds of the messages for a page that was just opened."""
    kinds = [decoded(link.recv(timeout=20))[0]["kind"]]
    while kinds[-1] != "opened":
        kinds.append(decoded(link.recv(timeout=20))[0]["kind"])
    return kinds


@pytest.fixture(scope="module")
def arm() -> Scene:
    return Scene.load("arm7")


@pytest.fixture(scope="module")
def episode(arm):
    world = MujocoWorld(arm)
    return rollout(world, Constant(arm.rest_action() + 0.1), steps=40)


def test_arrays_of_a_message_are_aligned_and_come_back():
    given = {"a": np.arange(3, dtype="<u2"), "b": np.array([0.5, 1.5], "<f4"), "c": np.arange(5, dtype="u1")}
    header, buffers = decoded(encode("status", {"text": "ä", "level": "info"}, given))
    assert header == {"kind": "status", "text": "ä", "level": "info"}
    assert all(np.array_equal(buffers[name], array) for name, array in given.items())
    assert container([b"one", b"fourth"]) == b"\3\0\0\0one\6\0\0\0fourth"


def test_a_scene_is_sent_with_bodies_shapes_cameras_and_something_to_frame(arm):
    header, buffers = decoded(scene_message(arm))
    assert [body["name"] for body in header["bodies"]][:2] == ["world", arm.model.body(1).name]
    assert {geom["type"] for geom in header["geoms"]} >= {"box", "capsule", "cylinder"}
    layers = {geom["name"]: geom["layer"] for geom in header["geoms"]}
    assert layers["link_2"] == "both", "a link that collides and has a colour is seen beside the cap of its joint"
    assert [camera["name"] for camera in header["cameras"]] == list(arm.cameras)
    assert [site["name"] for site in header["sites"]] == list(arm.tips)
    assert buffers["poses"].size == 7 * arm.model.nbody and 0.3 < header["radius"] < 3


def test_a_track_holds_the_poses_that_kinematics_gives(arm, episode):
    header, buffers = decoded(track_message(arm, episode, TrackOptions()))
    positions = buffers["positions"].reshape(len(episode), arm.model.nbody, 3)
    wanted = body_poses(arm.model, episode.q)
    np.testing.assert_allclose(positions[:, 1:], wanted[..., :3], atol=1e-6)
    rotations = buffers["rotations"].reshape(len(episode), arm.model.nbody, 4)[:, 1:] / 32767
    np.testing.assert_allclose(rotations, wanted[..., 3:], atol=4e-5)
    names = [channel["name"] for channel in header["channels"]]
    values = buffers["values"].reshape(len(episode), len(names))
    np.testing.assert_allclose(values[:, names.index("joint_2")], episode.q[:, 1], atol=1e-6)
    before, after = (int(start) for start in buffers["contact_starts"][-2:])
    assert after - before >= 2
    up = buffers["contacts"].reshape(-1, 6)[before:, 5]
    weight = 9.81 * sum(arm.model.body(name).mass[0] for name in arm.objects)
    assert abs(abs(up).sum() - weight) < 0.2 * weight


def test_a_recording_of_another_robot_is_refused_in_one_sentence(episode):
    with pytest.raises(BadInput, match="none of which scene 'cartpole' has; give the --scene"):
        RecordingContent(Scene.load("cartpole"), [episode], "data").opening()


def test_a_live_row_holds_only_the_bodies_that_moved():
    poses = np.tile([0.0, 0, 0, 1, 0, 0, 0], (5, 1))
    moved = poses.copy()
    moved[3, 0] = 0.25
    header, buffers = decoded(row_message("live", LiveRow(0.1, moved, np.ones(2)), LiveRow(0.0, poses, np.ones(2))))
    assert header["t"] == 0.1 and buffers["bodies"].tolist() == [3] and buffers["positions"].tolist() == [0.25, 0, 0]
    _, whole = decoded(row_message("live", LiveRow(0.0, moved, np.ones(2)), LiveRow(0.1, poses, np.ones(2))))
    assert whole["bodies"].tolist() == [0, 1, 2, 3, 4], "time went back: a new episode"


@pytest.fixture(scope="module")
def server(arm):
    server = ViewServer(FixedContent([scene_message(arm)]))
    server.start()
    yield server
    server.close()


def get(server: ViewServer, path: str, **headers: str):
    connection = HTTPConnection(urlsplit(server.origin).netloc, timeout=10)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()


def socket_address(server: ViewServer, token: str | None = None) -> str:
    return f"{server.origin.replace('http', 'ws')}/socket?token={server.token if token is None else token}"


@needs_viewer
def test_the_page_and_its_script_are_served_with_a_strict_policy(server):
    page, script = get(server, "/"), get(server, "/viewer.js")
    assert (page.status, script.status) == (200, 200)
    assert b"data-instep-viewer" in page.read() and len(script.read()) > 100_000
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert server.token not in server.url.split("#")[0] and server.token in server.url.split("#")[1]


@needs_viewer
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/../../../etc/passwd", {}, 404),
        ("/%2e%2e/%2e%2e/pyproject.toml", {}, 404),
        ("/static/viewer.js", {}, 404),
        ("/viewer.js?../x", {}, 404),
        ("/", {"Host": "evil.example"}, 403),
        ("/", {"Origin": "http://evil.example"}, 403),
    ],
)
def test_other_paths_hosts_and_origins_are_refused(server, path, headers, status):
    assert get(server, path, **headers).status == status


@needs_viewer
@pytest.mark.parametrize(
    ("token", "origin", "status"), [("", None, 401), ("0" * 64, None, 401), (None, "http://evil.example", 403)]
)
def test_a_socket_without_the_token_or_from_another_page_is_refused(server, token, origin, status):
    headers = {"Origin": origin} if origin else {}
    with pytest.raises(InvalidStatus) as refused, connect(socket_address(server, token), additional_headers=headers):
        pass
    assert refused.value.response.status_code == status


@needs_viewer
@pytest.mark.parametrize("sent", ["x" * 100_000, "[1, 2]", "{", b"\xff\xfe", "[" * 5000])
def test_giant_and_broken_requests_end_one_socket_and_not_the_server(server, sent):
    with connect(socket_address(server), max_size=None) as link:
        read_opening(link)
        with pytest.raises(ConnectionClosed):
            link.send(sent)
            link.recv(timeout=10)
    assert get(server, "/").status == 200


@needs_viewer
def test_a_watcher_that_stalls_gets_fewer_rows_and_harms_nobody(arm):
    server = ViewServer(FixedContent([scene_message(arm)]))
    server.start()
    try:
        poses = np.tile([0.0, 0, 0, 1, 0, 0, 0], (20_000, 1))
        with connect(socket_address(server), max_queue=1) as slow, connect(socket_address(server)) as quick:
            read_opening(slow), read_opening(quick)
            got, begin = 0, time.monotonic()
            for row in range(60):
                poses = poses.copy()
                poses[:, 0] = row
                server.publish({"live": LiveRow(float(row), poses, np.zeros(0))})
                header, _ = decoded(quick.recv(timeout=10))
                got += header["t"] == row
            assert got == 60 and time.monotonic() - begin < 20
            slow_rows = [decoded(slow.recv(timeout=10))[0]["t"]]
            while slow_rows[-1] < 59:
                slow_rows.append(decoded(slow.recv(timeout=10))[0]["t"])
            assert len(slow_rows) < 60, "0.5 MB a row do not fit into its buffers"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("arm8 --seconds 0", "Did you mean 'arm7'"),
        (". --teleop --seconds 0", "--teleop simulates a scene"),
        ("robot:ws://127.0.0.1:9", "give the one of this robot with --scene"),
        ("twin:pusht", "instep twin pusht --real robot:ADDRESS --view"),
        ("arm7 --place {taken}", "exists; name a new file"),
        ("arm7 --allow-stop --seconds 0", "show one with robot:ADDRESS"),
        ("arm7 --real robot:ws://127.0.0.1:9", "give a scene and --teleop with it"),
        ("robot:ws://127.0.0.1:9 --scene arm7 --real robot:ws://127.0.0.1:9", "give a scene and --teleop with it"),
        ("arm7 --teleop --real arm7", "--real takes robot:ADDRESS, not 'arm7'"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(words, sentence, tmp_path, capsys):
    (tmp_path / "taken.json").write_text("{}")
    assert main(["view", *words.format(taken=tmp_path / "taken.json").split()]) == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")


@needs_viewer
def test_a_live_view_shows_the_newest_row_to_whoever_connects(arm):
    world = MujocoWorld(arm)
    state = world.reset(0)
    with LiveView(arm, world.spec, "arm") as live:
        origin, token = live.url.split("/#token=")
        live(replace(state, t=1.0), world.observe(state), arm.rest_action())
        with connect(f"{origin.replace('http', 'ws')}/socket?token={token}") as link:
            kinds = read_opening(link)
            header, buffers = decoded(link.recv(timeout=20))
            assert kinds == ["scene", "info", "track", "opened"] and header["kind"] == "live" and header["t"] == 1.0
            np.testing.assert_allclose(buffers["values"][: len(state.q)], state.q, atol=1e-6)
            positions = buffers["positions"].reshape(-1, 3)
            np.testing.assert_allclose(positions[1:], body_poses(arm.model, state.q)[:, :3], atol=1e-6)
            live(replace(state, t=2.0), world.observe(state), arm.rest_action())
            header, buffers = decoded(link.recv(timeout=20))
            assert header["t"] == 2.0 and len(buffers["bodies"]) == 0, "nothing moved"
        path = live._row.path
        assert path.exists()
    assert not path.exists()


def test_a_reader_never_sees_half_a_row_nor_the_same_one_twice():
    writer = SharedRow({NUMBERS: (4,), "top": (2, 2, 3)})
    reader = SharedRow(writer.shapes, writer.path)
    assert reader.read(NUMBERS, 0) is None and reader.read("top", 0) is None
    writer.write(NUMBERS, np.array([1.0, 2.0]), np.array([[3.0, 4.0]]))
    writer.write("top", np.full((2, 2, 3), 7, np.uint8))
    seen, numbers = reader.read(NUMBERS, 0)
    assert numbers.tolist() == [1.0, 2.0, 3.0, 4.0] and reader.read(NUMBERS, seen) is None
    assert reader.read("top", 0)[1].tolist() == np.full((2, 2, 3), 7).tolist()
    writer._parts[NUMBERS][0][0] += 1  # in the middle of a row
    assert reader.read(NUMBERS, seen) is None
    writer.close()
    assert not writer.path.exists()


@needs_viewer
def test_a_run_can_be_viewed_while_it_runs(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", "hold", "sim:cartpole", "--steps", "5", "--view", "--out", str(out)]) == 0
    assert "In the browser: http://127.0.0.1:" in capsys.readouterr().err
    assert b"data-instep-viewer" in (out / "report.html").read_bytes()


def test_a_recording_is_a_ghost_over_its_replay_which_follows_horizon_and_parameters(arm, episode):
    sim = MujocoWorld(arm)
    recorded = rollout(sim.tuned({"joint.joint_2.damping": 8.0}), Constant(arm.rest_action() + 0.1), steps=40)
    replays = Replays({"arm7": sim}, arm.params("joint.joint_2.damping"))
    content = RecordingContent(arm, [recorded], "arm", replays=replays)

    def rms(messages) -> float:
        [(header, buffers)] = [found for found in map(decoded, messages) if found[0].get("id") == "sim 0"]
        names = [channel["name"] for channel in header["channels"]]
        values = buffers["values"].reshape(-1, len(names))
        assert header["role"] == "main" and len(header["errors"]) == 9
        return float(values[:, names.index("error.joint_2")].max())

    opened = content.opening()
    roles = {header["id"]: header["role"] for header, _ in map(decoded, opened) if header["kind"] == "track"}
    assert roles == {"sim 0": "main", "recording": "ghost"}
    whole, one_step = rms(opened), rms(content.answer({"choose": {"horizon": 0}}))
    assert whole > 2 * one_step > 0
    assert rms(content.answer({"choose": {"horizon": 4}, "set": {}})) == whole
    assert rms(content.answer({"set": {"joint.joint_2.damping": 8.0}})) < 0.05 * whole
    for nonsense in ({"set": {"joint.joint_9.damping": 1}}, {"choose": {"horizon": 10**9}}, {"set": 3}, {"choose": []}):
        content.answer(nonsense)


@pytest.mark.timeout(60)
def test_a_machine_without_graphics_says_so_and_goes_on_with_recorded_images(monkeypatch):
    scene = Scene.load("pusht")
    camera = f"observation.images.{next(iter(scene.cameras))}"
    spec = scene.spec.with_observations({camera: Channel(("height", "width", "channels"), "", (8, 12, 3), "uint8")})
    rows = {"timestamp": np.arange(2.0), "q": np.zeros((2, len(scene.spec.q.labels)))}
    content = RecordingContent(scene, [Episode(spec, {**rows, camera: np.zeros((2, 8, 12, 3), np.uint8)}, {})], "data")

    def no_graphics(*_: object) -> None:
        raise Unsupported("No graphics here.")

    monkeypatch.setattr(mujoco_cameras, "MujocoRenderer", no_graphics)
    for _ in range(2):
        with pytest.raises(Unsupported, match="No graphics"):
            content.answer({"images": 0.0, "show": "rendered"})
    assert len(content.answer({"images": 0.0})) == 1


def tracks_of(data: bytes) -> dict[str, str]:
    """Roles of the tracks in a container of messages."""
    found, at = {}, 0
    while at < len(data):
        [length] = struct.unpack_from("<I", data, at)
        header, _ = decoded(data[at + 4 : at + 4 + length])
        if header["kind"] == "track":
            found[header["label"]] = header["role"]
        at += 4 + length
    return found


@needs_viewer
def test_the_page_of_a_gap_shows_its_worst_run_as_a_ghost_over_the_replay(arm, episode):
    pairs = [RunPair(episode, episode, name, error) for name, error in (("a", 0.1), ("b", 0.3), ("c", float("nan")))]
    shown = pair_viewer(arm, pairs)
    assert shown is not None and shown.caption.startswith("B, the one with the largest error")
    assert tracks_of(shown.data) == {"simulator": "main", "recording": "ghost"}
    assert pair_viewer(None, pairs) is None and pair_viewer(arm, pairs[2:]) is None


@needs_viewer
def test_the_page_of_a_twin_shows_the_robot_that_follows_as_a_ghost(arm, episode):
    labels = episode.spec.q.labels
    measured = episode.q[:, :2] + 0.1
    measured[3, 0] = np.nan
    spec = episode.spec.with_observations({"twin.measured": vector(labels[:2])})
    twin = Episode(spec, {**episode.columns, "twin.measured": measured}, episode.meta)
    shown = report_viewer(arm, twin, "twin")
    assert shown is not None and tracks_of(shown.data) == {"twin": "main", "robot": "ghost"}
    robot = measured_run(twin)
    np.testing.assert_allclose(robot.q[:3, :2], measured[:3])
    np.testing.assert_allclose(robot.q[:, 2:], episode.q[:, 2:])
    assert robot.q[3, 0] == episode.q[3, 0], "where it was not measured"
    assert measured_run(episode) is None


def test_an_end_effector_follows_what_is_grabbed_and_stops_when_the_page_is_silent(arm):
    content = TeleopContent(arm)
    effector, action = content._arms[0], arm.rest_action()
    commanded = arm.start(0)[0].copy()
    start, frame, _ = effector.kinematics(commanded)
    goal, turn = start + np.array([0.03, -0.04, -0.05]), quat_from_matrix(frame).tolist()
    for _ in range(100):
        content.answer({"grab": {"tip": 0, "place": goal.tolist(), "turn": turn}})
        before = commanded.copy()
        action = content.command(commanded, action)
        assert np.abs(commanded - before).max() < 1.6 * arm.dt, "no joint is faster than allowed"
    assert np.linalg.norm(effector.kinematics(commanded)[0] - goal) < 0.01
    for last in ({"release": True}, {"grab": {"tip": 9, "place": [0, 0, 0]}}, {"grab": {"place": ["x", 0, 0]}},
                 {"grab": {"place": [float("nan"), 0, 0]}}):  # fmt: skip
        content.answer({"grab": {"tip": 0, "place": start.tolist()}})
        with nullcontext() if "release" in last else pytest.raises(BadInput):
            content.answer(last)
        assert np.array_equal(content.command(commanded, action), action)
    content.answer({"grab": {"tip": 0, "place": start.tolist()}})
    time.sleep(1.1 * GRAB_TIMEOUT_S)
    assert np.array_equal(content.command(commanded, action), action), "nobody holds it any more"


def test_only_scenes_with_an_end_effector_can_be_teleoperated():
    with pytest.raises(BadInput, match="names no end effector that position servos move"):
        TeleopContent(Scene.load("cartpole"))


@needs_viewer
def test_a_robot_behind_a_link_is_watched_and_its_end_is_said(arm):
    world = MujocoWorld(arm)
    with RobotServer(WorldDriver(world), pace="step") as robot:
        content = RobotContent(robot.address, robot.token, arm)
        server = ViewServer(content)
        server.start()
        with content.running(server), connect(socket_address(server)) as link:
            assert read_opening(link) == ["scene", "info", "track", "opened"]
            header, buffers = decoded(link.recv(timeout=20))
            assert header["kind"] == "live"
            np.testing.assert_allclose(buffers["values"][: len(arm.spec.q.labels)], world.reset(0).q, atol=1e-3)
            header, _ = decoded(link.recv(timeout=20))
            assert header["kind"] == "status" and header["text"].startswith("idle")
            robot._over.set()
            header, _ = decoded(link.recv(timeout=20))
            assert header["kind"] == "status" and header["level"] == "bad" and "did not connect" in header["text"]
        server.close()


def test_marks_of_a_timeline_say_what_happened_and_where_a_replay_is_worst(arm, episode):
    late = episode.t.copy()
    late[20:] += 0.5
    paused = Episode(episode.spec, {**episode.columns, "timestamp": late}, episode.meta)
    marks = recorded_marks(paused)
    [pause] = [mark for mark in marks if mark["label"].startswith("pause")]
    assert pause == {"t": round(float(late[19] - late[0]), 4), "label": "pause of 0.52 s", "level": "warn"}
    assert not [mark for mark in recorded_marks(episode) if mark["label"].startswith("pause")]
    values = np.zeros((40, 2))
    values[7, 1] = 0.25
    table = ChannelTable([{"name": f"error.{n}", "unit": "rad", "group": "error"} for n in "ab"], values)
    first = error_marks(episode.t, table)[0]
    assert first["label"] == "largest error of b, 0.25 rad" and first["t"] == round(7 * arm.dt, 4)
    header, _ = decoded(event_message([first, pause]))
    assert [event["t"] for event in header["events"]] == sorted([first["t"], pause["t"]])


def test_start_poses_are_written_only_of_objects_with_sound_numbers_to_a_new_file(arm, tmp_path):
    path = tmp_path / "start.json"
    content, name = PlacingContent(arm, path), arm.objects[0]
    pose = [0.4, 0.1, 0.05, 2.0, 0, 0, 0]
    for bad in ([0.0] * 7, [float("nan"), *pose[1:]], pose[:3], ["x", *pose[1:]]):
        with pytest.raises(BadInput):
            content.answer({"place": {"body": name, "pose": bad}})
    with pytest.raises(BadInput, match="no object named 'table'"):
        content.answer({"place": {"body": "table", "pose": pose}})
    assert not path.exists()
    content.answer({"place": {"body": name, "pose": pose}})
    starts = load_starts(path)
    assert set(starts) == set(arm.objects)
    np.testing.assert_allclose(starts[name].transform({})[:3, 3], pose[:3])


def wait_for(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Led:
    """A simulated robot that is followed: where it was told to begin, and its action."""

    def __init__(self, scene: Scene):
        self.action, self.t, self.begun = scene.rest_action(), 0.0, dict[str, float]()

    def begin_at(self, positions):
        self.begun = dict(positions)


def test_a_robot_that_follows_is_armed_by_one_page_and_again_only_by_another_press(arm):
    said, rows, led = list[str](), list[str](), Led(arm)

    def publish(new, messages):
        rows.extend(new)
        said.extend(decoded(message)[0]["text"] for message in messages.values())

    with RobotServer(WorldDriver(MujocoWorld(arm)), pace="step") as robot:
        real = FollowingRobot(robot.address, robot.token, arm)
        with running_beside(lambda over: real.run(over, led, publish)):
            real.tell(7)
            wait_for(lambda: "Armed: the robot follows." in said)
            assert set(led.begun) == set(arm.spec.q.labels) and led.begun[arm.spec.q.labels[1]] == pytest.approx(
                0.4, abs=0.05
            )
            with pytest.raises(BadInput, match="Another page has armed"):
                real.tell(8)
            for bad in ("7", True, None):
                with pytest.raises(BadInput, match="number of a press"):
                    real.tell(bad)
            wait_for(lambda: rows.count("real") > 3 and robot.counts["executed"] > 3)
            wait_for(lambda: said[-1].startswith("Not armed"))  # the page says nothing more
            executed = robot.counts["executed"]
            real.tell(7)
            assert not real.armed, "the press has ended"
            time.sleep(0.2)
            assert robot.counts["executed"] == executed
            real.tell(9)
            wait_for(lambda: robot.counts["executed"] > executed)
            real.tell(0)
            assert not real.armed


def test_a_robot_that_follows_must_be_the_one_of_the_scene(arm):
    refused = pytest.raises(BadInput, match="The robot takes pusher_x, pusher_y, which scene 'arm7' does not")
    with RobotServer(WorldDriver(open_world("pusht"))) as robot, refused:
        FollowingRobot(robot.address, robot.token, arm)
