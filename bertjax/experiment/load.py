"""Reads trained models back: runs from their work directories, Hugging Face folders and exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.checkpoint.manager import Checkpoints, RestoredCheckpoint
from bertjax.checkpoint.surgery import average_params
from bertjax.config.defaults import base_config
from bertjax.config.model import EncoderConfig, float32_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError, comma_list
from bertjax.experiment import build
from bertjax.experiment.workdir import read_config, require_same_run
from bertjax.hf import native_format
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.io import atomic
from bertjax.objectives.base import Network
from bertjax.runtime import platform
from bertjax.training.state import COUNTER_DEFAULTS
from bertjax.types import Params


class StoredRun(NamedTuple):
    """Parameters at the true vocabulary size on the host, of checkpoint `step`, or averaged over all of `steps`."""

    experiment: build.Experiment
    tokenizer: Tokenizer
    params: Params
    step: int
    meta: dict
    steps: tuple[int, ...]


def load_run(workdir: Path, step: int | None = None, average_last: int = 1) -> StoredRun:
    """The newest undamaged checkpoint of a work folder, or that of `step`; changes nothing there.

    `average_last` K takes the mean of the weights of K checkpoints, that one and those before it.
    """
    tokenizer = load_tokenizer(workdir / "tokenizer")
    experiment = stored_experiment(workdir, tokenizer)
    cfg = experiment.cfg
    checkpoints = build.open_checkpoints(cfg, workdir, read_only=True)
    seen: list[RestoredCheckpoint] = []

    def weights(each: int | None) -> Params:
        """Of one checkpoint, on the host; what is kept of it afterwards are two numbers."""
        restored = checkpoints.restore(experiment.abstract_state(), each, absent=COUNTER_DEFAULTS)
        if restored is None:
            raise UserError(f"{workdir} holds no checkpoint yet")
        require_same_run(workdir, restored.step, restored.meta, cfg)
        seen.append(restored._replace(state=None))
        return build.unpadded_params(experiment.eval_params(restored.state), experiment.model)

    try:
        chosen = [step] if average_last == 1 else _last_steps(checkpoints, step, average_last)
        params = average_params(weights(each) for each in chosen)
    finally:
        checkpoints.close()
    return StoredRun(
        experiment, tokenizer, params, seen[-1].step, seen[-1].meta, tuple(restored.step for restored in seen)
    )


def stored_experiment(workdir: Path, tokenizer: Tokenizer) -> build.Experiment:
    """What the config of a work folder describes, on one device; nothing is restored."""
    cfg = read_config(workdir)
    cfg.platform = "any"
    cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor = 1, 1, 1
    platform.use_platform(cfg.platform)
    own = jax.local_devices()[:1]  # of several processes, each reads what it begins with or learns from by itself
    return build.make_experiment(cfg, tokenizer.vocabulary(), stored_teacher(workdir), own)


def _last_steps(checkpoints: Checkpoints, step: int | None, count: int) -> list[int]:
    """The last `count` steps up to `step`, oldest first; `UserError` when fewer are kept."""
    kept = checkpoints.all_steps()
    if step is not None and step not in kept:
        raise UserError(f"no checkpoint of step {step} in {checkpoints.directory}; there are: {comma_list(kept)}")
    reached = [each for each in kept if step is None or each <= step]
    if len(reached) < count:
        raise UserError(
            f"--average-last {count} needs {count} checkpoints{'' if step is None else f' up to step {step}'}, but "
            f"{checkpoints.directory} holds {len(reached)} ({comma_list(reached)}); a run keeps checkpoint.keep of them"
        )
    return reached[-count:]


class SourceModel(NamedTuple):
    """One network with its tokenizer; `params` lie on the host, at the true size of the vocabulary, in float32.

    `two_streams`: whether it was trained to fill masks by two-stream attention; None = unknown, for a folder.
    """

    config: EncoderConfig
    heads: tuple[str, ...]
    params: Params
    tokenizer: Tokenizer
    two_streams: bool | None = None


def load_source_model(folder: str | Path, head: str | None = None) -> SourceModel:
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


def _of_folder(folder: Path) -> SourceModel:
    model = load_pretrained(folder)
    return SourceModel(model.config, model.heads, jax.device_get(model.params), load_tokenizer(folder))


def _of_run(workdir: Path, head: str | None) -> SourceModel:
    run = load_run(workdir)
    objective = run.experiment.objective
    networks = list(objective.networks.items())
    name, network = next((each for each in networks if head in each[1].heads), networks[0])
    params = jax.device_get(objective.network_params(run.params, name))
    return SourceModel(network.config, network.heads, params, run.tokenizer, objective.config.two_streams)


_TOKENS = {"cpu": 8192}
_TOKENS_ELSEWHERE = 65536


class LoadedModel(NamedTuple):
    """A model in float32 and its tokenizer; `two_streams`: whether it reads masks by two streams, None = not known."""

    model: PretrainedModel
    tokenizer: Tokenizer
    two_streams: bool | None


def load_model(folder: Path, head: str | None = None) -> LoadedModel:
    """The model of a Hugging Face folder, of an export or of a run; raises `UserError` (`load_source_model`)."""
    given = load_source_model(folder, head)
    platform.enable_compile_cache(base_config())
    params = jax.tree.map(jnp.asarray, given.params)
    model = PretrainedModel(float32_config(given.config), params, given.heads)
    return LoadedModel(model, given.tokenizer, given.two_streams)


def require_batch_tokens(asked: int | None) -> None:
    """Raises `UserError` for what `batch_tokens` cannot take, before a model is read for nothing."""
    if asked is not None and asked < 1:
        raise UserError(f"--batch-tokens must be at least 1, not {asked}")


def batch_tokens(asked: int | None) -> int:
    """Tokens of a batch, padding included: what the user says, else what suits the platform."""
    return asked or _TOKENS.get(jax.default_backend(), _TOKENS_ELSEWHERE)


TEACHER_FILE = "teacher.json"


def write_teacher(workdir: Path, teacher: Network) -> None:
    atomic.write_json(workdir / TEACHER_FILE, native_format.render_fields(teacher.config, teacher.heads))


def stored_teacher(workdir: Path) -> Network | None:
    """The teacher of the run in a work folder, as a description; None for a run that had none."""
    path = workdir / TEACHER_FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object")
    return Network(*native_format.parse_fields(values, str(path)))
