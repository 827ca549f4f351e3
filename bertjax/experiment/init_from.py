"""Initial weights from another model (`init_from`), or the whole state of another run's checkpoint (`resume_from`).

With `init_from` text, tokenizer, length and task may be others.
Parameters are matched by name. The embedding of a changed vocabulary is composed of the old rows, a position table is
interpolated, tiled or cut, heads that the objective lacks are dropped, and heads that the source lacks stay fresh.

A run with `resume_from` may change what it likes. A decay of the learning rate from several steps of one run, or a last
phase on other text, keeps the optimizer this way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
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
from bertjax.config.fields import format_value, settings_of
from bertjax.config.model import OF_TOKENIZER, EncoderConfig, differences, encoder_config
from bertjax.config.objectives import objective_class
from bertjax.config.overrides import differences as changed_values
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.vocab_transfer import TokenMatch, match_tokens
from bertjax.errors import UserError, comma_list, named
from bertjax.experiment import build
from bertjax.experiment.growth import GROWING, grow, larger_sizes, needs_growth
from bertjax.experiment.load import SourceModel, load_source_model, require_model, source_digests, stored_experiment
from bertjax.experiment.workdir import ChangedKey, checkpoint_steps, parse_checkpoint, read_config
from bertjax.hf.keymaps import find_family
from bertjax.hf.load import is_encoder_decoder, read_config_json
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.disentangled_attention import attention_span, distance_bucket
from bertjax.objectives.base import Objective
from bertjax.objectives.seq2seq import EncoderDecoderObjective
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup
from bertjax.training.optimizer import reset_ema
from bertjax.training.sharding import host_copy, put_tree
from bertjax.training.state import COUNTER_DEFAULTS, TrainState
from bertjax.types import Params

_GELUS = {"gelu", "gelu_new"}  # differ by at most 5e-4; Google's code has one, Hugging Face's copies of BERT the other


def require_init_source(cfg: ConfigDict) -> None:
    """Raises `UserError` if `init_from` cannot hold a model, or holds another one; called before tokenization."""
    if cfg.init_from is None:
        return
    source = architecture_of(require_model(cfg.init_from))
    if source is not None and _trains_one_model(cfg) and not objective_class(cfg.objective.name).uses_teacher:
        architecture_changes(f"init_from={cfg.init_from}", source, encoder_config(cfg), cfg.init_growth)


def architecture_of(folder: Path) -> EncoderConfig | None:
    """Returns the architecture that config.json of a folder or run names; None where more than that file tells it."""
    if (folder / "checkpoints").is_dir():
        cfg = read_config(folder)
        return encoder_config(cfg) if _trains_one_model(cfg) else None
    values, _ = read_config_json(folder)
    family = None if is_encoder_decoder(values) else find_family(values["model_type"])
    return None if family is None else family.parse_config(values, f"{folder}/config.json")


def _trains_one_model(cfg: ConfigDict) -> bool:
    """Returns whether `model` describes all of what a run is known by: it pretrains, and no encoder-decoder."""
    objective = objective_class(cfg.objective.name)
    return not objective.is_finetuning and not issubclass(objective, EncoderDecoderObjective)


def load_initial_weights(
    exp: build.Experiment,
    tokenizer: Tokenizer,
    state: TrainState,
    source: SourceModel | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> TrainState:
    """Returns the state with the weights of `init_from`, and prints which were used; all else stays fresh.

    Args:
        exp: the experiment.
        tokenizer: its tokenizer.
        state: the fresh state.
        source: the model of `init_from`, if it is loaded already.
        processes: processes that train together; each has read the weights by itself.

    Raises:
        UserError: the weights do not fit the model or the tokenizer, or differ between processes.
    """
    cfg, folder = exp.cfg, exp.cfg.init_from
    source = load_source_model(folder) if source is None else source
    processes.require_same(
        f"weights of init_from={folder}", lambda: source_digests(source), "Put them on a disk that all hosts share"
    )
    match = _match_tokens(cfg, folder, source.tokenizer, tokenizer)
    params = host_copy(state.params)
    lines = describe_tables(source, exp.model, match, cfg.init_positions)
    fresh, unused = set(flatten_tree(params)), dict[int, set[str]]()
    for name, trained in _trained_networks(exp.objective, source).items():
        config = exp.objective.networks[name].config
        lines += architecture_changes(f"init_from={folder}", trained.config, config, cfg.init_growth)
        fitted = resize_tables(trained, config, match, cfg.init_positions)
        if needs_growth(trained.config, config):
            if exp.objective.encoder_decoder is not None:
                raise UserError(f"init_growth={cfg.init_growth} grows a single network, not an encoder-decoder")
            fitted = grow(fitted, trained.heads, trained.config, config, cfg.init_growth)
        params, filled = fill_network(exp.objective, params, name, fitted)
        fresh -= filled
        taken = set(flatten_tree(exp.objective.network_params(params, name)))
        # a decoder that starts as the encoder uses other heads of the same network
        left = set(flatten_tree(trained.params)) - taken
        unused[id(trained.params)] = unused.get(id(trained.params), left) & left
    paths = set().union(*unused.values())
    notes = {"fresh": collapse_paths(params, fresh), "unused": collapse_paths(source.params, paths)}
    print(
        "; ".join([f"weights from {folder}", *(f"{what}: {comma_list(each)}" for what, each in notes.items() if each)])
    )
    for line in dict.fromkeys(lines):
        print(f"  {line}")
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state.params)
    return state._replace(params=put_tree(params, shardings), opt_state=reset_ema(state.opt_state, params))


def _trained_networks(objective: Objective, source: SourceModel) -> dict[str, SourceModel]:
    """Returns the source of every network that is filled: the main one, and a decoder that reads it.

    A decoder without a source of its own starts as the encoder (arXiv:1907.12461), where its layers are like those of
    the encoder, and else is fresh. It comes first: what both share is the encoder's.
    """
    (name, network), *others = objective.networks.items()
    reader = next((each.config for _, each in others if not each.stands_alone), None)
    if reader is None:
        return {name: source}
    decoder = source.decoder
    if decoder is None:
        config = source.config.as_decoder(network.config)
        if not any(_changes_weights(each) for each in differences(config, reader, heads=False)):
            decoder = source._replace(config=config)
    return ({} if decoder is None else {"decoder": decoder}) | {name: source}


def _changes_weights(field: str) -> bool:
    """Returns whether models that differ in a field have other weights."""
    return not settings_of(EncoderConfig)[field].may_differ_from_init


def architecture_changes(name: str, source: EncoderConfig, config: EncoderConfig, growth: str = "refuse") -> list[str]:
    """Compares two architectures.

    Args:
        name: name of the source, for messages, with its key.
        source: config of the source.
        config: config of the new model.
        growth: `init_growth`.

    Returns:
        A line per field that may differ and does.

    Raises:
        UserError: the weights would not fit or would mean something else.
    """
    fields = differences(source, config, heads=False)
    if {source.hidden_act, config.hidden_act} == _GELUS:
        fields.remove("hidden_act")
    different = {each: f"{each} {getattr(source, each)} there, {getattr(config, each)} here" for each in fields}
    allowed = GROWING if growth != "refuse" else ()
    refused = [each for each in different if _changes_weights(each) and each not in allowed]
    if refused:
        grows = growth == "refuse" and set(refused) <= set(larger_sizes(source, config))
        raise UserError(
            f"{name} is another model: {'; '.join(map(different.__getitem__, refused))}. Its weights would "
            f"not fit or would mean something else: set {' '.join(_keys(source, refused))}"
            + f", or grow a smaller model with {named('config.init_growth', 'tile')}"
            * grows
        )
    printed_elsewhere = (*OF_TOKENIZER, "max_position_embeddings")
    return [words for each, words in different.items() if each not in printed_elsewhere]


def _keys(source: EncoderConfig, names: Sequence[str]) -> Iterator[str]:
    """Yields the settings that make a model like the source."""
    yield from (named(f"config.model.{name}", format_value(getattr(source, name))) for name in names)


def _match_tokens(cfg: ConfigDict, folder: str, old: Tokenizer, new: Tokenizer) -> TokenMatch:
    if old.tokens != new.tokens[: old.size] and cfg.init_embeddings != "remap":
        tokenizer = Path(folder).expanduser() / "tokenizer"
        where = tokenizer if tokenizer.is_dir() else folder
        raise UserError(
            f"init_from={folder} was trained with other tokens than data.tokenizer has: its embeddings would stand for "
            f"other words; set {named('config.data.tokenizer', where)}, or remap them with "
            f"{named('config.init_embeddings', 'remap')}"
        )
    return match_tokens(old, new)


def resize_tables(source: SourceModel, config: EncoderConfig, match: TokenMatch, how: str) -> Params:
    """Resizes the embedding tables of the source.

    Args:
        source: the source model.
        config: config of the new model.
        match: source tokens for every new token.
        how: `init_positions`, for position tables that grow.

    Returns:
        The parameters with as many tokens, positions, distances and token types as the new model has.
    """
    length = config.max_position_embeddings
    positions = "encoder/embeddings/position_embeddings/embedding"
    tables: dict[str, Callable[[Any], np.ndarray]] = {
        **dict.fromkeys(
            (positions, f"decoder/{positions}"),
            lambda leaf: resize_position_table(leaf, length, source.config.position_offset, how),
        ),
        "encoder/embeddings/token_type_embeddings/embedding": lambda leaf: leaf[: config.type_vocab_size],
        "encoder/relative/embedding": lambda leaf: np.asarray(leaf)[_distance_rows(source.config, config)],
        "decoder_positions/embedding": lambda leaf: resize_position_table(leaf, length, 0, how),
    }
    changed = {
        path: average_rows(leaf, match.parts) if build.HAS_VOCABULARY.fullmatch(path) else tables[path](leaf)
        for path, leaf in flatten_tree(source.params).items()
        if path in tables or build.HAS_VOCABULARY.fullmatch(path)
    }
    return replace_leaves(source.params, changed)


def _distance_rows(old: EncoderConfig, new: EncoderConfig) -> np.ndarray:
    """Returns, for every row of the new table of relative distances, the old row of the same distance.

    A row that several distances share takes the row of the middle one. Distances that share an outermost row of the old
    table keep sharing it, so that sequences of any length compute the same as before.
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
    known = [row for row, distance in enumerate(middle) if distance is not None]
    nearest = [middle[min(known, key=lambda other: abs(other - row))] for row in range(len(middle))]
    return distance_bucket(np.array(nearest), old)


def fill_network(objective: Objective, params: Params, name: str, source: Params) -> tuple[Params, set[str]]:
    """Copies the parameters of one network into the parameters of an objective.

    The leaves of a network are found in the objective by identity. A leaf that the objective computes from others
    (DeBERTa v3's discriminator adds to the embedding of its generator) is stored under its own name, if the network
    then has the given value.

    Args:
        objective: the objective.
        params: its parameters.
        name: name of the network.
        source: parameters of the network.

    Returns:
        The new parameters, and the paths of those that were filled.

    Raises:
        UserError: the objective cannot represent a parameter of the network.
    """
    network = objective.network_params(params, name)
    merged = merge_params(network, source)
    paths_by_id = {id(leaf): path for path, leaf in flatten_tree(params).items()}
    shapes = {path: leaf.shape for path, leaf in flatten_tree(params).items()}
    source_leaves, target = flatten_tree(source), flatten_tree(merged)
    filled: dict[str, Any] = {}
    for path, leaf in flatten_tree(network).items():
        ends = [other for other in shapes if other.endswith(f"/{path}") and shapes[other] == leaf.shape]
        if path in source_leaves and (where := paths_by_id.get(id(leaf)) or next(iter(ends), None)):
            filled[where] = target[path]
    built = replace_leaves(params, filled)
    lacking = [
        path
        for path, leaf in flatten_tree(objective.network_params(built, name)).items()
        if path in source_leaves and not np.array_equal(leaf, target[path])
    ]
    if lacking:
        raise UserError(f"init_from: objective {type(objective).__name__} cannot use {', '.join(lacking)}")
    return built, set(filled)


def describe_tables(source: SourceModel, new: EncoderConfig, match: TokenMatch, how: str) -> list[str]:
    """Describes how the tables of tokens and positions changed.

    Args:
        source: the source model.
        new: config of the new model.
        match: source tokens for every new token.
        how: `init_positions`.
    """
    lines, old, tokens = [], source.config, source.tokenizer.size
    if old.vocab_size > tokens:
        dropped = f"the last {old.vocab_size - tokens:,} are dropped"
        lines.append(f"embeddings: {old.vocab_size:,} rows there for {tokens:,} tokens: {dropped}")
    if match.matched < len(match.parts):
        lines.append(
            f"tokens: {match.matched:,} of {len(match.parts):,} kept, {match.composed:,} composed of old ones, "
            f"{match.fresh:,} fresh"
        )
    lengths = old.max_position_embeddings, new.max_position_embeddings
    if new.position_embedding == "learned" and lengths[0] != lengths[1]:
        word = "cut" if lengths[1] < lengths[0] else f"resized (init_positions={how})"
        lines.append(f"positions: {lengths[0]:,} there, {lengths[1]:,} here: {word}")
    return lines


def require_checkpoint(cfg: ConfigDict) -> None:
    """Raises `UserError` if `resume_from` names no checkpoint before the last step; called before tokenization."""
    if cfg.resume_from is None:
        return
    workdir, step = parse_checkpoint(cfg.resume_from)
    if cfg.train.num_steps <= step:
        raise UserError(
            f"resume_from={cfg.resume_from}: train.num_steps={cfg.train.num_steps} counts the steps of that run, too; "
            f"set it above {step}"
        )
    read_config(workdir)
    steps = checkpoint_steps(workdir)
    if step not in steps:
        raise UserError(
            f"resume_from={cfg.resume_from}: {workdir} has no checkpoint of step {step}; it has {comma_list(steps)}"
        )


def restore_from_other_run(
    exp: build.Experiment, tokenizer: Tokenizer, processes: ProcessGroup
) -> tuple[TrainState, list[ChangedKey]]:
    """Restores the checkpoint of `resume_from`, and prints the keys that differ from those of its run.

    Args:
        exp: the experiment of the new run.
        tokenizer: its tokenizer.
        processes: processes that train together.

    Returns:
        The state, and the keys.

    Raises:
        UserError: the checkpoint is missing or damaged, or is that of another model, optimizer or tokenizer.
    """
    name = f"resume_from={exp.cfg.resume_from}"
    workdir, step = parse_checkpoint(exp.cfg.resume_from)
    source, source_tokenizer = stored_experiment(workdir)
    if source_tokenizer.digest != tokenizer.digest:
        raise UserError(
            f"{name} has another tokenizer: set {named('config.data.tokenizer', workdir / 'tokenizer')}, or take the "
            f"weights alone with {named('config.init_from')} and {named('config.init_embeddings', 'remap')}"
        )
    networks = exp.objective.networks
    for network in networks.keys() & source.objective.networks.keys():
        architecture_changes(name, source.objective.networks[network].config, networks[network].config)
    checkpoints = build.open_checkpoints(exp.cfg, workdir, read_only=True, processes=processes)
    with contextlib.closing(checkpoints):
        restored = checkpoints.restore(exp.abstract_state(), step, absent=COUNTER_DEFAULTS)
    assert restored is not None  # an unknown step is an error
    changes = [each for each in changed_values(read_config(workdir), exp.cfg) if each[0] != "resume_from"]
    print(f"continuing {workdir} from step {step}")
    for key, before, now in changes:
        print(f"  {key}: {before} -> {now}")
    return restored.state, changes
