"""Formats sizes and times for the console."""

from __future__ import annotations

import math


def format_bytes(size: float) -> str:
    """Returns "1.50 GiB", or MiB below half a GiB."""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"


def format_seconds(seconds: float) -> str:
    """Returns "123 ms", with a decimal below 100 ms; "never" for infinity."""
    if math.isinf(seconds):
        return "never"
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
