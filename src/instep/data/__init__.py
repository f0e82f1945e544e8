"""Episodes on disk: load any recording, record crash-safe, write LeRobot datasets, import and export other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .datasets import Selection, dataset_page, describe_dataset, export_episodes, import_episodes, import_recordings
    from .guess import guess_mapping, write_draft
    from .lerobot import WriteOptions
    from .lerobot.writer import write_dataset
    from .loading import find_logs, load_episodes
    from .mapping import DataMapping
    from .recorder import Recorder, RecordOptions
    from .recovery import finish_recording, record_episodes, recover

__all__ = [
    "DataMapping", "RecordOptions", "Recorder", "Selection", "WriteOptions", "dataset_page", "describe_dataset",
    "export_episodes", "find_logs", "finish_recording", "guess_mapping", "import_episodes", "import_recordings",
    "load_episodes", "record_episodes", "recover", "write_dataset", "write_draft",
]  # fmt: skip

# Modules are imported when a name of theirs is first used: pyarrow and PyAV are loaded by what needs them.
__getattr__ = lazy_names(
    __name__,
    {
        "datasets": "Selection dataset_page describe_dataset export_episodes import_episodes import_recordings",
        "guess": "guess_mapping write_draft",
        "lerobot": "WriteOptions",
        "lerobot.writer": "write_dataset",
        "loading": "find_logs load_episodes",
        "mapping": "DataMapping",
        "recorder": "RecordOptions Recorder",
        "recovery": "finish_recording record_episodes recover",
    },
)
