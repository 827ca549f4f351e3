"""Errors that the user can fix, and checks that raise them."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Collection, Iterable

USER_CODE_ERRORS = (Exception, SystemExit, GeneratorExit)
"""What code of the user's, such as a config file, may raise: all but Ctrl-C."""
_LONGEST_MESSAGE = 2000


class UserError(Exception):
    """Error that the user can fix: the command line prints the message as one line and exits with 2."""

    def __str__(self) -> str:
        """Returns one line: the message may quote text of the user's, which is cut where it is long."""
        text = " ".join(super().__str__().splitlines())
        if len(text) > _LONGEST_MESSAGE:
            text = f"{text[: _LONGEST_MESSAGE // 2]} ... {text[-_LONGEST_MESSAGE // 2 :]}"
        return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def require_one_of(key: str, value: str, allowed: Collection[str]) -> None:
    """Checks that a value is one of several.

    Args:
        key: Name of the setting, for the message.
        value: Its value.
        allowed: Values that it may have.

    Raises:
        UserError: The value is not allowed; the message names the nearest.
    """
    if value not in allowed:
        near = difflib.get_close_matches(str(value)[:100], allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"{key} must be one of {', '.join(allowed)}, not {shortened(value)}{hint}")


def require_regular_file(path: str, where: str = "") -> None:
    """Raises `UserError` for pipes and devices, which may block or never end; begins with `where`, by default the path.

    What does not exist is left to the function that opens it.
    """
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise UserError(f"{where or path}: {path} is a pipe, socket or device; give a file")


def require_path(key: str, path: str) -> None:
    """Raises `UserError` for a path that is longer than file systems allow."""
    longest = max(len(name.encode()) for name in path.split("/"))
    if longest > 255 or len(path.encode()) > 4095:
        raise UserError(f"{key}={shortened(path)} is too long for a path: names have at most 255 bytes, paths 4095")


def require_text(key: str, value: str) -> None:
    """Raises `UserError` for text that neither files nor paths can hold: NUL, bytes that are not UTF-8."""
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise UserError(f"{key} holds a NUL character or bytes that are not UTF-8: {shortened(value)}")


def shortened(value: object) -> str:
    """Returns the `repr` of a value, cut after 200 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print whole numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 200 else text[:200] + "..."


def comma_list(items: Iterable[object], limit: int | None = None) -> str:
    """Returns the items separated by commas, "none" where there are none.

    Args:
        items: what to list, by its `str`.
        limit: only that many are named; the others are counted.
    """
    texts = list(map(str, items))
    more = len(texts) - len(texts[:limit])
    return (", ".join(texts[:limit]) or "none") + (f" and {more} more" if more else "")


def is_panic(error: BaseException) -> bool:
    """Returns whether an error is a panic of Rust code, whose class cannot be imported and is no `Exception`."""
    return type(error).__name__ == "PanicException"


def one_line(error: object) -> str:
    """Returns the message of an error on one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"
