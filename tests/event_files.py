"""Reading TensorBoard's event files, without TensorBoard."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboardX.proto import event_pb2


def read_events(folder: Path) -> list[event_pb2.Event]:
    """Return the events of all files: records of a length, its checksum, the event, another."""
    events = []
    for path in sorted(folder.glob("events.*")):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack_from("<Q", data, place)
            events.append(event_pb2.Event.FromString(data[place + 12 : place + 12 + size]))
            place += size + 16
    return events
