"""Every key of the config, from its declaration."""

from __future__ import annotations

from bertjax.config.reference import markdown_reference


def config_keys() -> str:
    """Returns the keys by group."""
    return markdown_reference()
