"""Facts of every config, its sizes and needs: for `bertjax configs` and the model zoo of the docs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.keys import objective_facts
from bertjax.config.names import resolve, shipped_configs
from bertjax.config.overrides import execute, load_config
from bertjax.config.phases import list_phases

CATALOG = Path(__file__).with_name("catalog.json")
"""The facts of the shipped configs, because loading two hundred configs takes ten seconds."""


@dataclasses.dataclass(frozen=True)
class ConfigFacts:
    """One config, a file with one argument.

    Attributes:
        name: What `--config` takes.
        parameters: Parameters of the exported network with its heads; None: not known before the run.
        objective: Value of `objective.name`; for a task, its kind.
        seq_lens: Tokens per sequence, one length per phase.
        batch_size: Sequences per step at the end of the run.
        num_steps: Steps; None where the run is as long as `epochs` of the labeled examples.
        epochs: Epochs over labeled examples; None in pretraining.
        tokenizer: Value of `data.tokenizer`; None where it is that of `init_from`.
        vocab_size: Tokens of the vocabulary; None where it is that of `init_from`.
        needs: Keys without which the config is not what it is named after.
    """

    name: str
    parameters: int | None
    objective: str
    seq_lens: tuple[int, ...]
    batch_size: int
    num_steps: int | None
    epochs: float | None
    tokenizer: str | None
    vocab_size: int | None
    needs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """A config file.

    Attributes:
        name: What `--config` takes, without an argument.
        doc: The docstring: command, sizes, hardware and time, differences from the authors' recipe.
        sizes: Arguments that the file names; ("",) if there are none.
        needs_init_from: Those that continue from a model that `init_from` names.
    """

    name: str
    doc: str
    sizes: tuple[str, ...]
    needs_init_from: tuple[str, ...]

    @property
    def title(self) -> str:
        """The first line of the docstring, without its sources."""
        return re.sub(r" \([^()]*\)\.?$", "", self.doc.partition("\n")[0]).removesuffix(".")

    @property
    def hardware(self) -> str:
        """Hardware and time as the docstring states them; empty if it does not."""
        match = re.search(r"^Hardware[^:]*: (.*?)(?= Result: |$)", _paragraph(self.doc, "Hardware"))
        return match[1] if match else ""

    def facts(self, size: str) -> ConfigFacts:
        """Returns the facts of one of `sizes`, of a shipped config from the stored catalog."""
        return stored_facts().get(self._name(size)) or self.read_facts(size)

    def read_facts(self, size: str) -> ConfigFacts:
        """Returns the facts of one of `sizes` as the config itself states them; loading one takes a moment."""
        return _facts(self._name(size), load_config(self._name(size)), size in self.needs_init_from)

    def _name(self, size: str) -> str:
        return f"{self.name}:{size}" if size else self.name

    def as_json(self, size: str) -> Mapping[str, Any]:
        """Returns the facts of one of `sizes` as what JSON can hold."""
        return {**dataclasses.asdict(self.facts(size)), "title": self.title, "hardware": self.hardware}


@functools.cache
def stored_facts() -> Mapping[str, ConfigFacts]:
    """Returns the facts of every shipped config by name; tests compare them with the configs, and with their shapes."""
    stored = json.loads(CATALOG.read_text(encoding="utf-8"))
    return {
        name: ConfigFacts(name, **values | {key: tuple(values[key]) for key in ("seq_lens", "needs")})
        for name, values in stored.items()
    }


def config_file(name: str) -> ConfigFile:
    """Returns a config file by name or path, without its argument; raises `UserError` if there is none, or it fails."""
    values = execute(resolve(name)[0])
    sizes = tuple(values.get("SIZES", ())) or ("",)
    return ConfigFile(
        name, inspect.cleandoc(values.get("__doc__") or ""), sizes, tuple(values.get("NEEDS_INIT_FROM", ()))
    )


def config_files() -> list[ConfigFile]:
    """Returns the configs that bertjax ships, quickstart first, tasks last."""
    first = sorted(shipped_configs(), key=lambda name: (name != "quickstart", "/" in name, name))
    return [config_file(name) for name in first]


def _facts(name: str, cfg: ConfigDict, needs_init_from: bool) -> ConfigFacts:
    objective = objective_facts()[cfg.objective.name]
    continues = objective.is_finetuning and not cfg.task.from_scratch
    needs = ["init_from"] if needs_init_from or continues else []
    if objective.is_finetuning:
        lengths, batch_size = (cfg.task.max_length,), cfg.task.batch_size
    else:
        phases = [phase.cfg.data.seq_len for phase in list_phases(cfg)]
        lengths, batch_size = tuple(dict.fromkeys(phases)), cfg.train.batch_size
    needs += ["task.train"] if objective.is_finetuning else []
    needs += ["objective.distillation.teacher"] if objective.uses_teacher else []
    return ConfigFacts(
        name=name,
        parameters=stored_facts()[name].parameters if name in stored_facts() else None,
        objective=cfg.task.kind if objective.is_finetuning else cfg.objective.name,
        seq_lens=lengths,
        batch_size=batch_size,
        num_steps=None if objective.is_finetuning else cfg.train.num_steps,
        epochs=cfg.task.epochs if objective.is_finetuning else None,
        tokenizer=None if continues else cfg.data.tokenizer,
        vocab_size=None if continues else cfg.data.vocab_size,
        needs=tuple(needs),
    )


def _paragraph(text: str, start: str) -> str:
    return next((" ".join(each.split()) for each in text.split("\n\n") if each.startswith(start)), "")
