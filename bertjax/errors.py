"""Errors that the user can fix, and checks that raise them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


class UserError(Exception):
    """Something the user can mend: the command line prints the message as one line and exits with 2."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # it may quote text of the user's that holds newlines


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
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"{key} must be one of {', '.join(allowed)}, not {value!r}{hint}")


def comma_list(items: Iterable[object], limit: int | None = None) -> str:
    """Returns the items separated by commas, "none" where there are none.

    Args:
        items: what to list, by its `str`.
        limit: only that many are named; the others are counted.
    """
    texts = list(map(str, items))
    more = len(texts) - len(texts[:limit])
    return (", ".join(texts[:limit]) or "none") + (f" and {more} more" if more else "")


def one_line(error: object) -> str:
    """Returns the message of an error on one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"
