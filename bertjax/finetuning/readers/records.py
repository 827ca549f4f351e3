"""Records of labelled data: where each is, its columns and fields, and rows of hub data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bertjax.config.sources import Source
from bertjax.errors import UserError, comma_list, one_line


class Places:
    """Where every example stands, for messages: "train.tsv:17"."""

    def __init__(self) -> None:
        self._prefixes: list[str] = []
        self._numbers: list[int] = []

    def add(self, prefix: str, number: int) -> None:
        """The next example stands at `prefix` + `number`: "train.tsv:" and 17."""
        self._prefixes.append(prefix)
        self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> str:
        return f"{self._prefixes[index]}{self._numbers[index]}"


def hub_rows(source: Source) -> Any:
    """The `datasets.Dataset` of a hub source; raises `UserError` whatever the library or the network says."""
    import datasets

    name, config, split = source.hub_parts
    try:
        found = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # every layer below has its own errors: network, unknown name, broken file
        raise UserError(
            f"{source.key}: hub data set {name!r} (config {config or 'default'}, split {split}) failed: "
            f"{one_line(error)}; check name, config, split and network, or give local files"
        ) from error
    return found


def hub_prefix(source: Source) -> str:
    return f"hub data set {source.where}, row "


def class_names(feature: Any) -> list[str] | None:
    """The names of a hub column of classes, or of lists of classes; None for other columns."""
    for _ in range(2):
        names = getattr(feature, "names", None)
        if names:
            return list(names)
        feature = getattr(feature, "feature", None)
    return None


def column_of(name: str, header: list[str], key: str, where: str) -> int:
    """The number of a column by its name, else by its number, negative ones from the end; raises `UserError`."""
    if name in header:
        if header.count(name) > 1:
            raise UserError(f"{where}: two columns are named {name!r}; name one by its number (0 = the first)")
        return header.index(name)
    try:
        number = int(name)
    except ValueError:
        number = len(header)
    if not -len(header) <= number < len(header):
        raise UserError(f"{where}: no column {name!r} (it has {_columns(header)}); set {key} to one of them")
    return number % len(header)


def field_of(record: Mapping[str, Any], name: str, key: str, where: str) -> Any:
    """A field of a JSON object or of a row of the hub; raises `UserError`, naming those that there are."""
    if name not in record:
        raise UserError(f"{where}: no field {name!r} (it has {_columns(record)}); set {key} to one")
    return record[name]


def text_of(value: Any, name: str, where: str, errors: str = "strict") -> str:
    """The value as valid text: JSON can carry half a surrogate pair, which no tokenizer accepts."""
    if not isinstance(value, str):
        kind = "nothing" if value is None else type(value).__name__
        raise UserError(f"{where}: field {name!r} holds {kind} where text is expected")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                raise UserError(f"{where}: half a surrogate pair in {name!r} (invalid Unicode); mend it") from error
            return value.encode(errors="replace").decode()
    return value


def _columns(names: Iterable[object]) -> str:
    return one_line(comma_list(names, 12))
