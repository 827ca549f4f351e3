"""`init_from`: a run that begins with the weights of another model, and may have other text, pieces, length or task.

What both models have is taken by name. A vocabulary that changed is put together anew from the old rows, a position
table is stretched or cut, heads that the objective lacks are left out, and those that the folder lacks are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.checkpoint.surgery import (
    average_rows,
    collapse_paths,
    merge_params,
    replace_leaves,
    resize_position_table,
)
from bertjax.config.fields import settings_of
from bertjax.config.model import EncoderConfig, differences
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.vocab_transfer import TokenMatch, match_tokens
from bertjax.errors import UserError, comma_list
from bertjax.experiment import build
from bertjax.experiment.load import SourceModel, load_source_model, require_model
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.disentangled_attention import attention_span, distance_bucket
from bertjax.objectives.base import Objective
from bertjax.training.ema import reset_ema
from bertjax.training.sharding import host_copy, put_tree
from bertjax.training.state import TrainState
from bertjax.types import Params

# At most 5e-4 apart; Google's code has the one, Hugging Face's copies of BERT the other.
_GELUS = {"gelu", "gelu_new"}


def require_init_source(cfg: ConfigDict) -> None:
    """Raises `UserError` early, before hours of tokenising, when `init_from` can hold no model."""
    if cfg.init_from is not None:
        require_model(Path(cfg.init_from).expanduser())


def load_initial_weights(
    exp: build.Experiment, tokenizer: Tokenizer, state: TrainState, given: SourceModel | None = None
) -> TrainState:
    """The fresh state with the weights of `init_from`; step, optimizer and average begin anew. Says what it took.

    `given` is what was read there already.
    """
    cfg, folder = exp.cfg, Path(exp.cfg.init_from).expanduser()
    given = load_source_model(folder) if given is None else given
    name, network = next(iter(exp.objective.networks.items()))
    changed = architecture_changes(folder, given.config, network.config)
    match = _matched(cfg, folder, given.tokenizer, tokenizer)
    fitted = resize_tables(given, network.config, match, cfg.init_positions)
    params, fresh = fill_network(exp.objective, host_copy(state.params), name, fitted)
    taken = set(flatten_tree(exp.objective.network_params(params, name)))
    unused = collapse_paths(fitted, set(flatten_tree(fitted)) - taken)
    notes = [f"{what}: {comma_list(paths)}" for what, paths in (("fresh", fresh), ("left out", unused)) if paths]
    print("; ".join([f"weights from {folder}", *notes]))
    for line in [*_tables(given.config, network.config, match, cfg.init_positions), *changed]:
        print(f"  {line}")
    laid = jax.tree.map(lambda leaf: leaf.sharding, state.params)
    return state._replace(params=put_tree(params, laid), opt_state=reset_ema(state.opt_state, params))


def architecture_changes(folder: Path, given: EncoderConfig, wanted: EncoderConfig) -> list[str]:
    """What the new model computes otherwise, on purpose; raises `UserError` where weights would mean nothing here."""
    names = differences(given, wanted, heads=False)
    if {given.hidden_act, wanted.hidden_act} == _GELUS:
        names.remove("hidden_act")
    different = {name: f"{name} {getattr(given, name)} there, {getattr(wanted, name)} here" for name in names}
    refused = [words for name, words in different.items() if not settings_of(EncoderConfig)[name].transfer]
    if refused:
        raise UserError(
            f"init_from={folder} is another model: {'; '.join(refused)}. Its weights would not fit or would mean "
            "something else: set these keys of model.* to what they are there"
        )
    told_elsewhere = ("vocab_size", "pad_token_id", "max_position_embeddings")
    return [words for name, words in different.items() if name not in told_elsewhere]


def _matched(cfg: ConfigDict, folder: Path, old: Tokenizer, new: Tokenizer) -> TokenMatch:
    if old.tokens != new.tokens and cfg.init_embeddings != "remap":
        where = folder / "tokenizer" if (folder / "tokenizer").is_dir() else folder
        raise UserError(
            f"init_from={folder} was trained with other pieces than data.tokenizer has: its embeddings would stand for "
            f"other words; set --config.data.tokenizer={where}, or carry them over with --config.init_embeddings=remap"
        )
    return match_tokens(old, new)


def resize_tables(given: SourceModel, config: EncoderConfig, match: TokenMatch, how: str) -> Params:
    """The given parameters with tables that have the rows of `config`: its pieces, positions, distances and types."""

    length = config.max_position_embeddings
    tables: dict[str, Callable[[Any], np.ndarray]] = {
        "encoder/embeddings/position_embeddings/embedding": lambda leaf: resize_position_table(
            leaf, length, given.config.position_offset, how
        ),
        "encoder/embeddings/token_type_embeddings/embedding": lambda leaf: leaf[: config.type_vocab_size],
        "encoder/relative/embedding": lambda leaf: np.asarray(leaf)[_distance_rows(given.config, config)],
        "decoder_positions/embedding": lambda leaf: resize_position_table(leaf, length, 0, how),
    }
    changed = {
        path: average_rows(leaf, match.parts) if build.HAS_VOCABULARY.fullmatch(path) else tables[path](leaf)
        for path, leaf in flatten_tree(given.params).items()
        if path in tables or build.HAS_VOCABULARY.fullmatch(path)
    }
    return replace_leaves(given.params, changed)


def _distance_rows(old: EncoderConfig, new: EncoderConfig) -> np.ndarray:
    """For every row of the new table of distances, the row that the old table has for the same distance.

    Rows that several distances share are asked for the one in the middle; distances that the old model never told apart
    go on sharing its outermost rows, so that rows of any length compute what they did.
    """
    if (old.position_buckets, old.max_distance) == (new.position_buckets, new.max_distance):
        return np.arange(2 * attention_span(new))
    if not new.position_buckets and not old.position_buckets:
        return distance_bucket(np.arange(-attention_span(new), attention_span(new)), old)
    reach = max(new.max_distance, attention_span(new))
    distances = np.arange(-reach, reach)
    rows = distance_bucket(distances, new)
    middle = [
        int(np.median(distances[rows == row])) if (rows == row).any() else None
        for row in range(2 * attention_span(new))
    ]
    known = [place for place, distance in enumerate(middle) if distance is not None]
    nearest = [middle[min(known, key=lambda other: abs(other - place))] for place in range(len(middle))]
    return distance_bucket(np.array(nearest), old)


def fill_network(objective: Objective, params: Params, name: str, given: Params) -> tuple[Params, list[str]]:
    """The objective's parameters with those of one of its networks given, and the paths of what stays fresh.

    A network is made of leaves of the objective, which are found by being the same arrays. A leaf that the objective
    computes from others (DeBERTa v3's discriminator adds to the tables of its generator) is put where those of that
    name lie, if the network then has it.
    """
    network = objective.network_params(params, name)
    merged = merge_params(network, given)
    own = {id(leaf): path for path, leaf in flatten_tree(params).items()}
    shapes = {path: leaf.shape for path, leaf in flatten_tree(params).items()}
    there, found = flatten_tree(given), flatten_tree(merged)
    filled: dict[str, Any] = {}
    for path, leaf in flatten_tree(network).items():
        ends = [other for other in shapes if other.endswith(f"/{path}") and shapes[other] == leaf.shape]
        if path in there and (where := own.get(id(leaf)) or next(iter(ends), None)):
            filled[where] = found[path]
    built = replace_leaves(params, filled)
    lacking = [
        path
        for path, leaf in flatten_tree(objective.network_params(built, name)).items()
        if path in there and not np.array_equal(leaf, found[path])
    ]
    if lacking:
        raise UserError(f"init_from: objective {type(objective).__name__} cannot take over {', '.join(lacking)}")
    return built, collapse_paths(params, set(shapes) - set(filled))


def _tables(old: EncoderConfig, new: EncoderConfig, match: TokenMatch, how: str) -> list[str]:
    """What became of the tables of pieces and of positions, where they are not what they were."""
    lines = []
    if match.kept < len(match.parts):
        lines.append(
            f"pieces: {match.kept:,} of {len(match.parts):,} kept, {match.composed:,} composed of old ones, "
            f"{match.fresh:,} fresh"
        )
    lengths = old.max_position_embeddings, new.max_position_embeddings
    if new.position_embedding == "learned" and lengths[0] != lengths[1]:
        word = "cut" if lengths[1] < lengths[0] else f"stretched (init_positions={how})"
        lines.append(f"positions: {lengths[0]:,} there, {lengths[1]:,} here: {word}")
    return lines
