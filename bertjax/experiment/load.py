"""Reads trained models back: runs from their work directories, Hugging Face folders and exports."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.checkpoint.manager import Checkpoints, RestoredCheckpoint
from bertjax.checkpoint.surgery import average_params
from bertjax.config.defaults import base_config
from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig, float32_config
from bertjax.config.task import TaskConfig, task_kind
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError, comma_list
from bertjax.experiment import build
from bertjax.experiment.workdir import read_settings, require_same_run
from bertjax.hf import native_format
from bertjax.hf.encoder_decoder.family import with_family
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.load import is_encoder_decoder, local_model, read_config_json
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.io import atomic
from bertjax.io.staging import display_path
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.encoder_decoder import DECODER_HEADS, complete_params
from bertjax.objectives.base import Network
from bertjax.runtime import platform
from bertjax.training.state import COUNTER_DEFAULTS
from bertjax.types import Params


class StoredRun(NamedTuple):
    """Host parameters without vocabulary padding, of checkpoint `step` or averaged over `steps`.

    `experiment` ends with the phase that the checkpoint was trained in.
    """

    experiment: build.Experiment
    tokenizer: Tokenizer
    params: Params
    step: int
    meta: dict
    steps: tuple[int, ...]


def load_run(workdir: Path, step: int | None = None, average_last: int = 1) -> StoredRun:
    """Loads a checkpoint of a run; changes nothing in the work directory.

    Args:
        workdir: the work directory.
        step: step of the checkpoint; the newest undamaged one by default.
        average_last: averages the weights of so many checkpoints, the last of which is that of `step`.

    Raises:
        UserError: the checkpoint is missing or damaged, or belongs to another run.
    """
    experiment, tokenizer = stored_experiment(workdir)
    cfg = experiment.cfg
    checkpoints = build.open_checkpoints(cfg, workdir, read_only=True)
    loaded: list[RestoredCheckpoint] = []
    cursors: list[int] = []

    def weights(each: int | None) -> Params:
        """Returns the host weights of one checkpoint, and drops the rest of its state."""
        restored = checkpoints.restore(experiment.abstract_state(), each, absent=COUNTER_DEFAULTS)
        if restored is None:
            raise UserError(f"{workdir} holds no checkpoint yet")
        require_same_run(workdir, restored.step, restored.meta, cfg)
        loaded.append(restored._replace(state=None))
        cursors.append(int(restored.state.cursor))
        return build.unpadded_params(experiment.eval_params(restored.state), experiment.model)

    try:
        while True:
            chosen = [step] if average_last == 1 else _last_steps(checkpoints, step, average_last)
            try:
                params = average_params(weights(each) for each in chosen)
                break
            except UserError:
                if step is not None or average_last == 1 or set(chosen) <= set(checkpoints.all_steps()):
                    raise
            loaded.clear()  # the run has deleted one of them meanwhile
    finally:
        checkpoints.close()
    return StoredRun(
        experiment.at(cursors[-1]),
        tokenizer,
        params,
        loaded[-1].step,
        loaded[-1].meta,
        tuple(each.step for each in loaded),
    )


def stored_experiment(workdir: Path) -> tuple[build.Experiment, Tokenizer]:
    """Builds the experiment of a work directory on one device, and reads its tokenizer; restores no checkpoint.

    Raises:
        UserError: config or tokenizer are missing, broken or not those of the run.
    """
    cfg, tokenizer = read_settings(workdir)
    cfg.platform = "any"
    cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor = 1, 1, 1
    platform.use_platform(cfg.platform)
    devices = jax.local_devices()[:1]  # every process reads initial weights and teachers for itself
    experiment = build.make_experiment(cfg, tokenizer.vocabulary(), stored_teacher(workdir), devices)
    return experiment, exported_tokenizer(experiment, tokenizer)


def exported_tokenizer(experiment: build.Experiment, tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer of a run as its main network reads it, and as its task makes tokens of texts."""
    tokenizer = tokenizer.fitted(experiment.model)
    if not experiment.objective.is_finetuning:
        return tokenizer
    return task_kind(experiment.cfg).tokenizer(tokenizer)


def _last_steps(checkpoints: Checkpoints, step: int | None, count: int) -> list[int]:
    """Returns the last `count` steps up to `step`, oldest first; raises `UserError` if there are fewer."""
    steps = checkpoints.all_steps()
    if step is not None and step not in steps:
        raise UserError(f"no checkpoint of step {step} in {checkpoints.directory}; there are: {comma_list(steps)}")
    reached = [each for each in steps if step is None or each <= step]
    if len(reached) < count:
        raise UserError(
            f"--average-last {count} needs {count} checkpoints{'' if step is None else f' up to step {step}'}, but "
            f"{checkpoints.directory} holds {len(reached)} ({comma_list(reached)}); a run keeps checkpoint.keep of them"
        )
    return reached[-count:]


def config_keys(experiment: build.Experiment) -> Mapping[str, Any]:
    """Returns the keys of config.json that say what libraries make of the outputs of a task's head."""
    is_task = experiment.objective.is_finetuning
    return task_kind(experiment.cfg).config_keys if is_task else {}


class SourceModel(NamedTuple):
    """One network with its tokenizer; `params` lie on the host, at the true size of the vocabulary, in float32.

    `two_streams`: whether it was trained to fill masks by two-stream attention; None = unknown, for a folder.
    `decoder`: of an encoder-decoder, the decoder; the rest is its encoder. `encoder_decoder`: both together.
    `others`: further values of `PretrainedModel`.
    """

    config: EncoderConfig
    heads: tuple[str, ...]
    params: Params
    tokenizer: Tokenizer
    two_streams: bool | None = None
    decoder: SourceModel | None = None
    encoder_decoder: EncoderDecoderConfig | None = None
    others: Mapping[str, Any] = {}


def load_source_model(folder: str | Path, head: str | None = None, step: int | None = None) -> SourceModel:
    """Loads the model of a Hugging Face folder, an export, a run or the Hub; of an encoder-decoder the encoder.

    Args:
        folder: the folder or work directory, or `hub:NAME[@REVISION]`.
        head: chooses the first network with this head, in a run with several; by default the main one.
        step: step of the checkpoint of a run; the newest by default.

    Raises:
        UserError: the model is missing, a file is broken, or the tokenizer belongs to another model.
    """
    folder = require_model(folder)
    source = _of_run(load_run(folder, step), head) if (folder / "checkpoints").is_dir() else _of_folder(folder)
    source = source._replace(tokenizer=source.tokenizer.fitted(source.config))
    if source.tokenizer.size > source.config.vocab_size:
        raise UserError(
            f"{folder}: its tokenizer has {source.tokenizer.size} tokens, its model only {source.config.vocab_size}; "
            "copy the tokenizer that belongs to the model"
        )
    return source


def source_digests(source: SourceModel) -> dict[str, str]:
    """Returns the digests of the networks and of the tokenizer of a model."""
    networks = {"weights": source} | ({"weights of the decoder": source.decoder} if source.decoder else {})
    digests = {name: model_digest(each.config, each.heads, each.params) for name, each in networks.items()}
    return {**digests, "tokenizer": source.tokenizer.digest}


def model_digest(config: EncoderConfig, heads: tuple[str, ...], params: Params) -> str:
    """Returns a digest of a network.

    Args:
        config: its architecture.
        heads: its heads.
        params: its host parameters.
    """
    digest = hashlib.blake2b(
        json.dumps(native_format.render_fields(config, heads), sort_keys=True).encode(), digest_size=16
    )
    for path, leaf in sorted(flatten_tree(params).items(), key=lambda pair: pair[0]):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{path} {array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def require_model(name: str | os.PathLike[str]) -> Path:
    """Returns the folder of a model, downloaded where it is `hub:NAME[@REVISION]`; reads no weights.

    Raises:
        UserError: the folder cannot hold a model, or the Hub has none that can be read.
    """
    folder = local_model(name)
    if not (folder / "checkpoints").is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"{display_path(folder)} holds no model: give a Hugging Face folder (config.json, model.safetensors), an "
            "export, the work directory of a run, or hub:NAME[@REVISION]"
        )
    return folder


def _of_folder(folder: Path) -> SourceModel:
    platform.start_backend()
    model, tokenizer = load_pretrained(folder), load_tokenizer(folder)
    if isinstance(model, PretrainedModel):
        others = {"module_files": model.module_files, "config_keys": model.config_keys}
        return SourceModel(model.config, model.heads, jax.device_get(model.params), tokenizer, others=others)
    config = model.config
    encoder, decoder = complete_params(config, jax.device_get(model.params))
    second = SourceModel(config.decoder, DECODER_HEADS, decoder, tokenizer)
    return SourceModel(config.encoder, config.encoder_heads, encoder, tokenizer, decoder=second, encoder_decoder=config)


def _of_run(run: StoredRun, head: str | None) -> SourceModel:
    objective = run.experiment.objective
    others = {"config_keys": config_keys(run.experiment)}

    def source(name: str, decoder: SourceModel | None = None) -> SourceModel:
        params = jax.device_get(objective.network_params(run.params, name))
        two_streams = objective.two_streams
        both = None if decoder is None else objective.encoder_decoder
        return SourceModel(*objective.networks[name], params, run.tokenizer, two_streams, decoder, both, others)

    alone = [name for name, network in objective.networks.items() if network.stands_alone]
    name = next((each for each in alone if head in objective.networks[each].heads), alone[0])
    return source(name, source("decoder") if objective.encoder_decoder else None)


_TOKENS = {"cpu": 2048}
_TOKENS_DEFAULT = 65536


class LoadedModel(NamedTuple):
    """A float32 model and its tokenizer.

    `two_streams`: whether it predicts masks with two streams (XLNet), None if unknown.
    """

    model: PretrainedModel
    tokenizer: Tokenizer
    two_streams: bool | None


def load_model(folder: Path, head: str | None = None, step: int | None = None) -> LoadedModel:
    """Loads a model for inference; errors are those of `load_source_model`.

    Args:
        folder, head, step: as in `load_source_model`.
    """
    return _to_device(load_source_model(folder, head, step))


def _to_device(source: SourceModel) -> LoadedModel:
    platform.enable_compile_cache(base_config())
    params = jax.device_put(source.params, may_alias=False)
    model = PretrainedModel(float32_config(source.config), params, source.heads, **source.others)
    return LoadedModel(model, source.tokenizer, source.two_streams)


class Generative(NamedTuple):
    """A model that generates, in float32, and its tokenizer."""

    model: PretrainedModel | PretrainedEncoderDecoder
    tokenizer: Tokenizer


def load_generative(folder: Path, head: str | None = "mlm") -> Generative:
    """Loads a causal model (by `head` another network) or an encoder-decoder; errors as of `load_source_model`."""
    folder = require_model(folder)
    if not (folder / "checkpoints").is_dir():
        platform.start_backend()
        platform.enable_compile_cache(base_config())
        return Generative(load_pretrained(folder), load_tokenizer(folder))
    run = load_run(folder)
    both = run.experiment.objective.encoder_decoder
    if both is None:
        return Generative(*_to_device(_of_run(run, head))[:2])
    platform.enable_compile_cache(base_config())
    return Generative(join_encoder_decoder(run, both, jax.device_put(run.params, may_alias=False)), run.tokenizer)


def load_finetuned(folder: Path, trained: TaskConfig | None) -> LoadedModel | Generative:
    """Loads a model with the head of its task, or the encoder-decoder that generates; the folder is there.

    `trained` is the task of a work directory.
    """
    if trained is not None:
        generates = trained.spec.has_targets
    else:
        is_folder = not (folder / "checkpoints").is_dir()
        generates = is_folder and is_encoder_decoder(read_config_json(folder)[0])
    return load_generative(folder) if generates else load_model(folder)


def join_encoder_decoder(run: StoredRun, config: EncoderDecoderConfig, params: Params) -> PretrainedEncoderDecoder:
    """Returns the encoder-decoder of a run.

    Args:
        run: the run, with whose tokenizer's special tokens texts begin and end.
        config: the model.
        params: its parameters, on the host or on a device.
    """
    tokenizer = run.tokenizer.fitted(config.encoder)
    encoder, decoder = float32_config(config.encoder), float32_config(config.decoder)
    model = with_family(dataclasses.replace(config, encoder=encoder, decoder=decoder))
    ids = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id, "pad_token_id": tokenizer.pad_id}
    generation = ids | {"decoder_start_token_id": config.decoder_start_token_id}
    if run.experiment.objective.is_finetuning:
        generation |= task_kind(run.experiment.cfg).generation
    files = tokenizer.huggingface_files(config.encoder.max_position_embeddings)
    return PretrainedEncoderDecoder(model, params, generation, files)


def batch_tokens(requested: int | None) -> int:
    """Returns the tokens per batch, padding included: the requested number, or one that suits the platform."""
    return requested or _TOKENS.get(jax.default_backend(), _TOKENS_DEFAULT)


TEACHER_FILE = "teacher.json"


def write_teacher(workdir: Path, teacher: Network) -> None:
    """Writes the description of a teacher, so that the run can be loaded without the teacher itself."""
    atomic.write_json(workdir / TEACHER_FILE, native_format.render_fields(teacher.config, teacher.heads))


def stored_teacher(workdir: Path) -> Network | None:
    """Returns the description of the teacher of a run; None if it has none.

    Raises:
        UserError: the file is broken.
    """
    path = workdir / TEACHER_FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object")
    return Network(*native_format.parse_fields(values, str(path)))
