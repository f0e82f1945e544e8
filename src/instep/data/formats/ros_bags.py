"""ROS bags, 1 and 2, read without ROS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from instep.core.errors import BadInput
from instep.data.file_limits import library

from .raw_run import Raw
from .ros_messages import Log


def read(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """One run of a bag: its joint states, commands, images, camera descriptions and transforms.

    Types that the bag does not define and the newest ROS 2 does not know are passed over and named.
    """
    log = Log()
    high, types = library("rosbags.highlevel"), library("rosbags.typesys")
    try:
        store = types.get_typestore(types.Stores.LATEST)
        with high.AnyReader([path], default_typestore=store) as reader:
            for connection, received, data in reader.messages():
                try:
                    message = reader.deserialize(data, connection.msgtype)
                except Exception:  # noqa: BLE001  # an unknown or damaged type is counted and named, not fatal
                    log.skip(connection.msgtype)
                    continue
                log.add(connection.topic, connection.msgtype, received * 1e-9, message)
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001  # the library raises many kinds; each means the bag is damaged
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
        raise BadInput(f"{str(path)!r} cannot be read as a ROS bag ({text}).") from None
    yield log.raw(path.name, str(options.get("joints", "")), str(options.get("command", "")))
