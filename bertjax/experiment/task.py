"""A task with its data: examples, batches, and the settings that follow from both."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax.config.attention import store_attention
from bertjax.config.data import TOKENIZER_MODELS
from bertjax.config.defaults import base_config
from bertjax.config.encoder_decoder import START_TOKENS, EncoderDecoderConfig, encoder_decoder_config
from bertjax.config.fields import PRESET, names_where, settings_of
from bertjax.config.model import ComputeConfig, EncoderConfig, encoder_config
from bertjax.config.objectives import objective_class
from bertjax.config.task import TaskConfig, task_config
from bertjax.data.counter_rng import permutation
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_from_config import read_tokenizer, train_from_config
from bertjax.errors import UserError, named
from bertjax.experiment.config import Config
from bertjax.experiment.hub_names import pin_commits
from bertjax.experiment.load import SourceModel, load_source_model
from bertjax.experiment.task_teacher import add_scores, teacher_scores
from bertjax.experiment.workdir import has_checkpoints, read_settings
from bertjax.hf.encoder_decoder.family import family_of, with_family
from bertjax.hf.forward import require_readable
from bertjax.hf.keymaps import find_family
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup
from bertjax.tasks.base import TaskKind
from bertjax.tasks.batches import TaskBatches
from bertjax.tasks.evaluate import TaskData
from bertjax.tasks.features import TextData
from bertjax.tasks.readers.examples import ChoiceExamples, Examples, TextExamples, read_examples

_LOGGED_LINES = 50  # reading metrics more often would wait for the device more often


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Labeled examples, and the windows and features made of them."""

    examples: Examples
    data: TaskData


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A task with its data, tokenized for one model.

    `tuning` holds the training examples on which settings are tuned instead of weights, if there are such settings.
    `source` is None if a run is resumed, or starts without `init_from`. `encoder_decoder` is None where the config
    alone decides the decoder, or there is none. `seq_len` is the length of sequences of a run that is resumed.
    """

    config: TaskConfig
    tokenizer: Tokenizer
    model: EncoderConfig
    encoder_decoder: EncoderDecoderConfig | None
    labels: tuple[str, ...]
    train: Split
    held_out: Split | None
    tuning: Split | None
    test: Split | None
    source: SourceModel | None
    seq_len: int | None = None

    @property
    def splits(self) -> dict[str, Split]:
        """Training examples and, if there are any, held-out ones and those for tuning: what decides shapes."""
        splits = {"train": self.train, "eval": self.held_out, "tuning": self.tuning}
        return {name: split for name, split in splits.items() if split is not None}

    @property
    def notes(self) -> list[str]:
        """Remarks on the data, such as truncated examples, for the user."""
        splits = self.splits if self.test is None else self.splits | {"test": self.test}
        return [f"{name}: {note}" for name, split in splits.items() for note in split.data.notes]


def require_task(cfg: ConfigDict) -> None:
    """Checks the keys that only a task has or lacks.

    Raises:
        UserError: the config is one of pretraining, sets a key that follows from the task, or has no `init_from`.
    """
    if not objective_class(cfg.objective.name).is_finetuning:
        raise UserError(
            f"objective.name={cfg.objective.name} is pretraining: use `bertjax pretrain`, or set it to task"
        )
    default = base_config()
    for key, instead in (("num_steps", "epochs"), ("batch_size", "batch_size")):
        if cfg.train[key] != default.train[key]:
            raise UserError(f"train.{key} follows from the task: set task.{instead}, and leave train.{key} alone")
    if cfg.resume_from is not None:
        raise UserError("resume_from is for pretraining: a task starts from the weights of init_from")
    if cfg.train.phases or cfg.train.initial_batch_size:
        raise UserError("train.phases and train.initial_batch_size are for pretraining: a task has one phase")
    if cfg.init_from is None and not cfg.task.from_scratch:
        raise UserError(
            "init_from is None: name the model to finetune, a Hugging Face folder, an export, the work directory of a "
            f"run, or hub:NAME[@REVISION] ({named('config.init_from', 'FOLDER')}); without one set "
            "task.from_scratch=true"
        )


def read_task(
    cfg: ConfigDict, workdir: Path, processes: ProcessGroup = SINGLE_PROCESS, *, dry_run: bool = False
) -> Task:
    """Reads the examples of a task and the model to finetune; a run in `workdir` keeps its model and tokenizer.

    Args:
        cfg: config of the task, which gets the commit of a model on the Hub.
        workdir: work directory of the run.
        processes: processes of the run.
        dry_run: writes nothing; the scores of a teacher are zeros.

    Raises:
        UserError: model or examples cannot be read.
    """
    pin_commits(cfg, workdir, processes)
    config = task_config(cfg)
    read = functools.cache(lambda: read_examples(config, "train", errors=cfg.data.encoding_errors))
    source = both = seq_len = None
    has_targets = config.spec.has_targets
    if has_checkpoints(workdir):
        stored, tokenizer = read_settings(workdir)
        model, both = _configured_model(stored, tokenizer, has_targets)
        seq_len = stored.data.seq_len
    elif cfg.init_from is not None:
        source = load_source_model(cfg.init_from)
        chosen = cfg.model.decoder_layers not in (PRESET, None)
        source = source if has_targets else with_decoder(source, chosen)
        model, tokenizer, both = source.config, source.tokenizer, source.encoder_decoder if has_targets else None
    else:
        tokenizer = _tokenizer(cfg, read, has_targets)
        model, both = _configured_model(cfg, tokenizer, has_targets)
    model = dataclasses.replace(model, pad_token_id=tokenizer.pad_id)  # with which the run pads
    tokenizer = tokenizer.fitted(model)
    if both is not None:
        copy_start_token(cfg, both, tokenizer)
        config = task_config(cfg)
    require_readable(model, config.max_length, "task.max_length")
    if has_targets:
        decoder = encoder_decoder_config(cfg).decoder if both is None else both.decoder
        require_readable(decoder, config.spec.max_target_length, "task.seq2seq.max_target_length")
    examples = read()
    labels = config.spec.collect_labels(config, examples)
    examples, for_tuning = _split_off(examples, config)
    data = config.spec.make_features(config, examples, tokenizer, labels, True)
    if config.teacher is not None:
        assert isinstance(data, TextData) and isinstance(examples, TextExamples)
        shape = len(examples), max(len(labels), 1)
        of_teacher = np.zeros(shape, np.float32) if dry_run else teacher_scores(config, examples, labels, workdir)
        data = add_scores(data, of_teacher)
    training = Split(examples, data)
    tuning = None if for_tuning is None else _split(config, for_tuning, tokenizer, labels)
    held_out = read_held_out(cfg, config, tokenizer, labels) if config.eval else None
    test = read_held_out(cfg, config, tokenizer, labels, "test") if config.test else None
    return Task(config, tokenizer, model, both, labels, training, held_out, tuning, test, source, seq_len)


def with_decoder(source: SourceModel, chosen: bool = False) -> SourceModel:
    """Returns an encoder-decoder as one network, whose decoder reads the text itself, as its classes for tasks do.

    It stays an encoder where no class of `transformers` holds both so (Marian), or some hold the encoder alone (T5).

    Args:
        source: the model.
        chosen: takes the decoder although there are classes of the encoder alone.

    Raises:
        UserError: the classes cannot hold the model.
    """
    config, decoder = source.encoder_decoder, source.decoder
    family = None if config is None else family_of(with_family(config))
    classes = None if family is None else find_family(family.name)
    if config is None or decoder is None or family is None or classes is None:
        return source
    has_encoders = bool(classes.architectures.keys() - classes.decoder_classes)
    if family.limitation(config) or not classes.decoder_classes or (has_encoders and not chosen):
        return source
    start, end = config.decoder_start_token_id, source.tokenizer.sep_id
    ids = {"eos_token_id": end, "decoder_start_token_id": end if start is None else start}
    values = family.render_config(config) | ids | {"architectures": [classes.decoder_classes[0]]}
    leaves = flatten_tree(decoder.params["encoder"])
    remaining = unflatten_tree({path: leaf for path, leaf in leaves.items() if "word_embeddings" not in path})
    params = {**source.params, "decoder": {"encoder": remaining}}
    single = classes.parse_config(values, "init_from: config.json")
    return source._replace(config=single, params=params, decoder=None, encoder_decoder=None)


def _split_off(examples: Examples, config: TaskConfig) -> tuple[Examples, Examples | None]:
    """Returns the examples to train on and those to tune settings on, the same for every seed."""
    fraction = config.spec.tuning_fraction
    if not fraction:
        return examples, None
    assert isinstance(examples, TextExamples | ChoiceExamples)
    count, order = len(examples), permutation(len(examples), "examples for tuning", 0, 0)
    size = max(1, round(count * fraction))
    if size == count:
        raise UserError(
            f"task.train: {count:,} examples are too few to tune on {fraction:g} of them and train on others"
        )
    rest = examples.take(np.sort(order[size:]).tolist())
    return dataclasses.replace(rest, notes=examples.notes), examples.take(np.sort(order[:size]).tolist())


def _configured_model(
    cfg: ConfigDict, tokenizer: Tokenizer, has_targets: bool
) -> tuple[EncoderConfig, EncoderDecoderConfig | None]:
    """Returns the encoder that a config describes, and with its decoder where the task has targets."""
    if not has_targets:
        return encoder_config(cfg, tokenizer.vocabulary()), None
    both = encoder_decoder_config(cfg, tokenizer.vocabulary())
    return both.encoder, both


def _tokenizer(cfg: ConfigDict, read: Callable[[], Examples], has_targets: bool) -> Tokenizer:
    """Returns the tokenizer of `data.tokenizer`, trained on the texts of the training examples if it is a model."""
    data = cfg.data
    if data.tokenizer not in TOKENIZER_MODELS:
        tokenizer = read_tokenizer(data)
    else:
        print(f"training a {data.tokenizer} tokenizer of {data.vocab_size:,} tokens on the examples of task.train")
        tokenizer = train_from_config(data, read().all_texts(has_targets))
    return tokenizer.complete(("pad", "cls", "sep"))


def copy_start_token(cfg: ConfigDict, model: EncoderDecoderConfig, tokenizer: Tokenizer) -> None:
    """Sets `decoder.start_token` to that of a trained model, unless the user chose another than the default.

    Args:
        cfg: config of the run, which is changed.
        model: the trained model.
        tokenizer: its tokenizer.

    Raises:
        UserError: the model starts with a token that is none of the choices.
    """
    if cfg.decoder.start_token != base_config().decoder.start_token or model.decoder_start_token_id is None:
        return
    names = {getattr(tokenizer, f"{name}_id"): name for name in reversed(START_TOKENS)}
    if model.decoder_start_token_id not in names:
        token = tokenizer.tokens[model.decoder_start_token_id]
        raise UserError(f"init_from: targets start with {token!r}, but decoder.start_token can be cls, sep or pad")
    cfg.decoder.start_token = names[model.decoder_start_token_id]


def read_held_out(
    cfg: ConfigDict, config: TaskConfig, tokenizer: Tokenizer, labels: Sequence[str], split: str = "eval"
) -> Split:
    """Reads the examples of `task.eval` or `task.test` with their labels.

    Args:
        cfg: config of the run.
        config: settings of the task.
        tokenizer: the tokenizer of the model.
        labels: names of the labels of the model.
        split: eval or test.

    Raises:
        UserError: an example cannot be read.
    """
    examples = read_examples(config, split, errors=cfg.data.encoding_errors)
    return _split(config, examples, tokenizer, labels)


def _split(config: TaskConfig, examples: Examples, tokenizer: Tokenizer, labels: Sequence[str]) -> Split:
    return Split(examples, config.spec.make_features(config, examples, tokenizer, labels, False))


def resolve_config(cfg: ConfigDict, task: Task, batches: TaskBatches) -> ConfigDict:
    """Returns the config with all values that follow from model and data: sizes, labels, steps, class weights.

    Args:
        cfg: config of the user.
        task: the task.
        batches: its training batches.
    """
    cfg, default, spec = copy.deepcopy(cfg), base_config(), task.config.spec
    labels = task.labels if spec.has_classes else spec.output_labels or task.model.labels
    model = dataclasses.replace(task.model, labels=labels, padded_vocab_size=None)
    _store_network(cfg.model, model)
    if task.encoder_decoder is not None:
        _store_network(cfg.decoder, task.encoder_decoder.decoder)
        if cfg.decoder.sharing == default.decoder.sharing:
            cfg.decoder.sharing = task.encoder_decoder.sharing
    cfg.data.vocab_size, cfg.data.seq_len = task.model.vocab_size, batches.seq_len
    if cfg.init_from is not None:
        cfg.data.tokenizer = str(cfg.init_from)
    cfg.train.num_steps, cfg.train.batch_size = batches.num_steps, batches.num_sequences
    interval = max(1, round(batches.steps_per_epoch / cfg.task.evals_per_epoch))
    default.train.num_steps = batches.num_steps
    for group in ("eval", "checkpoint"):
        if cfg[group].interval_steps == default[group].interval_steps:
            cfg[group].interval_steps = interval
    if cfg.train.log_interval_steps == default.train.log_interval_steps:
        cfg.train.log_interval_steps = -(-batches.num_steps // _LOGGED_LINES)
    store_settings(cfg, spec.with_labels(task.labels))
    config = Config.read(cfg)
    cfg.checkpoint.best_metric = config.best_metric
    if cfg.task.unfreeze_epochs is not None:
        cfg.optimizer.unfreeze_every = max(1, round(cfg.task.unfreeze_epochs * batches.steps_per_epoch))
    cfg.task.class_weights = class_weights(config.objective, task)
    return cfg


def store_settings(cfg: ConfigDict, kind: TaskKind) -> None:
    """Sets the keys of a kind of task to its values."""
    for name in names_where(type(kind), lambda each: each.key):
        cfg.task[kind.group.rpartition(".")[2]][name] = getattr(kind, name)


def _store_network(group: ConfigDict, model: EncoderConfig) -> None:
    """Sets the keys of a network that the user left to the preset to the values of a model."""
    from_user = {name for name, value in group.items() if value != PRESET}
    group.preset = "none"
    for name, value in vars(model).items():
        if name in group and name not in settings_of(ComputeConfig) and name not in from_user:
            group[name] = value
    store_attention(group, model)


def class_weights(config: Any, task: Task) -> tuple[str, ...]:
    """Returns class weights as numbers, which `TaskKind.class_weights` makes of "balanced" and "sqrt".

    Raises:
        UserError: a label has no training example.
    """
    if not config.class_weights or config.class_weights[0] not in ("balanced", "sqrt"):
        return tuple(config.class_weights)
    label_ids = task.train.data.features.labels[config.spec.label_array]
    counts = config.spec.class_counts(label_ids, len(task.labels)).astype(np.float64)
    absent = [label for label, count in zip(task.labels, counts, strict=True) if not count]
    if absent:
        raise UserError(
            f"task.class_weights={config.class_weights[0]}: no training example has the label {absent[0]!r}; give the "
            "weights in numbers"
        )
    weights = config.spec.class_weights(config.class_weights[0], counts, len(label_ids))
    return tuple(f"{weight:.6g}" for weight in weights)
