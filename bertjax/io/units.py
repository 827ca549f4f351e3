"""Sizes and times as text."""

from __future__ import annotations

import math
import re

from bertjax.errors import UserError


def format_bytes(size: float) -> str:
    """Returns "1.50 GiB", or MiB below half a GiB."""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"


def format_seconds(seconds: float) -> str:
    """Returns "123 ms", with a decimal below 100 ms; "never" for infinity."""
    if math.isinf(seconds):
        return "never"
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def format_count(count: float) -> str:
    """Returns 0.4M, 12M or 1.7B."""
    return f"{count / 1e9:.1f}B" if count >= 999.5e6 else f"{count / 1e6:.{0 if count >= 9.95e6 else 1}f}M"


def parse_size(name: str, text: str) -> int:
    """Returns the bytes of a size such as 500MB or 5GB, in powers of 1000 as `transformers` counts them.

    Args:
        name: flag or argument, for the message.
        text: the size.

    Raises:
        UserError: the text is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG])B", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise UserError(f"{name} must be a size such as 500MB or 5GB, not {text!r}")
    return int(float(match[1]) * 1000 ** ("KMG".index(match[2].upper()) + 1))
