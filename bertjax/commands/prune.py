"""A smaller model out of a larger one: layers, heads, inner units, tokens or weights that a text needs least."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from bertjax.commands.arguments import Flag, Folder, Overrides
from bertjax.commands.pretrain import train
from bertjax.commands.signatures import command
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment import prune as pruning
from bertjax.experiment.open_model import load_pretrained
from bertjax.experiment.shrink import parse_sparsity
from bertjax.experiment.workdir import hold_workdir
from bertjax.hf.pretrained import PretrainedModel
from bertjax.io.output import Results, require_output_folder
from bertjax.io.staging import local_copy, output_path
from bertjax.io.stderr import note
from bertjax.io.tree_paths import flatten_tree
from bertjax.report.analyses import SMALLER
from bertjax.report.render import store_analysis


@command
def prune(
    model: Annotated[Folder, Flag(type=Path, metavar="FOLDER")],
    out: Annotated[Folder, Flag(type=Path, metavar="FOLDER")],
    text: Annotated[Sequence[str], Flag(nargs="+", metavar="SOURCE", key="data.sources")],
    overrides: Overrides = None,
    *,
    layers: Annotated[str | int | Sequence[int] | None, Flag(metavar="N|I,I,...")] = None,
    heads: int | None = None,
    intermediate_size: int | None = None,
    min_token_count: int | None = None,
    sparsity: Annotated[str | None, Flag(metavar="N:M|SHARE")] = None,
    workdir: Annotated[Folder | None, Flag(type=Path, metavar="WORKDIR")] = None,
) -> Results:
    """Remove what a model needs least for a text, and recover the rest by distillation.

    The smaller model is of the same class, with all of its heads, and keeps the files of sentence-transformers.

    Args:
        model: a Hugging Face folder, an export, the work directory of a run, or hub:NAME[@REVISION]
        out: folder to write
        text: text that decides what stays, as in data.sources, such as text:corpus/*.txt.gz
        layers: layers to keep: how many, chosen by how much they change their input, or which, counted from 0
        heads: attention heads of every layer to keep, by how far removal moves the last hidden states
        intermediate_size: width inside the feed-forward blocks to keep, in the same way
        min_token_count: remove tokens that the text has less often from the vocabulary
        sparsity: set the smallest weights of the layers to zero: 2:4, or a share such as 0.5
        workdir: train the smaller model to do what the model did, in this directory, with --config.KEY=VALUE; the same
            call resumes

    Returns:
        Sizes before and after, and the mean cosine of the last hidden states of both models on held-out text.

    Raises:
        UserError: the model cannot be pruned like this, or a folder holds something else.
        KeyboardInterrupt: after Ctrl-C, when the state is saved; the same call resumes.

    Example:
        bertjax prune --model runs/base --out pruned --text text:corpus.txt.gz --layers 6 --workdir runs/pruned
    """
    target = _target(layers, heads, intermediate_size, min_token_count, sparsity)
    require_output_folder(out)
    folder = Path(out).expanduser()
    if folder.exists():
        raise UserError(f"{named('out')} {folder} exists; give a new folder")
    overrides = dict(overrides or {})
    if workdir is None and (others := [key for key in overrides if not key.startswith("data.")]):
        raise UserError(f"{named(f'config.{others[0]}')} is of a recovery, which needs {named('workdir')}")
    source = os.fspath(getattr(model, "workdir", model))
    loaded = load_pretrained(source)
    if not isinstance(loaded, PretrainedModel):
        raise UserError(f"{source} has an encoder and a decoder; only single networks can be pruned")
    pruning.require_target(loaded, target)
    overrides["data.sources"] = (text,) if isinstance(text, str) else tuple(text)
    run_folder = None if workdir is None else local_copy(workdir)
    with (
        contextlib.nullcontext() if run_folder is None else hold_workdir(run_folder),
        output_path(folder, False) as local,
    ):
        return _prune(loaded, source, target, overrides, run_folder, local, folder)


def _target(
    layers: Any, heads: int | None, intermediate_size: int | None, min_token_count: int | None, sparsity: str | None
) -> pruning.PruningTarget:
    """Returns what is to stay; raises `UserError` where that is nothing in particular."""
    if isinstance(layers, str):
        parts = layers.split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise UserError(f"{named('layers', layers)} is neither a number of layers nor a list such as 0,2,4")
        layers = int(layers) if len(parts) == 1 else tuple(map(int, parts))
    elif layers is not None and not isinstance(layers, int):
        layers = tuple(layers)
    target = pruning.PruningTarget(layers, heads, intermediate_size, min_token_count, sparsity)
    requested = {name: value for name, value in dataclasses.asdict(target).items() if value is not None}
    if not requested:
        raise UserError(
            f"nothing to prune: give {named('layers')}, {named('heads')}, {named('intermediate_size')}, "
            f"{named('min_token_count')} or {named('sparsity')}"
        )
    require_at_least(1, **{name: value for name, value in requested.items() if isinstance(value, int)})
    if sparsity is not None:
        parse_sparsity(sparsity)
    return target


def _prune(
    model: PretrainedModel,
    source: str,
    target: pruning.PruningTarget,
    overrides: dict[str, Any],
    workdir: Path | None,
    out: Path,
    folder: Path,
) -> Results:
    corpus = pruning.open_corpus(source, {key: value for key, value in overrides.items() if key.startswith("data.")})
    facts = {"model": source, "text": list(overrides["data.sources"])} | {
        name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(target).items()
    }
    pruned = None if workdir is None else pruning.stored_pruned(workdir, facts)
    if pruned is None:
        pruned = pruning.prune_model(model, corpus, target, note)
        if workdir is not None:
            pruning.store_pruned(workdir, model, pruned, facts)
    before = pruning.agreement(model, pruned.model, corpus, pruned.ids)
    result, after = pruned.model, None
    if workdir is not None:
        teacher = source if pruned.ids is None else str(workdir / pruning.UNPRUNED)
        sparse = target.sparsity is not None
        cfg = pruning.recovery_config(workdir / pruning.PRUNED, teacher, pruned.model, sparse, overrides)
        train(cfg, workdir / pruning.RECOVERY)
        result = pruning.recovered(pruned.model, workdir / pruning.RECOVERY)
        after = pruning.agreement(model, result, corpus, pruned.ids)
    result.save_pretrained(out)
    results = _describe(model, result, pruned, before, after, folder)
    scores = [("cosine of the last hidden states", 1.0, before if after is None else after)]
    size = f"{results['parameters']['after']:,} parameters"
    store_analysis(source, SMALLER, {_title(target, after is not None): {"size": size, "scores": scores}}, merge=True)
    return results


def _title(target: pruning.PruningTarget, recovered: bool) -> str:
    """Returns the name of a pruned model: "pruned (layers=4), recovered"."""
    sizes = [f"{name}={value}" for name, value in dataclasses.asdict(target).items() if value is not None]
    return f"pruned ({', '.join(sizes)}){', recovered' if recovered else ''}"


def _describe(
    model: PretrainedModel,
    result: PretrainedModel,
    pruned: pruning.Pruned,
    before: float,
    after: float | None,
    folder: Path,
) -> Results:
    sizes = {
        name: (getattr(model.config, name), getattr(result.config, name))
        for name in ("num_layers", "num_heads", "intermediate_size", "vocab_size")
    }
    sizes["parameters"] = (_count(model), _count(result))
    values: dict[str, Any] = {name: {"before": one, "after": other} for name, (one, other) in sizes.items()}
    values |= {"layers": list(pruned.layers), "zeros": pruned.zeros, "cosine": before, "cosine_recovered": after}
    lines = [
        f"{name.replace('_', ' '):18} {one:>12,} -> {other:,}" for name, (one, other) in sizes.items() if one != other
    ]
    if len(pruned.layers) < model.config.num_layers:
        lines.append(f"layers that stay   {', '.join(map(str, pruned.layers))}")
    if pruned.zeros:
        lines.append(f"zeros              {pruned.zeros:.1%} of the matrices of the layers")
    recovered = "" if after is None else f", {after:.4f} after the recovery"
    lines.append(f"last hidden states cosine {before:.4f} to those of the model{recovered}")
    return Results(values, [*lines, f"written to {folder}"])


def _count(model: PretrainedModel) -> int:
    return sum(leaf.size for leaf in flatten_tree(model.params).values())
