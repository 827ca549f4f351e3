"""A trained model that somebody names: a Hugging Face folder, an export, or the work folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax

from bertjax.config.model import EncoderConfig
from bertjax.data.tokenizer import Tokenizer, load_tokenizer
from bertjax.errors import UserError
from bertjax.experiment.load_run import load_run
from bertjax.hf.load import load_pretrained
from bertjax.types import Params


class Given(NamedTuple):
    """One network with its tokenizer; `params` lie on the host, at the true size of the vocabulary, in float32.

    `objective` names what it was trained by; None = a folder does not tell.
    """

    config: EncoderConfig
    heads: tuple[str, ...]
    params: Params
    tokenizer: Tokenizer
    objective: str | None = None


def read_given(folder: str | Path, head: str | None = None) -> Given:
    """The model of a folder; of a run with several networks, the one that an export would hold.

    `head` asks for the first of several networks that has it, if there is one. Raises `UserError` where there is
    nothing to read, something is broken, or the tokenizer is another model's.
    """
    folder = Path(folder).expanduser()
    require_model(folder)
    given = _of_run(folder, head) if (folder / "checkpoints").is_dir() else _of_folder(folder)
    if given.tokenizer.size > given.config.vocab_size:
        raise UserError(
            f"{folder}: its tokenizer has {given.tokenizer.size} pieces, its model only {given.config.vocab_size}; "
            "copy the tokenizer that belongs to the model"
        )
    return given


def require_model(folder: Path) -> None:
    """Raises `UserError` where there can be no model, without reading one."""
    if not (folder / "checkpoints").is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} holds no model: give a Hugging Face folder (config.json, model.safetensors), an export or the "
            "work folder of a run (nothing is downloaded)"
        )


def _of_folder(folder: Path) -> Given:
    model = load_pretrained(folder)
    return Given(model.config, model.heads, jax.device_get(model.params), load_tokenizer(folder))


def _of_run(workdir: Path, head: str | None) -> Given:
    run = load_run(workdir)
    objective = run.experiment.objective
    networks = list(objective.networks.items())
    name, network = next((each for each in networks if head in each[1].heads), networks[0])
    params = jax.device_get(objective.network_params(run.params, name))
    return Given(network.config, network.heads, params, run.tokenizer, run.experiment.cfg.objective.name)
