"""Prunes a model for a text, and recovers it by distillation from the model that it was."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.checkpoint.surgery import replace_leaves
from bertjax.data.changed_vocabulary import remove_unused
from bertjax.errors import UserError, named
from bertjax.experiment.build import HAS_VOCABULARY
from bertjax.experiment.continued import continue_config
from bertjax.experiment.load import load_source_model
from bertjax.experiment.loop_parts import CorpusBatches, batches
from bertjax.experiment.open_model import tokenizer_of
from bertjax.experiment.shrink import (
    choose_layers,
    choose_units,
    cosines,
    forward,
    importance,
    layer_influence,
    require_layers,
    shrink,
    smaller_config,
    sparsify,
)
from bertjax.hf.export_plan import plan_export
from bertjax.hf.pretrained import PretrainedModel, load_single
from bertjax.io.atomic import write_text
from bertjax.io.tree_paths import flatten_tree
from bertjax.types import Batch

PRUNED, UNPRUNED, RECOVERY, TARGET = "pruned", "unpruned", "recovery", "pruning.json"
_BATCHES, _SEQUENCES = 64, 4
"""Batches of the text that decide what stays, and their sequences; the directions of `importance` are one per batch."""
_COMPARED = 8  # of them that say how far the states have moved


@dataclasses.dataclass(frozen=True)
class PruningTarget:
    """Sizes of a pruned model; None: as much as before.

    Attributes:
        layers: how many, or which.
        heads: attention heads of a layer.
        intermediate_size: width inside the feed-forward block.
        min_token_count: tokens that the text has less often leave the vocabulary.
        sparsity: zeros in the matrices of the layers: see `shrink.sparsify`.
    """

    layers: int | tuple[int, ...] | None = None
    heads: int | None = None
    intermediate_size: int | None = None
    min_token_count: int | None = None
    sparsity: str | None = None


class Pruned(NamedTuple):
    """A pruned model, the old id of every token (None: all stay), the layers that stay, and its share of zeros."""

    model: PretrainedModel
    ids: np.ndarray | None
    layers: tuple[int, ...]
    zeros: float


def require_target(model: PretrainedModel, target: PruningTarget) -> None:
    """Raises `UserError` if a model has less than the target, or none of its class can be like it."""
    config = model.config
    if config.decoder_layers is not None:
        raise UserError("this model has a decoder after its encoder (decoder_layers); single encoders can be pruned")
    count = target.layers if isinstance(target.layers, int) else len(target.layers or ())
    sizes = {
        "layers": (count or None, config.num_layers),
        "heads": (target.heads, config.num_heads),
        "intermediate_size": (target.intermediate_size, config.intermediate_size),
    }
    for name, (requested, present) in sizes.items():
        if requested is not None and not 0 < requested <= present:
            raise UserError(f"{named(name, requested)} must be between 1 and the model's {present}")
    if isinstance(target.layers, tuple):
        require_layers(config, target.layers)
    if target.intermediate_size is not None:
        smaller_config(config, config.num_layers, {"intermediate_size": target.intermediate_size})
    if target.heads is not None:
        queries = config.num_heads // config.kv_heads
        if target.heads % queries:
            raise UserError(f"{named('heads', target.heads)} must be a multiple of {queries}: so many share their keys")
        smaller = smaller_config(config, config.num_layers, {"num_heads": target.heads // queries})
        if plan_export(config, model.heads).family is not None and plan_export(smaller, model.heads).family is None:
            raise UserError(
                f"{named('heads', target.heads)}: no class of {config.family} in transformers has fewer heads than "
                f"hidden_size / head size; remove layers ({named('layers')}) or inner units "
                f"({named('intermediate_size')}) instead"
            )


def prune_model(
    model: PretrainedModel, corpus: CorpusBatches, target: PruningTarget, say: Callable[[str], None]
) -> Pruned:
    """Returns a model pruned for a text.

    Args:
        model: the model.
        corpus: text in the tokens of the model.
        target: what stays.
        say: receives what is measured, before it is.

    Raises:
        UserError: the model cannot be pruned like this.
    """
    params, heads, config = model.params, model.heads, model.config
    layers = tuple(range(config.num_layers))
    if target.layers is not None:
        layers = target.layers if isinstance(target.layers, tuple) else ()
        if isinstance(target.layers, int):
            say("measuring by how much every layer changes its input")
            layers = choose_layers(config, layer_influence(model, _first(corpus, _BATCHES)), target.layers)
        params, config = shrink(params, heads, config, layers=layers)
        params = jax.device_put(params)
    if target.heads is not None or target.intermediate_size is not None:
        say("measuring how much every unit moves the last hidden states")
        shorter = dataclasses.replace(model, params=params, config=config)
        scores = importance(shorter, _first(corpus, _BATCHES), seed=0)
        counts = {
            "intermediate_size": target.intermediate_size,
            "num_heads": None if target.heads is None else target.heads * config.kv_heads // config.num_heads,
        }
        remaining = {name: choose_units(scores[name], count) for name, count in counts.items() if count is not None}
        params, config = shrink(params, heads, config, remaining=remaining)
    pruned, zeros = dataclasses.replace(model, params=params, config=config), 0.0
    ids = None
    if target.min_token_count is not None:
        used = np.flatnonzero(corpus.vocabulary.counts >= target.min_token_count)
        pruned, ids = without_tokens(pruned, used)
    if target.sparsity is not None:
        params, zeros = sparsify(pruned.params, target.sparsity)
        pruned = dataclasses.replace(pruned, params=params)
    return Pruned(dataclasses.replace(pruned, params=jax.device_put(pruned.params)), ids, layers, zeros)


def _first(corpus: CorpusBatches, count: int) -> Iterable[Batch]:
    return (corpus.batch(cursor) for cursor in range(count))


def without_tokens(model: PretrainedModel, used: Iterable[int]) -> tuple[PretrainedModel, np.ndarray]:
    """Returns a model without the tokens that a text does not use, and the old id of every new one, int64 [V].

    Args:
        model: the model, with its tokenizer.
        used: ids that stay.

    Raises:
        UserError: the vocabulary cannot be made smaller.
    """
    tokenizer, ids = remove_unused(tokenizer_of(model), used)
    rows = {
        path: np.asarray(leaf)[np.array(ids)]
        for path, leaf in flatten_tree(model.params).items()
        if HAS_VOCABULARY.fullmatch(path)
    }
    new_ids = {old: new for new, old in enumerate(ids)}
    moved = {name: getattr(model.config, name) for name in ("pad_token_id", "mask_token_id")}
    moved = {name: new_ids.get(old, old) for name, old in moved.items()}
    config = dataclasses.replace(model.config, vocab_size=len(ids), padded_vocab_size=None, **moved)
    files = tokenizer.huggingface_files(_max_length(model))
    generation = {
        key: new_ids.get(value, value) if key.endswith("_token_id") and isinstance(value, int) else value
        for key, value in model.generation.items()
    }
    smaller = dataclasses.replace(
        model,
        config=config,
        params=replace_leaves(model.params, rows),
        tokenizer_files=files,
        generation=generation,
    )
    return smaller, np.array(ids)


def _max_length(model: PretrainedModel) -> int:
    stored = json.loads(model.tokenizer_files.get("tokenizer_config.json", b"{}")).get("model_max_length")
    return stored if isinstance(stored, int) else model.config.max_position_embeddings


def agreement(one: PretrainedModel, other: PretrainedModel, corpus: CorpusBatches, ids: np.ndarray | None) -> float:
    """Returns the mean cosine of the last hidden states of two models.

    Args:
        one: the model whose tokens the text has.
        other: a pruned one.
        corpus: the text; what is held out of it, where something is.
        ids: old id of every token of `other`; None: the same tokens. A token that it lacks becomes its first one.
    """
    held_out = [batch for source in corpus.held_out.values() for batch in source] or _first(corpus, _COMPARED)
    new_ids = None
    if ids is not None:
        new_ids = np.zeros(one.config.vocab_size, np.int32)
        new_ids[ids] = np.arange(len(ids))
    total, count = 0.0, 0
    for batch in itertools.islice(held_out, _COMPARED):
        tokens, is_text = batch["input_ids"], np.asarray(batch["segment_ids"]) > 0
        translated = dict(batch, input_ids=tokens if new_ids is None else new_ids[tokens])
        states = [forward(*pair).last_hidden_state for pair in ((one, batch), (other, translated))]
        total += float(np.asarray(cosines(*states))[is_text].sum())
        count += int(is_text.sum())
    return total / max(count, 1)


def open_corpus(source: str, overrides: Mapping[str, Any]) -> CorpusBatches:
    """Returns the text of a config that continues a model, in small batches."""
    cfg = continue_config(source, overrides)
    return batches(cfg, {"train.batch_size": _SEQUENCES, "train.num_steps": max(_BATCHES, cfg.train.num_steps)})


def recovery_config(
    student: Path, teacher: str, model: PretrainedModel, sparse: bool, overrides: Mapping[str, Any]
) -> ConfigDict:
    """Returns the config of the distillation that recovers a pruned model.

    With a head for tokens DistilBERT's losses (arXiv:1910.01108); for other models, and where every token sees itself
    (XLNet's content stream), the cosine of the last hidden states alone, of text without masks.

    Args:
        student: folder of the pruned model.
        teacher: folder or run of the model that it was, with the same tokens.
        model: the pruned model.
        sparse: whether zeros stay.
        overrides: values by dotted key.
    """
    predicts = "mlm" in model.heads and model.config.attention_position != "relative"
    masks = predicts and not model.config.causal
    values: dict[str, Any] = {
        "objective.name": "distillation",
        "objective.distillation.teacher": teacher,
        "objective.distillation.mask_inputs": masks,
        "objective.distillation.kd_weight": 5.0 if predicts else 0.0,
        "objective.distillation.mlm_weight": 2.0 if masks else 0.0,
        "objective.distillation.cosine_weight": 1.0,
        "optimizer.keep_zeros": sparse,
    }
    return continue_config(student, values | dict(overrides))


def recovered(pruned: PretrainedModel, workdir: Path) -> PretrainedModel:
    """Returns the pruned model with the weights that a run has trained; heads that it did not train stay."""
    trained = flatten_tree(load_source_model(workdir).params)
    present = flatten_tree(pruned.params)
    params = replace_leaves(pruned.params, {path: leaf for path, leaf in trained.items() if path in present})
    return dataclasses.replace(pruned, params=jax.device_put(params))


def store_pruned(workdir: Path, model: PretrainedModel, pruned: Pruned, facts: Mapping[str, Any]) -> None:
    """Writes the folders that a recovery needs, and last what they are of."""
    if pruned.ids is not None:
        without_tokens(model, pruned.ids)[0].save_pretrained(workdir / UNPRUNED, overwrite=True)
    pruned.model.save_pretrained(workdir / PRUNED, overwrite=True)
    stored = dict(facts, remaining_layers=list(pruned.layers), zeros=pruned.zeros)
    stored["ids"] = None if pruned.ids is None else pruned.ids.tolist()
    write_text(workdir / TARGET, json.dumps(stored) + "\n")


def stored_pruned(workdir: Path, facts: Mapping[str, Any]) -> Pruned | None:
    """Returns what an earlier call of the same command pruned; None if there is nothing.

    Raises:
        UserError: the directory is that of another call.
    """
    if not (workdir / TARGET).is_file():
        return None
    stored = json.loads((workdir / TARGET).read_text(encoding="utf-8"))
    for name, value in facts.items():
        if stored.get(name) != value:
            raise UserError(
                f"{named('workdir')} {workdir} was begun with {name}={stored.get(name)}, not {value}; give another one"
            )
    ids = None if stored["ids"] is None else np.array(stored["ids"])
    return Pruned(load_single(workdir / PRUNED), ids, tuple(stored["remaining_layers"]), stored["zeros"])
