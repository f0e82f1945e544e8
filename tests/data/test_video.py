from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, Unsupported
from instep.data import frames as frame_cache
from instep.data import video
from instep.data.frames import FrameCache, Frames, VideoFile, decode_image, encode_png, open_stills, open_video
from instep.data.video import PacketWriter, VideoOptions, VideoWriter

from .conftest import numbered_images

IMAGES = numbered_images(30)


@pytest.fixture(scope="module", params=["auto", "libx264"])
def clip(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    with VideoWriter(path, 30, VideoOptions(codec=request.param)) as writer:
        for image in IMAGES:
            writer.add(image)
    return path


def test_frames_come_back_by_number_in_any_order(clip: Path):
    frames = open_video(clip)
    assert frames.shape == (30, 32, 48, 3) and len(frames) == 30 and frames.dtype == np.uint8
    for number in (17, 3, 29, 0, -1):
        red = int(frames[number][-1, -1, 0])
        assert red == pytest.approx(int(IMAGES[number][-1, -1, 0]), abs=10)
    whole = np.asarray(frames)
    np.testing.assert_array_equal(whole[17], frames[17])
    np.testing.assert_array_equal(np.asarray(frames[10:20:3]), whole[10:20:3])
    np.testing.assert_array_equal(np.asarray(frames[np.array([5, 2])]), whole[[5, 2]])
    with pytest.raises(IndexError):
        frames[30]


def test_packets_are_copied_without_loss(clip: Path, tmp_path: Path):
    writer = PacketWriter(tmp_path / "copy.mp4", 30, clip)
    writer.add(clip, 10, 6)
    writer.add(clip, 0, 4)
    writer.close()
    whole, copy = np.asarray(open_video(clip)), np.asarray(open_video(tmp_path / "copy.mp4"))
    np.testing.assert_array_equal(copy, np.concatenate([whole[10:16], whole[:4]]))
    key = video.index_of(clip).key
    assert video.can_copy(clip, 10, 6) and video.can_copy(clip, 20, 10), "from key frame to key frame or to the end"
    assert video.can_copy(clip, 11, 2) == bool(key[11] and key[13])


def test_asking_for_more_than_there_is_is_named(clip: Path):
    with pytest.raises(BadInput, match="the video and its table disagree"):
        open_video(clip, 20, 11)
    with pytest.raises(BadInput, match="holds 30 frames"):
        next(video.decode(clip, 0, 31))


@pytest.mark.parametrize("numbers", [np.arange(5), np.array([4])])
def test_a_frame_of_another_size_than_its_file_states_is_said(clip: Path, numbers: np.ndarray):
    """A damaged stream can change its size midway."""
    with pytest.raises(BadInput, match=r"Image \d of .* measures \(32, 48\) pixels, but its camera's are \(32, 46\)"):
        np.asarray(Frames(VideoFile(clip, (32, 46)), numbers))


def test_what_video_cannot_hold_is_said(tmp_path: Path):
    with pytest.raises(Unsupported, match="even height and width"):
        VideoWriter(tmp_path / "odd.mp4", 30).add(np.zeros((31, 48, 3), np.uint8))
    with pytest.raises(Unsupported, match="cannot encode with 'nothing'"):
        VideoWriter(tmp_path / "no.mp4", 30, VideoOptions(codec="nothing")).add(IMAGES[0])
    with (
        pytest.raises(BadInput, match="all images of one camera must be alike"),
        VideoWriter(tmp_path / "a.mp4", 30) as w,
    ):
        w.add(IMAGES[0])
        w.add(np.zeros((16, 16, 3), np.uint8))
    (tmp_path / "noise.mp4").write_bytes(b"no video at all" * 20)
    with pytest.raises(BadInput, match="cannot be read as video"):
        open_video(tmp_path / "noise.mp4")


def test_png_is_without_loss_and_damage_is_said():
    noise = np.random.default_rng(0).integers(0, 256, (21, 33, 3), dtype=np.uint8)
    data = encode_png(noise)
    np.testing.assert_array_equal(decode_image(data), noise)
    stills = open_stills(lambda k: encode_png(np.roll(noise, k, axis=1)), 4)
    np.testing.assert_array_equal(stills[2], np.roll(noise, 2, axis=1))
    with pytest.raises(BadInput, match="neither PNG nor JPEG"):
        decode_image(b"GIF89a")
    with pytest.raises(BadInput, match=r"The image 'left\.png' is neither"):
        open_stills(lambda k: b"GIF89a", 1, "left.png")
    with pytest.raises(BadInput, match="damaged"):
        decode_image(data[:20])


def test_the_cache_forgets_the_oldest_frames(clip: Path):
    cache = FrameCache(limit=10 * IMAGES[0].nbytes)
    first = cache.frame(clip, 0)
    for number in range(30):
        cache.frame(clip, number)
    np.testing.assert_array_equal(cache.frame(clip, 0), first)
    assert cache._used <= 10 * IMAGES[0].nbytes


def test_frames_in_order_are_decoded_once_though_nothing_is_kept(clip: Path, monkeypatch: pytest.MonkeyPatch):
    decoded: list[int] = []

    def counted(path: Path, start: int, stop: int):
        for image in video.decode(path, start, stop):
            decoded.append(start)
            yield image

    monkeypatch.setattr(frame_cache, "decode", counted)
    cache = FrameCache(limit=1)
    seen = [cache.frame(clip, number) for number in range(30)]
    assert len(decoded) <= 30 and len(set(decoded)) <= np.count_nonzero(video.index_of(clip).key[:30])
    for number in (29, 3, 4, 17):
        np.testing.assert_array_equal(cache.frame(clip, number), seen[number])


def test_a_file_that_was_replaced_is_decoded_anew(tmp_path: Path):
    cache, path, shades = FrameCache(), tmp_path / "clip.mp4", list[float]()
    for shade in (40, 200):
        with VideoWriter(path, 30) as writer:
            writer.add(np.full((64, 64, 3), shade, np.uint8))
        os.utime(path, ns=(shade, shade))
        shades.append(float(cache.frame(path, 0).mean()))
    assert abs(shades[0] - 40) < 4 and abs(shades[1] - 200) < 4


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="needs Linux: the scheduler of a thread is read")
def test_writing_a_video_keeps_the_place_in_line_of_its_caller(tmp_path):
    before = os.sched_getscheduler(0)
    with VideoWriter(tmp_path / "clip.mp4", 30) as video:
        for shade in range(3):
            video.add(np.full((64, 64, 3), 40 * shade, np.uint8))
            assert os.sched_getscheduler(0) == before
    assert os.sched_getscheduler(0) == before
