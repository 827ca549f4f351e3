"""The rule for JSON of a folder: every key is used, known to change nothing, refused by name, or named in a warning."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from bertjax.errors import UserError, comma_list

log = logging.getLogger(__name__)


class JsonKeys(dict[str, Any]):
    """A JSON object that knows which of its keys nothing has read yet."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.unread = set(values)

    def __getitem__(self, key: str) -> Any:
        self.unread.discard(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value and counts the key as read."""
        self.unread.discard(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.unread.discard(str(key))
        return super().__contains__(key)

    def warn_of_unread(self, where: str, inert: Collection[str] = ()) -> None:
        """Names keys in a warning that were not read and are not known to change nothing, as `inert` ones are."""
        if unread := self.unread - {*inert}:
            log.warning("%s: keys that bertjax does not know are ignored: %s", where, comma_list(sorted(unread), 8))

    def refuse_unread(self, where: str, inert: Collection[str] = ()) -> None:
        """Raises `UserError` where `warn_of_unread` warns: in files in which every key changes what is computed."""
        if unread := sorted(self.unread - {*inert}):
            raise UserError(f"{where}: {comma_list(unread, 8)}: not known to bertjax; remove what has no effect")


def refuse(values: Mapping[str, Any], where: str, key: str, allowed: Collection[Any], reason: str) -> None:
    """Checks that a key is absent or has a supported value.

    Args:
        values: the JSON object.
        where: the file to name in errors.
        key: the key.
        allowed: supported values.
        reason: why others are not.

    Raises:
        UserError: it has another value.
    """
    if key in values and values[key] not in allowed:
        raise UserError(f"{where}: {key} = {values[key]!r} is not supported: {reason}")
