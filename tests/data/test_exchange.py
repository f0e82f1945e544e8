"""One small file per format, made here, and what comes out of it."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import mcap.writer as mcap_writer
import numpy as np
import pytest
import zarr

from instep.core.errors import BadInput
from instep.data import (
    Selection,
    export_episodes,
    import_recordings,
    load_episodes,
    write_dataset,
)
from instep.data.frames import encode_png
from instep.data.lerobot import AUTOMATIC, MEASURED

from .conftest import CAMERA, assert_same, numbered_images, small_episode


def write_aloha(path: Path, rows: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {"observations/qpos": rng.normal(size=(rows, 14)), "observations/qvel": rng.normal(size=(rows, 14))}
    arrays |= {"action": rng.normal(size=(rows, 14)), "observations/images/cam_high": numbered_images(rows)}
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = True
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    return arrays


def test_aloha_s_layout(tmp_path: Path):
    arrays = write_aloha(tmp_path / "episode_0.hdf5")
    (episode,) = load_episodes(tmp_path / "episode_0.hdf5")
    np.testing.assert_array_equal(episode.q, arrays["observations/qpos"])
    np.testing.assert_array_equal(episode.v, arrays["observations/qvel"])
    np.testing.assert_array_equal(episode.action, arrays["action"])
    assert episode.spec.dt == 1 / 50 and episode.spec.q.labels[3] == "qpos_3"
    np.testing.assert_array_equal(episode["observation.images.cam_high"][7], arrays["observations/images/cam_high"][7])


def test_aloha_s_compressed_images(tmp_path: Path):
    images = numbered_images(4)
    packed = [np.frombuffer(encode_png(image), np.uint8) for image in images]
    padded = np.zeros((4, max(map(len, packed))), np.uint8)
    for k, data in enumerate(packed):
        padded[k, : len(data)] = data
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file.attrs["compress"] = True
        file["observations/qpos"] = np.zeros((4, 2))
        file["action"] = np.zeros((4, 2))
        file["observations/images/top"] = padded
    (episode,) = load_episodes(tmp_path)
    np.testing.assert_array_equal(np.asarray(episode["observation.images.top"]), images)


@pytest.mark.parametrize("version", [2, 3])
def test_diffusion_policy_s_layout(tmp_path: Path, version: int):
    group = zarr.open_group(str(tmp_path / "push.zarr"), mode="w", zarr_format=version)
    state, images = np.arange(20.0).reshape(10, 2), numbered_images(10).astype(np.float32)
    for name, array in {"state": state, "action": -state, "img": images}.items():
        group.create_array(f"data/{name}", data=array)
    group.create_array("meta/episode_ends", data=np.array([4, 10]))
    first, second = load_episodes(tmp_path / "push.zarr")
    assert (len(first), len(second)) == (4, 6)
    np.testing.assert_array_equal(second.q, state[4:])
    np.testing.assert_array_equal(second.action, -state[4:])
    np.testing.assert_array_equal(second["observation.images.camera"][2], numbered_images(10)[6])


def test_an_mcap_of_ours_comes_back_as_it_was(tmp_path: Path):
    given = small_episode(8)
    source = write_dataset([given, small_episode(5, 1)], tmp_path / "set")
    done = export_episodes(source, "mcap", tmp_path / "out")
    assert done.episodes == 2 and len(list((tmp_path / "out").glob("*.mcap"))) == 2
    first, second = load_episodes(tmp_path / "out")
    assert_same(given, first)
    assert first.spec == given.spec and len(second) == 5 and first.meta["seed"] == "0"


def stamped(t: float) -> dict:
    return {"stamp": {"sec": int(t), "nanosec": round((t % 1) * 1e9)}, "frame_id": "base"}


def test_a_foreign_mcap_of_json_messages(tmp_path: Path):
    with (tmp_path / "log.mcap").open("wb") as file:
        writer = mcap_writer.Writer(file)
        writer.start()
        joint = writer.register_schema("sensor_msgs/msg/JointState", "jsonschema", b"{}")
        other = writer.register_schema("acme/Battery", "jsonschema", b"{}")
        states = writer.register_channel("/joint_states", "json", joint)
        commands = writer.register_channel("/joint_command", "json", joint)
        battery = writer.register_channel("/battery", "json", other)

        def tell(channel: int, t: float, message: dict) -> None:
            writer.add_message(channel, round(t * 1e9), json.dumps(message).encode(), round(t * 1e9))

        for k in range(20):
            t = 100 + k * 0.02
            # The order of names changes between messages, as it may.
            names, position = (["b", "a"], [10 + k, k]) if k % 2 else (["a", "b"], [k, 10 + k])
            message = {"header": stamped(t), "name": names, "position": position, "velocity": [], "effort": []}
            tell(states, t, message)
            tell(battery, t, {"volts": 12})
            if k % 4 == 0:
                tell(commands, t, {**message, "name": ["a", "b"], "position": [-k, -k], "header": stamped(t + 0.001)})
        writer.finish()
    (episode,) = load_episodes(tmp_path / "log.mcap")
    assert episode.spec.q.labels == ("a", "b") and episode.spec.dt == pytest.approx(0.02)
    np.testing.assert_array_equal(episode.q, [[k, 10 + k] for k in range(20)])
    assert episode.action[1, 0] == 0 and episode.action[5, 0] == -4, "held"
    assert episode.action[8, 0] == -8, "sent 1 ms after its state, so in force for the rest of that period"
    assert "acme/Battery" in episode.meta["skipped"] and episode.v.shape == (20, 2)


def write_bag(folder: Path, rows: int = 15) -> None:
    from rosbags.rosbag2 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    t_ = store.types

    def header(t: float):
        time = t_["builtin_interfaces/msg/Time"](sec=int(t), nanosec=round((t % 1) * 1e9))
        return t_["std_msgs/msg/Header"](stamp=time, frame_id="base")

    with Writer(folder, version=9) as writer:
        topics = {
            "/joint_states": "sensor_msgs/msg/JointState",
            "/camera/image_raw/compressed": "sensor_msgs/msg/CompressedImage",
            "/camera/camera_info": "sensor_msgs/msg/CameraInfo",
            "/tf": "tf2_msgs/msg/TFMessage",
            "/rosout": "rcl_interfaces/msg/Log",
        }
        to = {name: writer.add_connection(name, kind, typestore=store) for name, kind in topics.items()}

        def tell(topic: str, t: float, message) -> None:
            data = store.serialize_cdr(message, topics[topic])
            writer.write(to[topic], round(t * 1e9), data)

        point, turn = t_["geometry_msgs/msg/Vector3"], t_["geometry_msgs/msg/Quaternion"]
        for k in range(rows):
            t = 50 + k * 0.1
            numbers = np.array([k, 2.0 * k])
            joints = t_[topics["/joint_states"]](header(t), ["pan", "tilt"], numbers, -numbers, np.zeros(0))
            tell("/joint_states", t, joints)
            if k % 3 == 0:
                data = np.frombuffer(encode_png(numbered_images(rows)[k]), np.uint8)
                image = t_["sensor_msgs/msg/CompressedImage"](header(t - 0.02), "png", data)
                tell("/camera/image_raw/compressed", t, image)
            moved = t_["geometry_msgs/msg/Transform"](point(0.1 * k, 0.0, 0.0), turn(0.0, 0.0, 0.0, 1.0))
            one = t_["geometry_msgs/msg/TransformStamped"](header(t), "tool", moved)
            tell("/tf", t, t_["tf2_msgs/msg/TFMessage"]([one]))
        info = t_["sensor_msgs/msg/CameraInfo"]
        region = t_["sensor_msgs/msg/RegionOfInterest"](0, 0, 0, 0, False)
        k_matrix = np.array([100.0, 0, 24, 0, 100, 16, 0, 0, 1])
        calm = (np.eye(3).ravel(), np.zeros(12), 0, 0, region)
        tell("/camera/camera_info", 50.0, info(header(50.0), 32, 48, "plumb_bob", np.zeros(5), k_matrix, *calm))
        time = t_["builtin_interfaces/msg/Time"](sec=50, nanosec=0)
        tell("/rosout", 50.0, t_["rcl_interfaces/msg/Log"](time, 20, "node", "hello", "file", "function", 1))


def test_a_ros_2_bag_without_ros(tmp_path: Path):
    write_bag(tmp_path / "bag")
    (episode,) = load_episodes(tmp_path / "bag")
    assert episode.spec.q.labels == ("pan", "tilt") and len(episode) == 15
    np.testing.assert_array_equal(episode.q[:, 1], 2.0 * np.arange(15))
    np.testing.assert_array_equal(episode.v, -episode.q)
    images = episode["observation.images.camera"]
    assert images[5][-1, -1, 0] == 15 and images[6][-1, -1, 0] == 30, "the last image at each row"
    stamps = episode["observation.images.camera.stamp"] - float(episode.meta["start"])
    assert stamps[6] == pytest.approx(0.58) and (stamps <= episode.t + 1e-6).all()
    pose = episode["observation.pose.base.tool"]
    np.testing.assert_allclose(pose[:, 0], 0.1 * np.arange(15), atol=1e-9)
    assert "rcl_interfaces/msg/Log" in episode.meta["skipped"]


def write_command_bag(
    folder: Path, order: list[int], *, late: float = 2e-5, still: bool = False, clock: float = 0.0
) -> np.ndarray:
    """A bag of three joints that follow an unnamed command array in another order; the commands by joint.

    The log is `clock` [s] ahead of the headers of the joint states.
    """
    from rosbags.rosbag2 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    t_ = store.types
    times = np.arange(200) * 0.02
    goal = np.stack([0.6 * np.sin(3 * times), 1.0 + 0.3 * np.cos(2 * times), -0.5 * np.sin(1.3 * times)], axis=1)
    goal = np.zeros_like(goal) if still else goal
    position = np.concatenate([goal[:3], goal[:-3]])  # three periods later
    with Writer(folder, version=9) as writer:
        kinds = {"/joint_states": "sensor_msgs/msg/JointState", "/arm/commands": "std_msgs/msg/Float64MultiArray"}
        to = {name: writer.add_connection(name, kind, typestore=store) for name, kind in kinds.items()}
        layout = t_["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
        for k, t in enumerate(50 + times):
            stamp = t_["builtin_interfaces/msg/Time"](sec=int(t), nanosec=round((t % 1) * 1e9))
            header = t_["std_msgs/msg/Header"](stamp=stamp, frame_id="")
            names = ["pan", "lift", "roll"]
            state = t_[kinds["/joint_states"]](header, names, position[k], np.zeros(0), np.zeros(0))
            command = t_[kinds["/arm/commands"]](layout, goal[k, order])
            for topic, message, sent in (("/joint_states", state, t), ("/arm/commands", command, t + late)):
                writer.write(to[topic], round((sent + clock) * 1e9), store.serialize_cdr(message, kinds[topic]))
    return goal


@pytest.mark.parametrize("order", [[2, 1, 0], [0, 1, 2], [1, 2, 0]])
def test_the_joints_of_an_unnamed_command_array_are_inferred_from_the_motion(tmp_path, order, caplog):
    goal = write_command_bag(tmp_path / "bag", order)
    (episode,) = load_episodes(tmp_path / "bag")
    names = ["pan", "lift", "roll"]
    assert episode.spec.action.labels == tuple(names[k] for k in order)
    np.testing.assert_allclose(episode.action, goal[:, order], atol=1e-12)
    assert "/arm/commands names no joints; their order is inferred by distance from position" in caplog.text
    assert episode.meta["command_order"] in caplog.text


def test_a_command_sent_just_after_its_state_is_in_the_row_of_that_state(tmp_path: Path):
    for name, late in (("before", -1e-5), ("at once", 0.0), ("after", 5e-5), ("later", 8e-3)):
        goal = write_command_bag(tmp_path / name, [0, 1, 2], late=late)
        (episode,) = load_episodes(tmp_path / name)
        np.testing.assert_allclose(episode.action, goal, atol=1e-12, err_msg=name)


def test_an_unnamed_command_array_whose_order_the_motion_does_not_tell_needs_a_mapping(tmp_path: Path):
    write_command_bag(tmp_path / "bag", [2, 1, 0], still=True)
    with pytest.raises(BadInput, match=r"name no joints.*the numbers 0, 1, 2 are for; name them .* under \[action\]"):
        load_episodes(tmp_path / "bag")
    named = '[action]\nfrom="command"\nlabels=["roll","lift","pan"]'
    (tmp_path / "m.toml").write_text(
        f'format="rosbag"\nfiles=["."]\ntime="time"\nq={{from="joints.position"}}\n{named}'
    )
    (episode,) = load_episodes(tmp_path / "bag", mapping=tmp_path / "m.toml")
    assert episode.spec.action.labels == ("roll", "lift", "pan")


def test_commands_without_a_header_are_moved_to_the_clock_of_the_joint_states(tmp_path: Path):
    goal = write_command_bag(tmp_path / "bag", [0, 1, 2], clock=1.7e9)
    (episode,) = load_episodes(tmp_path / "bag")
    np.testing.assert_allclose(episode.action, goal, atol=1e-12)


def mixed(tmp_path: Path) -> Path:
    """A recording of three episodes, of which the first lacks a camera."""
    for k in range(3):
        write_aloha(tmp_path / f"runs/episode_{k}.hdf5", 6 + k)
    with h5py.File(tmp_path / "runs/episode_0.hdf5", "r+") as file:
        del file["observations/images/cam_high"]
    return tmp_path / "runs"


@pytest.mark.parametrize("form", ["lerobot-v3.0", "lerobot-v2.1"])
def test_episodes_that_lack_a_camera_are_exported(tmp_path: Path, form: str):
    (tmp_path / "runs").mkdir()
    done = export_episodes(mixed(tmp_path), form, tmp_path / "out", mapping="aloha")
    first, second, third = load_episodes(tmp_path / "out")
    camera = "observation.images.cam_high"
    assert done.episodes == 3 and camera not in first and first.meta["missing"] == camera
    assert second[camera].shape == (7, 32, 48, 3) and len(third[camera]) == 8


def test_episodes_cameras_and_columns_are_chosen(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    source = mixed(tmp_path)

    def exported(**chosen: str | tuple[str, ...]):
        folder = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        export_episodes(source, "lerobot-v3.0", folder, mapping="aloha", selection=Selection(**chosen))
        return load_episodes(folder)

    assert [len(episode) for episode in exported(episodes="2,0")] == [8, 6]
    assert [len(episode) for episode in exported(episodes="1:", cameras=("cam_high",))] == [7, 8]
    plain = exported(cameras=("none",))
    assert len(plain) == 3 and not any("images" in name for episode in plain for name in episode.columns)
    (small,) = exported(episodes="1", columns=("observation.state", "action"), cameras=("none",))
    assert small.spec.q.labels[0] == "qpos_0" and small.q.shape == (7, 14) and "observation.effort" not in small
    newest = max(tmp_path.glob("out*/meta/info.json"), key=lambda path: path.stat().st_mtime_ns)
    features = set(json.loads(newest.read_text())["features"])
    assert features == {"observation.state", "action", MEASURED, *AUTOMATIC}
    for chosen, message in (
        ({"cameras": ("cam_high",)}, "Episode 0 has no camera 'cam_high' .*--episodes"),
        ({"cameras": ("cam_low",), "episodes": "1"}, r"has no camera 'cam_low' \(its cameras: cam_high\)"),
        ({"columns": ("actions",)}, "Did you mean 'action'"),
        ({"episodes": "3"}, "there are episodes 0 to 2"),
        ({"episodes": "a"}, "not a list of numbers and ranges"),
        ({"episodes": "1,0:2"}, "names an episode twice"),
    ):
        with pytest.raises(BadInput, match=message):
            exported(**chosen)


def test_every_export_can_be_imported_again(tmp_path: Path):
    given = [small_episode(9, 0, cameras=False), small_episode(7, 1, cameras=False)]
    source = write_dataset(given, tmp_path / "set")
    for form in ("csv", "npz"):
        done = export_episodes(source, form, tmp_path / form)
        assert done.rows == 16 and done.left_out == ()
        read = load_episodes(tmp_path / form, mapping=tmp_path / form / "map.toml")
        for a, b in zip(given, read, strict=True):
            np.testing.assert_array_equal(a.q, b.q)
            np.testing.assert_array_equal(a.action, b.action)
            np.testing.assert_array_equal(a["observation.state"], b["observation.state"].astype(np.float32))
            assert a.spec.q == b.spec.q and a.spec.action == b.spec.action


def test_csv_says_what_it_cannot_hold(tmp_path: Path):
    source = write_dataset([small_episode(9)], tmp_path / "set")
    assert export_episodes(source, "csv", tmp_path / "csv").left_out == (CAMERA,)
    with pytest.raises(BadInput, match="Did you mean 'mcap'"):
        export_episodes(source, "mcapp", tmp_path / "x")


def test_an_import_becomes_a_dataset_whole_or_not_at_all(tmp_path: Path):
    write_aloha(tmp_path / "a.hdf5")
    write_aloha(tmp_path / "b.hdf5", 8)
    done = import_recordings(tmp_path, tmp_path / "set", mapping="aloha")
    assert (done.episodes, done.rows) == (2, 20)
    assert [len(episode) for episode in load_episodes(tmp_path / "set")] == [12, 8]
    with pytest.raises(BadInput, match="is not empty"):
        import_recordings(tmp_path / "a.hdf5", tmp_path / "set")
    half = import_recordings(tmp_path / "a.hdf5", tmp_path / "slow", rate=25.0)
    assert half.rows == 6 and load_episodes(tmp_path / "slow")[0].spec.dt == 1 / 25


def test_episodes_of_several_rates_are_refused_until_a_rate_is_given(tmp_path: Path):
    for name, rate in (("fast", 100), ("slow", 20)):
        t = np.arange(20) / rate
        np.savez(tmp_path / f"{name}.npz", t=t, x=np.sin(t))
    (tmp_path / "m.toml").write_text('format="npz"\nfiles=["*.npz"]\ntime="t"\nq={from="x",labels=["j"]}')
    with pytest.raises(BadInput, match=r"different rates \(20, 100 Hz\)"):
        import_recordings(tmp_path, tmp_path / "set", mapping=tmp_path / "m.toml")
    assert not (tmp_path / "set").exists()
    import_recordings(tmp_path, tmp_path / "set", mapping=tmp_path / "m.toml", rate=50.0)
    assert len(load_episodes(tmp_path / "set")) == 2


def test_an_hdf5_export_has_aloha_s_layout_and_can_be_imported_again(tmp_path: Path):
    given = small_episode(9)
    source = write_dataset([given, small_episode(7, 1)], tmp_path / "set")
    done = export_episodes(source, "hdf5", tmp_path / "out")
    assert done.left_out == () and done.rows == 16
    with h5py.File(tmp_path / "out/episode_000000.hdf5") as file:
        np.testing.assert_array_equal(file["observations/qpos"], given.q)
        assert file["observations/images/top"].shape == (9, 32, 48, 3) and file.attrs["rate"] == pytest.approx(60)
    first, second = load_episodes(tmp_path / "out", mapping=tmp_path / "out/map.toml")
    for name in ("q", "v", "action", "observation.state", f"{CAMERA}.stamp"):
        np.testing.assert_allclose(first[name], given[name], atol=1e-12, err_msg=name)
    assert first.spec.q == given.spec.q and first.spec.action == given.spec.action and len(second) == 7
    np.testing.assert_allclose(np.diff(first.t), np.diff(given.t), atol=1e-12)
    assert np.abs(np.asarray(first[CAMERA]).astype(int) - np.asarray(given[CAMERA]).astype(int)).mean() < 6


def test_a_ros_2_bag_export_can_be_imported_again(tmp_path: Path):
    from instep.core.episode import Episode
    from instep.core.world import Spec, vector

    rows, rng = 12, np.random.default_rng(3)
    pose = rng.normal(size=(rows, 7))
    pose[:, 3:] /= np.linalg.norm(pose[:, 3:], axis=1, keepdims=True)
    parts = ("x", "y", "z", "qw", "qx", "qy", "qz")
    joints, speeds = ["pan", "tilt"], [f"cup.{part}" for part in ("vx", "vy", "vz", "wx", "wy", "wz")]
    q, v = vector([*joints, *(f"cup.{part}" for part in parts)], "1"), vector([*joints, *speeds], "1")
    effort = vector(joints, "Nm")
    spec = Spec(
        0.05, q, v, vector(["tilt", "pan"], "rad"), {"observation.effort": effort, "observation.force": vector(["f"])}
    )
    columns = {
        "timestamp": np.arange(rows) * 0.05, "q": np.concatenate([rng.normal(size=(rows, 2)), pose], axis=1),
        "v": rng.normal(size=(rows, 8)), "action": rng.normal(size=(rows, 2)),
        "observation.effort": rng.normal(size=(rows, 2)), "observation.force": rng.normal(size=(rows, 1)),
        CAMERA: numbered_images(rows), "clock.wall": 1.7e9 + np.arange(rows) * 0.05,
    }  # fmt: skip
    source = write_dataset([Episode(spec, columns)] * 2, tmp_path / "set")
    assert export_episodes(source, "rosbag", tmp_path / "out").left_out == ()
    assert [len(each) for each in load_episodes(tmp_path / "out")] == [rows, rows], "a folder of bags"
    (episode,) = load_episodes(tmp_path / "out/episode_000000")
    assert episode.spec.q.labels == ("pan", "tilt") and episode.spec.action.labels == ("tilt", "pan")
    np.testing.assert_array_equal(episode.q, columns["q"][:, :2])
    np.testing.assert_array_equal(episode.v, columns["v"][:, :2])
    np.testing.assert_array_equal(episode.action, columns["action"])
    np.testing.assert_array_equal(episode["observation.effort"], columns["observation.effort"])
    np.testing.assert_array_equal(episode["observation.observation_force"], columns["observation.force"])
    cup = episode["observation.pose.world.cup"]
    np.testing.assert_allclose(cup[:, :3], pose[:, :3], atol=1e-9)
    np.testing.assert_allclose(np.abs((cup[:, 3:] * pose[:, 3:]).sum(axis=1)), 1.0, atol=1e-9)
    assert episode["observation.images.top"].shape == (rows, 32, 48, 3)
    assert float(episode.meta["start"]) == pytest.approx(1.7e9)
    export_episodes(source, "mcap", tmp_path / "mcap")
    np.testing.assert_array_equal(load_episodes(tmp_path / "mcap")[0].q, columns["q"])


def test_a_rerun_export_holds_every_number_and_image(tmp_path: Path, rerun):
    from rerun.chunk import RrdReader

    given = small_episode(9)
    source = write_dataset([given], tmp_path / "set")
    assert export_episodes(source, "rerun", tmp_path / "out").left_out == ()
    chunks = list(RrdReader(tmp_path / "out/episode_000000.rrd").stream())
    stored = {chunk.entity_path: chunk.to_record_batch() for chunk in chunks}
    assert {f"/{name}/elbow" for name in ("q", "v", "observation/state")} <= set(stored)
    elbow = stored["/q/elbow"]
    np.testing.assert_array_equal(np.ravel(elbow.column("Scalars:scalars").to_pylist()), given.q[:, 1])
    np.testing.assert_allclose(elbow.column("time").cast("int64").to_numpy() * 1e-9, given.t, atol=1e-8)
    assert sum(chunk.num_rows for chunk in chunks if chunk.entity_path == "/cameras/top") == 9
