"""Episodes that are read from disk when looked at."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import overload

from instep.core.episode import Episode

KEPT = 256
"""How many episodes stay in memory; their images never do."""


class LazyEpisodes(Sequence[Episode]):
    """A sequence of episodes, each read at its first use."""

    def __init__(self, count: int, read: Callable[[int], Episode]):
        self._numbers, self._read = range(count), read
        self._kept: OrderedDict[int, Episode] = OrderedDict()

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> LazyEpisodes: ...
    def __getitem__(self, index: int | slice) -> Episode | LazyEpisodes:
        if isinstance(index, slice):
            part = LazyEpisodes(0, self._read)
            part._numbers, part._kept = self._numbers[index], self._kept
            return part
        number = self._numbers[index]
        if number not in self._kept:
            self._kept[number] = self._read(number)
        self._kept.move_to_end(number)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[number]
