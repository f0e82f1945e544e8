"""Episodes on disk: load any recording, record crash-safe, write LeRobot datasets, import and export other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

if TYPE_CHECKING:
    from .dataset_info import DatasetInfo, contact_sheet, describe_dataset
    from .exchange import ExchangeResult, export_episodes, import_recordings
    from .guess_parts import GuessRow, RobotActuator, RobotJoint, RobotLayout
    from .lerobot.features import WriteOptions
    from .lerobot.writer import append_episodes, write_dataset
    from .loading import load_episodes, load_table
    from .mapping import DataMapping, shipped_mappings
    from .mapping_draft import draft_toml, write_draft
    from .mapping_guess import MappingGuess, guess_mapping
    from .recorder.recorder import Recorder, RecorderStatus, RecordOptions
    from .recorder.recovery import RecordingResult, finish_recording, record_episodes, recover, streams_of
    from .resample import between, resampled, with_stream, with_velocity
    from .selection import Selection
    from .video import VideoOptions, VideoWriter

__all__ = [
    "DataMapping", "DatasetInfo", "ExchangeResult", "GuessRow", "MappingGuess", "RecordOptions", "Recorder",
    "RecorderStatus", "RecordingResult", "RobotActuator", "RobotJoint", "RobotLayout", "Selection", "VideoOptions",
    "VideoWriter", "WriteOptions", "append_episodes", "between", "contact_sheet", "describe_dataset", "draft_toml",
    "export_episodes", "finish_recording", "guess_mapping", "import_recordings", "load_episodes", "load_table",
    "record_episodes", "recover", "resampled", "shipped_mappings", "streams_of", "with_stream", "with_velocity",
    "write_dataset", "write_draft",
]  # fmt: skip

# Modules are imported when a name of theirs is first used: pyarrow and PyAV are loaded by what needs them.
__getattr__ = lazy_names(
    __name__,
    {
        "dataset_info": "DatasetInfo contact_sheet describe_dataset",
        "exchange": "ExchangeResult export_episodes import_recordings",
        "lerobot.features": "WriteOptions",
        "lerobot.writer": "append_episodes write_dataset",
        "loading": "load_episodes load_table",
        "guess_parts": "GuessRow RobotActuator RobotJoint RobotLayout",
        "mapping": "DataMapping shipped_mappings",
        "mapping_draft": "draft_toml write_draft",
        "mapping_guess": "MappingGuess guess_mapping",
        "recorder.recorder": "Recorder RecorderStatus RecordOptions",
        "recorder.recovery": "RecordingResult finish_recording record_episodes recover streams_of",
        "resample": "between resampled with_stream with_velocity",
        "selection": "Selection",
        "video": "VideoOptions VideoWriter",
    },
)
