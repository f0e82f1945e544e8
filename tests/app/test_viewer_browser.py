"""The web viewer in a real browser: every kind of thing opens without an error, moves, and shows what it should."""

from __future__ import annotations

import base64
import io
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import instep
from browser import Page
from instep import Constant, MujocoWorld, rollout
from instep.app.viewer.live_view import LiveView
from instep.app.viewer.messages import LiveRow, live_track, scene_message
from instep.app.viewer.replay_view import RecordingContent, Replays
from instep.app.viewer.showing import PlacingContent, gaussian_content
from instep.app.viewer.teleoperation import FollowingRobot, RobotContent, TeleopContent
from instep.app.viewer.view_server import FixedContent, ViewContent, ViewServer, absence
from instep.core.errors import BadInput, LinkLost
from instep.core.world import stack, take
from instep.evaluate.episode_batch import OUTCOMES
from instep.physics import ImageEffects, MujocoRenderer, WithCameras
from instep.robot import RobotServer, RobotWorld, WorldDriver
from instep.scene import body_poses
from instep.scene.folder import Scene
from instep.splat import Gaussians, save_gaussians
from instep.twin.scene_bodies import load_starts

pytestmark = [
    pytest.mark.slow,  # a browser is started, and its 3D is rendered by the processor
    pytest.mark.skipif(bool(absence()), reason=f"needs the web viewer: {absence() or 'built'}"),
]
READY = """
(async () => {
  for (let i = 0; i < 1200; i++) {
    const state = window.instepViewers?.[0]?.state();
    if (state?.ready) return state;
    await new Promise((done) => setTimeout(done, 25));
  }
  return null;
})()
"""


MEAN_BRIGHTNESS = """
(async () => {
  const image = window.instepViewers[0].frame.querySelector(".images img");
  while (!image.complete || !image.naturalWidth) await new Promise((done) => setTimeout(done, 20));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  let sum = 0;
  for (let i = 0; i < data.length; i += 4) sum += data[i] + data[i + 1] + data[i + 2];
  return sum / (3 * canvas.width * canvas.height);
})()
"""


@pytest.fixture(scope="module")
def arm() -> Scene:
    return Scene.load("arm7")


@pytest.fixture(scope="module")
def episode(arm):
    return rollout(MujocoWorld(arm), Constant(arm.rest_action() + 0.3), steps=200)


class Opened:
    """Some content in the page."""

    def __init__(self, page: Page, content: ViewContent):
        self.page, self.server = page, ViewServer(content)
        page.errors.clear()
        page.open(f"{self.server.start()}&theme=light", width=480, height=360)
        self.state = page.evaluate(READY)
        assert self.state is not None, page.errors

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        errors = [*self.page.errors]
        self.page.open("about:blank")  # else it tries to connect again
        self.server.close()
        assert errors == []

    def do(self, script: str):
        """Run a script with the viewer as `v`; the value of its last expression."""
        return self.page.evaluate(f"(() => {{ const v = window.instepViewers[0]; return {script}; }})()")

    def image(self) -> np.ndarray:
        data = self.do("v.screenshot()").partition(",")[2]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), float)


def reds(image: np.ndarray) -> np.ndarray:
    return (image[..., 0] > 150) & (image[..., 1] < 80) & (image[..., 2] < 80)


def test_a_scene_has_its_colours_and_follows_live_rows(page, arm):
    poses = np.tile([0.0, 0, 0, 1, 0, 0, 0], (arm.model.nbody, 1))
    with Opened(page, FixedContent([scene_message(arm), live_track("world 1", "live", [])])) as opened:
        image = opened.image()
        blues = (image[..., 2] > 150) & (image[..., 0] < 90)
        assert 1e-4 < reds(image).mean() < 0.05 and 1e-4 < blues.mean() < 0.05
        assert image.std() > 10, "more than a background"
        opened.do("v.setTheme('dark')")
        assert opened.image()[:20].mean() < 60 < 200 < image[:20].mean()
        for row in range(5):
            opened.server.publish({"world 1": LiveRow(0.1 * row, poses, np.zeros(0))})
            time.sleep(0.05)
        wait_for(lambda: opened.do("v.state().t") == pytest.approx(0.4, abs=1e-3))


def test_a_recording_scrubs_plays_and_is_picked(page, arm, episode):
    with Opened(page, RecordingContent(arm, [episode], "data")) as opened:
        assert opened.state["tracks"] == [{"id": "recording", "rows": 200}] and len(opened.state["plots"]) == 3
        press = "v.frame.dispatchEvent(new KeyboardEvent('keydown', {key: KEY}))"
        opened.do(press.replace("KEY", "' '"))
        assert opened.do("v.state().playing")
        opened.do(press.replace("KEY", "' '"))
        before = opened.do("v.state().t")
        opened.do(press.replace("KEY", "'ArrowRight'"))
        assert opened.do("v.state().t") == pytest.approx(before + arm.dt, abs=1e-3)
        hit = opened.do(
            "(() => { const p = v.stage.world.localToWorld(v.shown.get('recording').model.bodies[1].position.clone());"
            " p.z += 0.05; p.project(v.stage.camera); const c = v.stage.renderer.domElement.getBoundingClientRect();"
            " return v.picking.at(c.left + (p.x + 1) / 2 * c.width, c.top + (1 - p.y) / 2 * c.height)?.body; })()"
        )
        assert hit in (1, 2), "the base, or the link in front of it"
        opened.do("v.clock.seek(v.clock.begin)")
        first = opened.image()
        opened.do("v.clock.seek(v.clock.end)")
        assert opened.do("v.state().t") == pytest.approx(episode.t[-1] - episode.t[0], abs=1e-3)
        assert (np.abs(opened.image() - first).max(axis=-1) > 40).mean() > 0.01
        tip = opened.do("v.shown.get('recording').model.bodies[8].position.toArray()")
        np.testing.assert_allclose(tip, body_poses(arm.model, episode.q[-1])[7, :3], atol=1e-4)


def test_the_replay_follows_the_slider_of_the_horizon(page, arm, episode):
    sim = MujocoWorld(arm).tuned({"joint.joint_2.damping": 5.0})
    content = RecordingContent(arm, [episode], "gap", replays=Replays({"arm7": sim}))
    error = """(() => {
      const { track } = v.shown.get('sim 0');
      const channel = track.channels.findIndex((one) => one.name === 'error.joint_2');
      return Math.max(...Array.from({ length: track.count }, (_, row) => track.value(row, channel)));
    })()"""
    slider = "v.frame.querySelector('.choice[data-name=horizon] input[type=range]')"
    shown = "v.frame.querySelector('.choice[data-name=horizon] output').textContent"
    with Opened(page, content) as opened:
        whole = opened.do(error)
        assert whole > 0 and opened.do(shown) == "whole run"
        opened.do(f"({slider}.value = '0', {slider}.dispatchEvent(new Event('input')))")
        assert opened.do(shown) == "one step"
        wait_for(lambda: 0 < opened.do(error) < 0.5 * whole)


def test_recorded_images_are_compared_with_rendered_ones(page):
    scene = Scene.load("pusht")
    camera = next(iter(scene.cameras.values()))
    world = WithCameras(MujocoWorld(scene), MujocoRenderer(scene), (camera,), ImageEffects(gain=0.5))
    recorded = rollout(world, Constant(scene.rest_action()), steps=4)
    with Opened(
        page, RecordingContent(scene, [recorded], "gap", replays=Replays({"pusht": MujocoWorld(scene)}))
    ) as opened:
        opened.do("v.panel.press('v')")
        brightness = {}
        for kind in ("real", "rendered", "difference"):
            label = camera.name if kind == "real" else f"{camera.name}, {kind}"
            buttons = "[...v.frame.querySelectorAll('.images .segments button')]"
            opened.do(f"{buttons}.find((one) => one.textContent === '{kind}').click()")
            caption = "v.frame.querySelector('.images figcaption')?.textContent"
            wait_for(lambda caption=caption, label=label: opened.do(caption) == label)
            brightness[kind] = page.evaluate(MEAN_BRIGHTNESS)
        assert brightness["real"] < 0.7 * brightness["rendered"], "the recorded camera is darker"
        assert brightness["difference"] == pytest.approx(brightness["rendered"] - brightness["real"], abs=6)


def test_a_batch_is_a_grid_of_worlds_coloured_by_outcome(page):
    scene = Scene.load("pusht")
    world = MujocoWorld(scene)
    start = stack([world.reset(seed) for seed in range(4)])
    action = np.zeros((4, scene.model.nu))
    with LiveView(scene, scene.spec, "eval", worlds=4) as live:
        page.errors.clear()
        page.open(f"{live.url}&theme=light", width=480, height=360)
        assert page.evaluate(READY) is not None, page.errors
        live(start, {OUTCOMES: np.zeros(4, int)}, action)
        live(replace(start, t=0.1), {OUTCOMES: np.array([1, -1, 0, 0])}, action)
        state = "window.instepViewers[0].state()"
        wait_for(lambda: page.evaluate(f"{state}.outcomes") == ["success", "failure", "", ""])
        assert page.evaluate(f"{state}.status") == "1 of 2 ended episodes succeeded"
        places = "[...window.instepViewers[0].shown.values()].map((one) => one.model.root.position.toArray())"
        assert len({tuple(place) for place in page.evaluate(places)}) == 4
        smaller = take(start, np.arange(3))
        live(smaller, {OUTCOMES: np.zeros(3, int)}, action[:3])
        wait_for(lambda: page.evaluate(f"{state}.outcomes") == ["", "", "", "absent"])
        visible = "[...window.instepViewers[0].shown.values()].map((one) => one.model.root.visible)"
        assert page.evaluate(visible) == [True, True, True, False]
        errors = [*page.errors]
        page.open("about:blank")
    assert errors == []


def test_the_stop_button_stops_a_robot_only_where_it_is_allowed(page, arm):
    hidden = "v.frame.querySelector('.stop').hidden"
    with RobotServer(WorldDriver(MujocoWorld(arm))) as robot:
        content = RobotContent(robot.address, robot.token, arm)
        with Opened(page, content) as opened, content.running(opened.server):
            wait_for(lambda: opened.do("v.state().status") == "idle")
            assert opened.do(hidden)
            opened.do("v.ask({stop: true})")
            wait_for(lambda: "--allow-stop" in opened.do("v.state().status"))
            assert robot.counts["stops"] == 0
        content = RobotContent(robot.address, robot.token, arm, may_stop=True)
        with Opened(page, content) as opened, content.running(opened.server):
            assert not opened.do(hidden)
            opened.do("v.frame.querySelector('.stop').click()")
            wait_for(lambda: "stop" in opened.do("v.state().status"))
        assert robot.counts["stops"] == 1
        refused = pytest.raises((LinkLost, BadInput), match="has stopped: A watcher")  # seen before it asks, or after
        with RobotWorld(robot.address, robot.token) as world, refused:
            world.step(world.latest(), arm.rest_action())


SCREEN = """(() => {
  const p = v.stage.world.localToWorld(POINT); p.project(v.stage.camera);
  const c = v.stage.renderer.domElement.getBoundingClientRect();
  return [c.left + (1 + p.x) / 2 * c.width, c.top + (1 - p.y) / 2 * c.height];
})()
"""


def test_an_object_is_dragged_to_its_start_pose_and_a_file_says_so(page, tmp_path):
    scene = Scene.load("arm7")
    content = PlacingContent(scene, tmp_path / "start.json")
    name = scene.objects[0]
    body = scene.model.body(name).id
    place = f"v.still.bodies[{body}].position.clone()"
    with Opened(page, content) as opened:
        opened.do("(v.frame.classList.add('closed'), v.stage.view([0, -0.001, 1]))")  # nothing is before the objects
        opened.image()
        before = opened.do(f"{place}.toArray()")
        x, y = opened.do(SCREEN.replace("POINT", place))
        dragged = [("mousePressed", x, y), ("mouseMoved", x + 15, y), ("mouseMoved", x + 30, y)]
        for kind, px, py in [*dragged, ("mouseReleased", x + 30, y)]:
            page.ask("Input.dispatchMouseEvent", type=kind, x=px, y=py, button="left", buttons=1, clickCount=1)
        wait_for((tmp_path / "start.json").is_file)
        after = opened.do(f"{place}.toArray()")
        assert "start.json" in opened.do("v.state().status")
    start = load_starts(tmp_path / "start.json")[name].transform({})
    np.testing.assert_allclose(start[:3, 3], after, atol=1e-5)
    assert np.hypot(after[0] - before[0], after[1] - before[1]) > 0.02 and abs(after[2] - before[2]) < 1e-6


def test_a_double_click_sends_the_end_effector_there(page, arm):
    content = TeleopContent(arm)
    with Opened(page, content) as opened, content.running(opened.server):
        wait_for(lambda: opened.do("v.grabbing !== null && v.state().t > 0"))
        tip = "v.grabbing.handles[0].getWorldPosition(v.stage.camera.position.clone())"
        begin = np.array(opened.do(f"{tip}.toArray()"))
        goal = begin + np.array([-0.03, 0.06, 0.05])
        opened.do(f"v.grabbing.sendTo({tip}.fromArray({goal.tolist()}))")
        assert opened.do("v.state().grabbed")
        wait_for(lambda: not opened.do("v.state().grabbed"))
        assert np.linalg.norm(np.array(opened.do(f"{tip}.toArray()")) - goal) < 0.03
        wait_for(lambda: content._grab is None)
        opened.do("v.frame.classList.add('closed')")
        box = f"v.shown.get('robot').model.bodies[{arm.model.body(arm.objects[0]).id}].position.clone()"
        x, y = opened.do(SCREEN.replace("POINT", box))
        for count in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                page.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)
        wait_for(lambda: opened.do("v.state().grabbed"))


def test_a_robot_follows_the_simulated_one_only_while_it_is_armed(page, arm):
    button = "v.frame.querySelector('.arm')"
    moving = sorted({int(body) for body in arm.model.jnt_bodyid[: arm.model.nu]})
    with RobotServer(WorldDriver(MujocoWorld(arm))) as robot:
        content = TeleopContent(arm, FollowingRobot(robot.address, robot.token, arm))
        with Opened(page, content) as opened, content.running(opened.server):
            wait_for(lambda: "Not armed" in opened.do("v.state().status"))
            assert not opened.do(f"{button}.hidden") and opened.do(f"{button}.textContent") == "ARM"
            tip = "v.grabbing.handles[0].getWorldPosition(v.stage.camera.position.clone())"
            opened.do(f"v.grabbing.sendTo({tip}.add({{x: 0, y: 0.1, z: 0.05}}))")
            wait_for(lambda: not opened.do("v.state().grabbed"))
            assert not robot.counts.get("executed"), "nothing is sent to a robot that is not armed"
            opened.do(f"{button}.click()")
            wait_for(lambda: "the robot follows" in opened.do("v.state().status"))
            opened.do(f"v.grabbing.sendTo({tip}.add({{x: 0, y: 0.1, z: 0.05}}))")
            places = "['robot', 'real'].map((id) => v.shown.get(id).model.bodies.map((one) => one.position.toArray()))"

            def apart() -> float:
                led, followed = np.array(opened.do(places))
                return float(np.linalg.norm(led - followed, axis=1)[moving].max())

            start = np.array(opened.do(f"{tip}.toArray()"))
            wait_for(lambda: not opened.do("v.state().grabbed"))
            assert np.linalg.norm(np.array(opened.do(f"{tip}.toArray()")) - start) > 0.05
            # A page that was too busy to say that it is there lets go; then the press is repeated.
            wait_for(
                lambda: (
                    apart() < 0.02 or (opened.do(f"{button}.textContent") == "ARM" and opened.do(f"{button}.click()"))
                )
            )
            wait_for(lambda: "the robot follows" in opened.do("v.state().status"))
            disarm = f"{button}.textContent === 'ARM' || {button}.click()"
            wait_for(lambda: opened.do(disarm) and "Not armed" in opened.do("v.state().status"))
            assert opened.do(f"{button}.textContent") == "ARM"
            executed = robot.counts["executed"]
            time.sleep(0.3)
            assert robot.counts["executed"] == executed > 10
            opened.do(f"{button}.click()")
            wait_for(lambda: "the robot follows" in opened.do("v.state().status"))
            page.open("about:blank")
            wait_for(lambda: not content._real.armed)
            page.errors.clear()


def test_gaussians_are_drawn_in_their_colour(page, tmp_path):
    rng = np.random.default_rng(0)
    n = 4_000
    colour = np.tile([0.9, 0.1, 0.1], (n, 1))
    cloud = Gaussians(
        rng.uniform(-0.5, 0.5, (n, 3)), np.tile([1.0, 0, 0, 0], (n, 1)), np.full((n, 3), 0.04), np.full(n, 0.9),
        ((colour - 0.5) / 0.28209479177387814)[:, None], np.zeros(n, int),
    )  # fmt: skip
    save_gaussians(tmp_path / "cloud.ply", cloud)
    with Opened(page, gaussian_content(tmp_path / "cloud.ply", None)) as opened:
        end = time.monotonic() + 60
        while (found := reds(opened.image()).mean()) < 0.05 and time.monotonic() < end:
            time.sleep(0.3)
        assert found > 0.05


def test_one_file_plays_without_a_server(page, arm, episode, tmp_path):
    path = instep.show(episode, scene=arm).to_html(tmp_path / "arm.html")
    assert path.stat().st_size < 2_000_000
    page.errors.clear(), page.requests.clear()
    page.open(f"file://{path}", width=480, height=360)
    state = page.evaluate(READY)
    assert state["tracks"] == [{"id": "recording", "rows": 200}]
    end = time.monotonic() + 30
    while page.evaluate("window.instepViewers[0].state().t") == 0 and time.monotonic() < end:
        time.sleep(0.1)
    assert page.evaluate("window.instepViewers[0].state().t") > 0, "it plays by itself"
    assert (page.errors, page.requests) == ([], [])


IWER = Path(__file__).resolve().parents[2] / "web" / "node_modules" / "iwer" / "build" / "iwer.min.js"
DEVICE = """
;(() => {
  const device = new IWER.XRDevice(IWER.metaQuest3);
  device.installRuntime({ forceInstall: true });
  window.device = device;
})();
"""


@pytest.mark.skipif(
    not IWER.is_file(), reason="needs the web viewer: its development packages (python web/build.py --types)"
)
def test_a_controller_grabs_the_arm_in_a_headset_and_leaving_stops_it(page, arm):
    """WebXR by an emulator: enter, grab the end effector, move it, leave while it is held."""
    content = TeleopContent(arm)
    script = page.ask("Page.addScriptToEvaluateOnNewDocument", source=IWER.read_text() + DEVICE)["identifier"]
    try:
        with Opened(page, content) as opened, content.running(opened.server):
            tip = "v.grabbing.handles[0].getWorldPosition(v.stage.camera.position.clone())"
            wait_for(lambda: opened.do("v.frame.querySelector('.headset') !== null"))
            enter = "window.instepViewers[0].enterHeadset('immersive-vr').then(() => true)"
            page.ask("Runtime.evaluate", expression=enter, awaitPromise=True, userGesture=True)
            wait_for(lambda: opened.do("v.state().headset"))
            begin = opened.do(f"{tip}.toArray()")
            # A hand where the end effector is, in the coordinates of the headset.
            put = "(() => { const p = PLACE; v.headset.rig.worldToLocal(p);"
            put += " device.controllers.right.position.set(p.x, p.y, p.z); return true; })()"
            opened.do(put.replace("PLACE", tip))
            hand = f"{tip}.distanceTo(v.headset.hands[1].getWorldPosition(v.stage.camera.position.clone()))"
            wait_for(lambda: opened.do(hand) < 0.05)
            opened.do("device.controllers.right.updateButtonValue('trigger', 1)")
            wait_for(lambda: opened.do("v.state().grabbed"))
            away = f"{tip}.fromArray({[begin[0] - 0.02, begin[1] + 0.05, begin[2] + 0.08]})"
            opened.do(put.replace("PLACE", away))
            wait_for(lambda: opened.do(f"{tip}.z") > begin[2] + 0.04)
            assert content._grab is not None
            opened.do("v.headset.leave()")
            wait_for(lambda: not opened.do("v.state().headset"))
            wait_for(lambda: content._grab is None)
            assert not opened.do("v.state().grabbed") and opened.do("v.stage.camera.parent === null")
            still = opened.image()
            assert still.std() > 10, "the page shows it again"
    finally:
        page.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
