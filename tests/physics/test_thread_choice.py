"""Threads are chosen by the time they take, and change no result."""

from __future__ import annotations

import numpy as np

from instep import MujocoWorld
from instep.core.world import stack
from instep.physics.world_batches import ThreadChoice, most_threads


def _played(choice: ThreadChoice, seconds: dict[int, float], calls: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(calls):
        chosen.append(choice.next())
        choice.note(chosen[-1], seconds[chosen[-1]])
    return chosen


def test_every_number_of_threads_is_tried_and_the_fastest_kept():
    choice = ThreadChoice(4)
    chosen = _played(choice, {4: 3.0, 2: 1.0, 1: 2.0}, 200)
    assert set(chosen[:3]) == {1, 2, 4}
    assert choice.best == 2
    # Trying the others again costs little: the mean stays within a tenth of the best.
    assert np.mean([{4: 3.0, 2: 1.0, 1: 2.0}[count] for count in chosen[3:]]) < 1.1


def test_the_choice_follows_a_machine_that_becomes_busy():
    choice = ThreadChoice(2)
    _played(choice, {2: 1.0, 1: 1.8}, 100)
    assert choice.best == 2
    _played(choice, {2: 4.0, 1: 1.8}, 20)
    assert choice.best == 1
    _played(choice, {2: 1.0, 1: 1.8}, 2000)
    assert choice.best == 2


def test_little_work_wakes_one_thread():
    assert most_threads(worlds=4, steps=1) == 1


def test_a_world_that_chooses_threads_steps_as_one_thread_does():
    chosen, one = MujocoWorld("pusht"), MujocoWorld("pusht", threads=1)
    start = stack([one.reset(seed) for seed in range(16)])
    action = np.broadcast_to(one.scene.rest_action(), (16, one.model.nu)).copy()
    a = b = start
    for _ in range(6):
        a, b = chosen.step(a, action), one.step(b, action)
    assert np.array_equal(a.hidden["mujoco"], b.hidden["mujoco"])


def test_a_number_that_was_slower_is_not_tried_twice_in_a_row():
    choice = ThreadChoice(8)
    seconds = {8: 1.0, 4: 2.0, 2: 4.0, 1: 8.0}
    assert _played(choice, seconds, 12) == [8, 4, *[8] * 10]


def test_batches_of_about_the_same_size_share_what_was_measured():
    world = MujocoWorld("pusht")
    assert world._choice(100, 60) is world._choice(110, 50)
    assert world._choice(100, 60) is not world._choice(300, 60)
