"""TensorBoard's event files: scalars as records of protocol buffers.

A record is its length, the length's checksum, an `Event`, and that one's checksum (tensorflow:core/lib/io/
record_writer.h, core/util/event.proto, core/framework/summary.proto). The libraries that write them import torch and
the clients of cloud stores where these are installed, which takes seconds at the start of every run.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

_VERSION = b"brain.Event:2"
_START = 1  # SessionLog.START: readers drop the events from this step on that came before


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial, reversed
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


class EventFile:
    """New event file in a folder.

    Args:
        folder: Created if it does not exist.
        obsolete_from: Step whose events, and all later ones, are obsolete in earlier files; None: none are.
    """

    def __init__(self, folder: Path, obsolete_from: int | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in folder.iterdir())  # two of the same second must not have the same name
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{number}"
        self._file = (folder / name).open("wb")
        self._write(0, _bytes(3, _VERSION))
        if obsolete_from is not None:
            self._write(obsolete_from, _bytes(7, _varint(1 << 3) + _varint(_START)))
        self._file.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends scalars by name.

        Raises:
            OSError: The disk is full, for example.
        """
        for name, value in scalars.items():
            with np.errstate(over="ignore"):  # beyond float32 is infinite
                number = np.asarray(value, "<f4").tobytes()
            scalar = _bytes(1, name.encode()) + _varint(2 << 3 | 5) + number
            self._write(step, _bytes(5, _bytes(1, scalar)))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, step: int, content: bytes) -> None:
        """Appends an event: the wall time in seconds (field 1), the step (2), and its content."""
        event = _varint(1 << 3 | 1) + struct.pack("<d", time.time()) + _varint(2 << 3) + _varint(step) + content
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


def _bytes(field: int, content: bytes) -> bytes:
    """Returns a field of bytes, text or a message."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Returns a number below 2**63 in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _checksum(data: bytes) -> bytes:
    """Returns the CRC-32C of data, rotated and shifted, as records hold it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
