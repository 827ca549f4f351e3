"""Names of configs: `bert:base` is the file bert.py among the configs that bertjax ships, with the argument base."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config.extensions import TASK_KINDS
from bertjax.errors import UserError, comma_list, plain_name


@functools.cache
def shipped_configs() -> Mapping[str, Path]:
    """Returns the config files that come with bertjax, by name: those of the wheel, or of the clone that runs."""
    package = Path(__file__).parents[1]
    folder = next((each for each in (package / "configs", package.parent / "configs") if each.is_dir()), package)
    files = sorted(folder.rglob("*.py")) if folder != package else []
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}


def sizes_of(path: Path) -> tuple[str, ...]:
    """Returns the arguments that a config file names in `SIZES`; none if it has no such list. The file is executed."""
    return tuple(run_file(str(path), path.read_bytes()).get("SIZES", ()))


def run_file(path: str, source: bytes) -> dict[str, Any]:
    """Runs the source of a config file, without reading or writing bytecode, and returns its names."""
    names: dict[str, Any] = {"__name__": "bertjax_config", "__file__": path}
    exec(compile(source, path, "exec"), names)
    return names


def split_argument(spec: str) -> tuple[str, str | None]:
    """Returns the config and its argument: `bert:base` is bert with base, `my/bert.py:base` my/bert.py with base."""
    path, extension, argument = spec.partition(".py:")
    if spec.endswith(".py"):
        return spec, None
    if extension:
        return f"{path}.py", argument
    name, colon, argument = spec.partition(":")
    return name, argument if colon else None


def resolve(spec: str) -> tuple[str, str | None]:
    """Returns path and argument of a config.

    Args:
        spec: `PATH.py` or `PATH.py:ARGUMENT`, or `NAME` or `NAME:ARGUMENT` of a config that bertjax ships. Paths end in
            `.py` and names never do, so neither can be taken for the other.

    Raises:
        UserError: There is no config of that name; the message has the nearest one.
    """
    name, argument = split_argument(spec)
    if name.endswith(".py"):
        return name, argument
    if name in shipped_configs():
        return str(shipped_configs()[name]), argument
    if Path(name).is_file():
        raise UserError(f"{spec} is not a config: a config is a Python file, PATH.py or PATH.py:ARGUMENT")
    raise UserError(f"there is no config {spec}{_nearest(spec)}; `bertjax configs` lists them, a file is PATH.py")


def name_for(path: str) -> str | None:
    """Returns the name of the shipped config that a missing path was probably meant to be; None if there is none."""
    parts = Path(path).with_suffix("").parts
    names = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((name for name in names if name in shipped_configs()), None)


def _nearest(spec: str) -> str:
    name = spec.partition(":")[0]
    if Path(f"{name}.py").is_file():
        return f"; did you mean {name}.py{spec[len(name) :]}?"
    folder, _, last = spec.lower().removeprefix("configs/").rpartition("/")
    files = {each: path for each, path in shipped_configs().items() if each.startswith(folder)}
    kind = TASK_KINDS.hints.get(plain_name(last.partition(":")[0]))
    specs = [*files, *(f"{each}:{size}" for each, path in files.items() for size in sizes_of(path))]
    by_last = {each.rpartition("/")[2]: each for each in specs}  # what all of a folder share makes nothing nearer
    near = [each for each in specs if folder and each.endswith(f":{last}")] + [f"finetune/{kind}"] * bool(kind)
    near = near or [by_last[each] for each in difflib.get_close_matches(last, by_last, n=1)]
    if folder and files and not near:
        return f"; there are {comma_list(files)}"
    return f"; did you mean {near[0]}?" if near else ""
