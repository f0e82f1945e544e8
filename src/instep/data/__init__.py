"""Episodes on disk: load any recording, record crash-safe, write LeRobot datasets, import and export other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .datasets import (
        DatasetInfo,
        ExchangeResult,
        Selection,
        dataset_page,
        describe_dataset,
        export_episodes,
        import_episodes,
        import_recordings,
    )
    from .guess.joint_columns import GuessRow, RobotActuator, RobotJoint, RobotLayout
    from .guess.mapping_guess import MappingGuess, draft_toml, guess_mapping, write_draft
    from .lerobot.features import WriteOptions
    from .lerobot.writer import append_episodes, write_dataset
    from .loading import Logs, find_logs, load_episodes, load_table
    from .mapping import DataMapping, shipped_mappings
    from .recorder.recorder import Recorder, RecorderStatus, RecordOptions
    from .recorder.recovery import RecordingResult, finish_recording, record_episodes, recover
    from .resample import resampled
    from .video import VideoOptions, VideoWriter

__all__ = [
    "DataMapping", "DatasetInfo", "ExchangeResult", "GuessRow", "Logs", "MappingGuess", "RecordOptions", "Recorder",
    "RecorderStatus", "RecordingResult", "RobotActuator", "RobotJoint", "RobotLayout", "Selection", "VideoOptions",
    "VideoWriter", "WriteOptions", "append_episodes", "dataset_page", "describe_dataset", "draft_toml",
    "export_episodes", "find_logs", "finish_recording", "guess_mapping", "import_episodes", "import_recordings",
    "load_episodes", "load_table", "record_episodes", "recover", "resampled", "shipped_mappings",
    "write_dataset", "write_draft",
]  # fmt: skip

# Modules are imported when a name of theirs is first used: pyarrow and PyAV are loaded by what needs them.
__getattr__ = lazy_names(
    __name__,
    {
        "datasets": (
            "DatasetInfo ExchangeResult Selection dataset_page describe_dataset export_episodes import_episodes "
            "import_recordings"
        ),
        "guess.joint_columns": "GuessRow RobotActuator RobotJoint RobotLayout",
        "guess.mapping_guess": "MappingGuess draft_toml guess_mapping write_draft",
        "lerobot.features": "WriteOptions",
        "lerobot.writer": "append_episodes write_dataset",
        "loading": "Logs find_logs load_episodes load_table",
        "mapping": "DataMapping shipped_mappings",
        "recorder.recorder": "RecordOptions Recorder RecorderStatus",
        "recorder.recovery": "RecordingResult finish_recording record_episodes recover",
        "resample": "resampled",
        "video": "VideoOptions VideoWriter",
    },
)
