"""The generated parts of the documentation, by the names of their markers."""

from __future__ import annotations

from collections.abc import Callable

from docs_site.commands import all_commands
from docs_site.config_keys import markdown_reference
from docs_site.metrics import all_metrics
from docs_site.model_zoo import all_models
from docs_site.objectives_and_tasks import objectives_and_tasks
from docs_site.python_api import protocols, public_names
from docs_site.tokenizer_families import tokenizer_families

GENERATORS: dict[str, Callable[[], str]] = {
    "commands": all_commands,
    "config": markdown_reference,
    "metrics": all_metrics,
    "models": all_models,
    "objectives_and_tasks": objectives_and_tasks,
    "protocols": protocols,
    "public_names": public_names,
    "tokenizer_families": tokenizer_families,
}
"""Functions that return Markdown."""
