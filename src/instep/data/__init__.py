"""Episodes on disk: load any recording, record crash-safe, write LeRobot datasets, import and export other formats."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset_info import DatasetInfo as DatasetInfo
    from .dataset_info import contact_sheet as contact_sheet
    from .dataset_info import describe_dataset as describe_dataset
    from .exchange import ExchangeResult as ExchangeResult
    from .exchange import export_episodes as export_episodes
    from .exchange import import_recordings as import_recordings
    from .lerobot.features import WriteOptions as WriteOptions
    from .lerobot.writer import append_episodes as append_episodes
    from .lerobot.writer import write_dataset as write_dataset
    from .loading import load_episodes as load_episodes
    from .loading import load_table as load_table
    from .mapping import DataMapping as DataMapping
    from .mapping import shipped_mappings as shipped_mappings
    from .recorder.recorder import Recorder as Recorder
    from .recorder.recorder import RecorderStatus as RecorderStatus
    from .recorder.recorder import RecordOptions as RecordOptions
    from .recorder.recovery import RecordingResult as RecordingResult
    from .recorder.recovery import finish_recording as finish_recording
    from .recorder.recovery import record_episodes as record_episodes
    from .recorder.recovery import recover as recover
    from .recorder.recovery import streams_of as streams_of
    from .resample import between as between
    from .resample import resampled as resampled
    from .resample import with_stream as with_stream
    from .resample import with_velocity as with_velocity
    from .video import VideoOptions as VideoOptions
    from .video import VideoWriter as VideoWriter

# Modules are imported when a name of theirs is first used: pyarrow and PyAV are loaded by what needs them.
_NAMES = {
    "dataset_info": ("DatasetInfo", "contact_sheet", "describe_dataset"),
    "exchange": ("ExchangeResult", "export_episodes", "import_recordings"),
    "lerobot.features": ("WriteOptions",),
    "lerobot.writer": ("append_episodes", "write_dataset"),
    "loading": ("load_episodes", "load_table"),
    "mapping": ("DataMapping", "shipped_mappings"),
    "recorder.recorder": ("Recorder", "RecorderStatus", "RecordOptions"),
    "recorder.recovery": ("RecordingResult", "finish_recording", "record_episodes", "recover", "streams_of"),
    "resample": ("between", "resampled", "with_stream", "with_velocity"),
    "video": ("VideoOptions", "VideoWriter"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
