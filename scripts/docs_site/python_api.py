"""The public names of `bertjax`, and the protocols that other packages implement."""

from __future__ import annotations

import types

import bertjax

PROTOCOLS = {
    "Settings": ("bertjax.config.fields.setting",),
    "Objectives": ("bertjax.objectives.base.Objective",),
    "Attention": ("bertjax.models.attention.Attention",),
    "Families of Hugging Face folders": ("bertjax.hf.keymaps.family.Family", "bertjax.hf.keymap.KeyMap"),
    "Families of encoder-decoders": ("bertjax.hf.encoder_decoder.family.EncoderDecoderFamily",),
    "Tasks": ("bertjax.tasks.base.TaskKind",),
    "Sources": ("bertjax.config.sources.SourceKind",),
    "Example formats": ("bertjax.data.formats.base.ExampleFormat",),
}


def public_names() -> str:
    """Returns a directive of mkdocstrings for every name of `bertjax.__all__`."""
    return "\n\n".join(map(_directive, _public_paths()))


def protocols() -> str:
    """Returns the directives of the protocols by heading; those of public names are links."""
    public, parts = _public_paths(), []
    for title, paths in PROTOCOLS.items():
        named = (f"[`{path}`][{path}]" if path in public else _directive(path) for path in paths)
        parts.append(f"## {title}\n\n" + "\n\n".join(named))
    return "\n\n".join(parts)


def _public_paths() -> list[str]:
    values = [getattr(bertjax, name) for name in bertjax.__all__ if not name.startswith("__")]
    return [_path(value) for value in sorted(values, key=lambda value: isinstance(value, types.ModuleType))]


def _path(value: object) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    return f"{value.__module__}.{value.__qualname__}"  # type: ignore[attr-defined]


def _directive(path: str) -> str:
    return f"::: {path}"
