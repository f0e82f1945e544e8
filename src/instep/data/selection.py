"""Selection: some episodes, cameras and columns of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.records import frozen_dataclass
from instep.core.world import Channel, Spec
from instep.data.lerobot.features import CAMERA_PREFIX, is_image
from instep.data.resample import resampled

NO_CAMERAS = "none"
"""In place of the names of cameras: all of them are left out."""


@frozen_dataclass
class Selection:
    """Which episodes, cameras and columns to take; what is empty takes all."""

    episodes: str = ""
    """Numbers and ranges from 0 on, separated by commas: `0,3,5:8` takes 0, 3, 5, 6 and 7."""
    cameras: tuple[str, ...] = ()
    """Names of cameras, with or without `observation.images.`; `none` takes no camera."""
    columns: tuple[str, ...] = ()
    """Names of columns that are not images; the time of each row is always taken."""
    rate: float | None = None
    """Rows per second to resample to [Hz]; as they are where None."""

    def of(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """The chosen part of some episodes; an episode that lacks a chosen camera or column is named."""
        if self.rate is not None:
            episodes = [resampled(episode, self.rate) for episode in episodes]
        numbers = _numbers(self.episodes, len(episodes)) if self.episodes else range(len(episodes))
        if not self.cameras and not self.columns:
            return [episodes[k] for k in numbers] if self.episodes else episodes
        return [self._part(episodes[k], k) for k in numbers]

    def _part(self, episode: Episode, number: int) -> Episode:
        cameras = {name for name, column in episode.columns.items() if is_image(column)}
        wanted = {name if name in cameras else CAMERA_PREFIX + name for name in self.cameras if name != NO_CAMERAS}
        for name in sorted(wanted - cameras):
            known = ", ".join(sorted(c.removeprefix(CAMERA_PREFIX) for c in cameras)) or "none"
            raise BadInput(
                f"Episode {number} has no camera {name.removeprefix(CAMERA_PREFIX)!r} (its cameras: {known}); choose "
                "other cameras with --cameras, or episodes that have it with --episodes."
            )
        numbers = [name for name in episode.columns if name not in cameras]
        for name in self.columns:
            if name not in numbers:
                raise UnknownName(f"column of numbers in episode {number}", name, numbers)
        kept = cameras if not self.cameras else wanted
        chosen = set(self.columns or numbers) | kept | {"timestamp"}
        stamps = {f"{name}.stamp": name for name in cameras}
        chosen = {name for name in chosen if stamps.get(name, name) in chosen}
        return _with_columns(episode, chosen | {stamp for stamp, name in stamps.items() if name in chosen})


def _numbers(text: str, count: int) -> list[int]:
    """The numbers of a list such as `0,3,5:8`, in its order."""
    out: list[int] = []
    for part in text.split(","):
        first, colon, last = (word.strip() for word in part.partition(":"))
        try:
            start = int(first or 0) if colon else int(first)
            stop = (int(last) if last else count) if colon else start + 1
        except ValueError:
            raise BadInput(f"--episodes {text!r} is not a list of numbers and ranges such as 0,3,5:8.") from None
        if not 0 <= start < stop <= count:
            raise BadInput(f"--episodes {text!r} asks for {part.strip()!r}, but there are episodes 0 to {count - 1}.")
        out += range(start, stop)
    if len(set(out)) < len(out):
        raise BadInput(f"--episodes {text!r} names an episode twice.")
    return out


def _with_columns(episode: Episode, names: set[str]) -> Episode:
    """The episode with some of its columns, and a spec that describes no others."""
    columns = {name: column for name, column in episode.columns.items() if name in names}
    spec, none = episode.spec, Channel(shape=(0,))
    meta = {
        key: text for key, text in episode.meta.items() if key.removesuffix(".from") in columns or ".from" not in key
    }
    missing = [name for name in meta.pop("missing", "").split(", ") if name in names]
    parts: dict[str, Channel] = {name: getattr(spec, name) for name in ("q", "v", "action", "inputs")}
    parts = {name: channel if name in columns else none for name, channel in parts.items()}
    state = spec.observation.get("observation.state")
    if "q" not in columns and "observation.state" in columns and state is not None:
        # Positions are then what other software takes them for.
        parts["q"] = replace(state, dtype="float64")
    observation = {name: channel for name, channel in spec.observation.items() if name in names}
    noted = {**meta, "missing": ", ".join(missing)} if missing else meta
    return Episode(Spec(spec.dt, observation=observation, **parts), columns, noted)
