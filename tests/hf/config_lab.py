"""Changes keys of config.json, and compares what bertjax reads with what `transformers` builds from the same file.

Both readings become models of `transformers` with equal parameters: one from the file itself, one from the config.json
that bertjax would write for what it read. A key that is skipped or read differently changes an output or a shape.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import json
import logging
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from parity.cases import Arrays
from parity.families import CASES

from bertjax.errors import UserError
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.keymaps.family import Family

torch.set_num_threads(1)  # the models are tiny

Values = dict[str, Any]
State = dict[str, torch.Tensor]
ABSENT = object()
_MENTIONED = re.compile(
    r"(?:config\.|getattr\((?:self\.)?config, \"|hasattr\(config, \"|kwargs\.(?:get|pop)\(\")([a-z]\w*)"
)
_EXTRA_KEYS = {
    *("num_labels", "rope_theta", "rope_scaling", "partial_rotary_factor", "per_layer_config", "is_causal"),
    *("is_encoder_decoder", "sliding_window", "head_dim"),
}
# Keys that do not affect the model, or that other tests cover: names, types, output formats, kernels.
_LEFT_ALONE = {
    *("architectures", "model_type", "dtype", "torch_dtype", "name_or_path", "transformers_version", "label2id"),
    *("return_dict", "output_attentions", "chunk_size_feed_forward", "_attn_implementation", "_experts_implementation"),
    *("use_mems_eval", "use_mems_train"),
    *("encoder", "decoder"),  # tables of a network each, whose defaults are a large model: tests/hf/test_t5gemma.py
    *("use_task_id", "task_type_vocab_size"),  # tests/parity: the first row of a table is folded into another
    *(name for name in dir(transformers.PreTrainedConfig) if callable(getattr(transformers.PreTrainedConfig, name))),
}
_BY_KIND: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "int": (0, 1, 2, 3, 4, 6, -1, 8, 12),
    "float": (0.0, 0.3, 1e-3, 1.0, -0.5),
    "None": (None,),
    "str": ("x",),
}
_WRONG_KIND = ("3", True, 1.0, float("nan"), [2], {}, None)
_ACTIVATIONS = (
    *("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh", "mish", "linear", "x"),
    *("GELU", "", None, 3, ["gelu"]),
)
_THEIR_ERRORS = (
    "expected float, got int",
    "'pad_token_id' expected int",
    "'NoneType' and 'float'",
    "`d_head`",
    "num_labels should be 2",
    "values to unpack (expected 2",
    "normal expects std",
)
_TABLE = {"rope_type": "default", "rope_theta": 50.0}
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_DOMAINS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("hidden_act", "activation", "activation_function", "ff_activation"), _ACTIVATIONS),
    **dict.fromkeys(("hidden_activation", "pooler_hidden_act", "classifier_activation", "conv_act"), _ACTIVATIONS),
    "summary_activation": ("gelu", "tanh", "relu", "x"),
    "summary_type": ("first", "last", "mean", "cls_index"),
    "position_embedding_type": ("absolute", "relative_key", "relative_key_query", None),
    "attn_type": ("bi", "x", None),
    "feed_forward_proj": ("relu", "gelu", "gated-gelu", "gated-silu", "gated-gelu_new", "gated", "x-relu", "", 3, None),
    "dense_act_fn": ("relu", "gelu", "gelu_new", "silu", "mish", None),
    "classifier_pooling": ("cls", "mean", "max", None),
    "norm_rel_ebd": ("none", "layer_norm", "Layer_Norm|x", "x", None, ["layer_norm"]),
    "pos_att_type": ("c2p", "C2P|p2c", "c2p | p2c", ["c2p"], ["p2c", "c2p"], ["c2p", "c2p"], ["p2p"], [], "", None),
    "pruned_heads": ({}, {"0": [1]}, None),
    "id2label": ({"0": "a", "1": "b", "2": "c"}, {"0": "a"}, {}, {"1": "a", "0": "b"}, {"1": "a", "2": "b"}, None),
    "num_labels": (1, 2, 3, 0, -1, "3", None),
    "layer_types": ([_GLOBAL] * 7, [_GLOBAL, _LOCAL, _LOCAL] * 2 + [_GLOBAL], [_LOCAL] * 7, [_GLOBAL], [],
                    [_GLOBAL, _LOCAL, _GLOBAL] * 2 + [_LOCAL], ["attention"] + [_LOCAL] * 6, None),
    "rope_parameters": (
        _TABLE, {"rope_theta": 50.0}, {}, None, dict.fromkeys((_GLOBAL, _LOCAL), _TABLE), {_GLOBAL: _TABLE},
        {_GLOBAL: {"rope_type": "linear", "factor": 2.0}}, {_GLOBAL: {"rope_theta": 70.0}},
        {_GLOBAL: {**_TABLE, "partial_rotary_factor": 0.5}}, {_GLOBAL: None},
        {_LOCAL: {"rope_theta": 70}, "rope_theta": 9.0}, {_GLOBAL: {"type": "linear", "factor": 2.0}},
        {_GLOBAL: {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 4, "truncate": False}},
        {_LOCAL: {"rope_type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
    ),
    "rope_scaling": (
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, {"type": "yarn"},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 3, "attention_factor": 0.7},
        {"rope_type": "yarn", "factor": 2, "beta_fast": 3, "beta_slow": None, "truncate": False, "mscale": 2.0},
        {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "proportional", "factor": 2.0}, _TABLE,
        {"type": "linear", "factor": 2.0}, {"rope_theta": 50.0}, {}, None,
    ),
    "per_layer_config": ({"0": {"intermediate_size": 12}}, {"0": {"num_attention_heads": 1}}, None),
    **dict.fromkeys(("rope_theta", "global_rope_theta", "local_rope_theta"), (10.0, 500, "x")),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Subject:
    """A family with a small config.json."""

    family: Family
    values: Values
    config_class: Any

    @property
    def keys(self) -> list[str]:
        """Every key that the source of the config or of the model mentions, and all that bertjax reads."""
        cls = self.config_class
        module = importlib.import_module(cls.__module__.replace(".configuration_", ".modeling_"))
        members = inspect.getmembers(cls, lambda each: isinstance(each, property))
        result = _EXTRA_KEYS | {name for name, each in members if each.fset} | set(cls.attribute_map)
        result |= {field.name for field in dataclasses.fields(cls)} | set(self.values) | set(self.family.fields)
        result |= {key for key, *_ in (*self.family.unsupported, *self.family.training_only)}
        for source in (cls, module):
            result |= set(_MENTIONED.findall(inspect.getsource(source)))
        return sorted(result - _LEFT_ALONE)

    def candidates(self, key: str) -> tuple[Any, ...]:
        """Returns values for a key; of wrong kinds only where bertjax reads it."""
        if key in _DOMAINS:
            return (*_DOMAINS[key], ABSENT)
        kinds = {field.name: str(field.type) for field in dataclasses.fields(self.config_class)}
        kind = kinds.get(key, "bool | int | float | None")
        values = [value for name, each in _BY_KIND.items() if name in kind for value in each]
        return (*values, ABSENT, *(_WRONG_KIND if key in self.family.fields else ()))

    def changed(self, changes: Values, architecture: str | None = None) -> Values:
        """Returns a config.json with other values of some keys."""
        values = self.values | {"architectures": [architecture or next(iter(self.family.architectures))]} | changes
        return {key: copy.deepcopy(value) for key, value in values.items() if value is not ABSENT}


def subjects() -> dict[str, Subject]:
    """Returns the families by name."""
    result = {}
    for name, family in FAMILIES.items():
        if "auto_map" in family.constants or not family.written:  # no class in transformers
            continue
        case = next(case for case in CASES if not family.architectures.keys().isdisjoint(case.classes))
        values = json.loads(json.dumps(case.config | {"model_type": family.model_type}))
        result[name] = Subject(family, values, getattr(transformers, case.config_class))
    return result


def groups_of_changes(subject: Subject) -> Iterator[list[Values]]:
    """Yields every key with every value: alone, or with other keys that `disagreement` may change in the same model.

    Alone are values that one side's config refuses, and sizes: with layers of width 1, or none, other keys have no
    effect, and defaults of several sizes make a large model. Values that bertjax warns of are in other groups, because
    a warning excuses what it does not explain.
    """
    for index in range(max(len(subject.candidates(key)) for key in subject.keys)):
        groups: dict[tuple[bool, bool], list[Values]] = {}
        for key in subject.keys:
            for value in subject.candidates(key)[index : index + 1]:
                change, read = {key: value}, key in subject.family.fields
                alone = read and (type(value) is int or value is ABSENT)
                warned = None if alone else _warns(subject, change)
                if warned is None:
                    yield [change]
                else:
                    groups.setdefault((read, warned), []).append(change)
        for (read, _), changes in groups.items():
            size = 4 if read else len(changes)
            yield from (changes[first : first + size] for first in range(0, len(changes), size))


def _warns(subject: Subject, change: Values) -> bool | None:
    """Returns whether bertjax warns of a change; None if it or the config of `transformers` refuses the change."""
    values = subject.changed(change)
    with Warnings() as warned:
        try:
            subject.family.parse_config(copy.deepcopy(values))
            subject.config_class(**values)
        except Exception:
            return None
    return bool(warned.texts)


def misread(subject: Subject, changes: list[Values]) -> list[str]:
    """Returns the changes that both read differently, compared in one model, or in several where that is refused."""
    together = {key: value for change in changes for key, value in change.items()}
    problem = disagreement(subject, subject.changed(together))
    if problem == "":
        return []
    result: list[str] = []
    if len(changes) > 1:
        half = len(changes) // 2
        result = misread(subject, changes[:half]) + misread(subject, changes[half:])
    return result or ([f"{together}: {problem}"] if problem else [])


def draw_changes(subject: Subject, draw: random.Random) -> Values:
    """Draws one to three changes."""
    keys = draw.sample(subject.keys, draw.choice((1, 2, 2, 3)))
    return {key: draw.choice(subject.candidates(key)) for key in keys}


def build(subject: Subject, values: Values) -> Any:
    """Returns a random model of `transformers` in double precision; raises whatever that raises."""
    config = subject.config_class(**copy.deepcopy(values))
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack for a GPU that may follow
    model = getattr(transformers, values["architectures"][0])(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def run(model: Any, training: bool) -> Arrays:
    """Returns all outputs for two sequences; dropout draws the same masks in every model of equal rates."""
    model_type, config = model.config.model_type, getattr(model.config, "encoder", model.config)
    has_offset = "roberta" in model_type or model_type in ("camembert", "data2vec-text", "mpnet", "xmod")
    offset = config.pad_token_id + 1 if has_offset else 0
    positions = 7 if model_type == "xlnet" else getattr(config, "max_position_embeddings", 7)
    length = max(1, min(7, positions - offset))
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, max(1, config.vocab_size), (2, length)))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    end = config.eos_token_id
    if getattr(model, "classification_head", None) is not None and isinstance(end, int):  # reads the last end token
        ids[ids == end] = 0 if end else 1
        ids[0, -1] = ids[1, min(4, length - 1)] = end
    if type(model).__name__.endswith("ForMultipleChoice"):  # takes [B, C, S]
        ids, mask = ids[None], mask[None]
    torch.default_generator.manual_seed(0)
    with torch.no_grad():
        outputs = model.train(training)(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    arrays = {}
    for name, value in outputs.items():
        for index, each in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(each, torch.Tensor):
                arrays[f"{name}[{index}]"] = each.numpy()
    return arrays


class Warnings(logging.Handler):
    """Collects the warnings of bertjax."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> Warnings:
        logging.getLogger("bertjax").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("bertjax").removeHandler(self)


def disagreement(subject: Subject, values: Values) -> str | None:
    """Returns where the two readings differ; empty where they agree, None where a refusal leaves nothing to compare."""
    with Warnings() as warned:
        try:
            config = subject.family.parse_config(copy.deepcopy(values))
            rendered = subject.family.render_config(config, values["architectures"][0])
        except UserError:
            return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = build(subject, values)
            expected = [run(theirs, training) for training in (False, True)]
        except Exception as error:
            return None if warned.texts or _is_their_error(error) else f"transformers refuses it: {_short(error)}"
        try:
            actual, rates = _outputs_of(subject, rendered, theirs.state_dict())
        except Exception as error:
            # Pairs are two labels in bertjax, whose shape is refused; bertjax writes one of DeBERTa's two layouts; it
            # reads as many of BigBird's positions as are attended to fully.
            known = "sop_classifier" in str(error) or "lm_predictions" in str(error)
            known = known or any("block_sparse" in text for text in warned.texts)
            return None if known else f"another model: {_short(error)}"
    if not _equal(expected[0], actual[0]):
        return "other outputs"
    if _rates(theirs) != rates or not _equal(expected[1], actual[1]):
        return "" if warned.texts else "another dropout, epsilon or initializer_range"
    return ""


_READ: dict[str, tuple[State, list[Arrays], tuple[Any, ...]]] = {}


def _outputs_of(subject: Subject, rendered: Values, parameters: State) -> tuple[list[Arrays], tuple[Any, ...]]:
    """Returns outputs and rates of what bertjax read, with these parameters.

    Most changes leave it and the random parameters as they were: such a model is not built and run again.
    """
    text = json.dumps([subject.family.model_type, rendered], sort_keys=True)
    known, *result = _READ.get(text, ({}, [], ()))
    if known.keys() != parameters.keys() or not all(map(torch.equal, known.values(), parameters.values())):
        ours = build(subject, rendered)
        ours.load_state_dict(parameters)
        result = [[run(ours, training) for training in (False, True)], _rates(ours)]
        if len(_READ) > 100:
            _READ.clear()
        _READ[text] = (parameters, *result)
    return tuple(result)


def _is_their_error(error: Exception) -> bool:
    """Returns whether a refusal is one that bertjax need not share.

    Whole numbers are floats in JSON; no model is drawn from scratch with the numbers of a file; XLNet's d_head is
    computed before other names of its factors are read; answer heads with other than two outputs have a refused shape.
    """
    return isinstance(error, ZeroDivisionError) or any(text in str(error) for text in _THEIR_ERRORS)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"


def _equal(first: Arrays, second: Arrays) -> bool:
    """Compares outputs, up to rounding: the norms of Gemma compute in float32 in every model."""
    return first.keys() == second.keys() and all(
        first[name].shape == second[name].shape and np.allclose(first[name], second[name], 1e-6, 1e-6, equal_nan=True)
        for name in first
    )


def _rates(model: Any) -> tuple[Any, ...]:
    return getattr(model.config, "initializer_range", None), [
        each.eps for each in model.modules() if hasattr(each, "eps")
    ]
