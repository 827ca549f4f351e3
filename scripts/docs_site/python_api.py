"""The public names of `bertjax`, and the protocols that other packages implement."""

from __future__ import annotations

import types

import bertjax

PROTOCOLS = {
    "Objectives": ("bertjax.config.objectives.base.ObjectiveConfig", "bertjax.objectives.base.Objective"),
    "Example formats": ("bertjax.data.formats.base.ExampleFormat",),
    "Families of Hugging Face folders": ("bertjax.hf.keymaps.family.Family", "bertjax.hf.keymap.KeyMap"),
    "Tasks": ("bertjax.config.task.TaskKind", "bertjax.finetuning.tasks.TaskFunctions"),
}


def public_names() -> str:
    """Returns a directive of mkdocstrings for every name of `bertjax.__all__`."""
    values = {name: getattr(bertjax, name) for name in bertjax.__all__ if not name.startswith("__")}
    return "\n\n".join(_directive(_path(value)) for value in values.values())


def protocols() -> str:
    """Returns the directives of the protocols by heading."""
    return "\n\n".join(f"## {title}\n\n" + "\n\n".join(map(_directive, paths)) for title, paths in PROTOCOLS.items())


def _path(value: object) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    return f"{value.__module__}.{value.__qualname__}"  # type: ignore[attr-defined]


def _directive(path: str) -> str:
    return f"::: {path}"
