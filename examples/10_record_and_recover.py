"""Record a run, kill the writer in the middle of the next one, and find every row that was written."""

import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from instep import Constant, open_world, rollout
from instep.data import Recorder, RecordOptions, finish_recording, load_episodes

world = open_world("cartpole")
policy = Constant(np.array([0.5]))

with TemporaryDirectory() as folder:
    data = Path(folder) / "runs"
    recorder = Recorder(data, world.spec, meta={"task": "push"}, options=RecordOptions(queue_mb=8))
    rollout(world, policy, steps=200, watch=[recorder])
    recorder.commit()

    rollout(world, policy, steps=100, seed=1, watch=[recorder])
    recorder.flush()
    os.kill(recorder.writer_pid, signal.SIGKILL)  # what a crash does
    recorder.stop(commit=False)

    for episode in load_episodes(data):
        print(f"{len(episode)} rows, complete: {episode.meta['complete']}, {episode.meta.get('lost', 'nothing lost')}")

    done = finish_recording(data)  # LeRobot files of what is there
    print(f"{done.episodes} episodes, {done.rows} rows in a LeRobot dataset")
    assert [len(episode) for episode in load_episodes(data)] == [200, 100]
