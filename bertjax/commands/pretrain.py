"""`bertjax pretrain`: check, prepare, resume or begin, train, export."""

from __future__ import annotations

from pathlib import Path

import jax
from ml_collections import ConfigDict

from bertjax import build, check, corpora
from bertjax.checkpoint.manager import Checkpoints
from bertjax.checkpoint.surgery import merge_params
from bertjax.commands.export import export_params
from bertjax.commands.runs import load_run
from bertjax.commands.workdir import Change, changed_keys, claim, has_checkpoints
from bertjax.corpora import Prepared
from bertjax.data.tokenizer import load_tokenizer
from bertjax.hub.fill_mask import fill_mask, masked_rows
from bertjax.hub.load import PretrainedModel, load_pretrained
from bertjax.models.config import EncoderConfig, differences
from bertjax.models.model import count_params
from bertjax.training.averages import restart_average
from bertjax.training.loop import train
from bertjax.training.schedules import make_schedule
from bertjax.training.state import TrainState
from bertjax.types import Params, UserError


def pretrain(cfg: ConfigDict, workdir: Path) -> None:
    """Trains what is left of the run in `workdir`; the same command again resumes it."""
    build.check_devices(cfg)  # before the corpus is tokenised, which may take hours
    changes = changed_keys(workdir, cfg)
    prepared = corpora.prepare(cfg)
    exp = build.experiment(cfg, prepared.vocabulary)
    masked_rows(prepared.tokenizer, cfg.eval.fill_mask, exp.model.max_position_embeddings)
    if not has_checkpoints(workdir):
        claim(workdir, cfg)
    checkpoints = build.open_checkpoints(cfg, workdir)
    try:
        state = _resume_or_begin(exp, prepared, checkpoints, changes)
        claim(workdir, cfg)  # a resumed run keeps its old config.json until it is known that it can go on
        prepared.tokenizer.save(workdir / "tokenizer")
        step = int(state.step)
        if step >= cfg.train.num_steps:
            print(f"step {step} of {cfg.train.num_steps} is reached: nothing is left to train")
        else:
            state = _train(exp, prepared, workdir, checkpoints, state)
    finally:
        checkpoints.close()
    if jax.process_index() == 0:
        _finish(exp, prepared, workdir, state)


def _train(
    exp: build.Experiment, prepared: Prepared, workdir: Path, checkpoints: Checkpoints, state: TrainState
) -> TrainState:
    run = build.run(exp, prepared, workdir, checkpoints, int(state.step))
    for line in summary(exp, prepared, sum(run.batches.rows_per_epoch.values())):
        run.console.print(line)
    try:
        state, _ = train(run, state)
    finally:
        run.console.close()
        for writer in run.writers:
            writer.close()
    return state


def summary(exp: build.Experiment, prepared: Prepared, rows: int) -> list[str]:
    """What is about to run, in three lines; `rows` are those of an epoch."""
    cfg, model = exp.cfg, exp.model
    mesh = ", ".join(f"{axis}={size}" for axis, size in exp.mesh.shape.items())
    kind = exp.mesh.devices.flat[0].device_kind
    slots = cfg.train.num_steps * cfg.train.batch_size
    lines = [
        f"model: {model.num_layers} layers of {model.hidden_size}, {model.num_heads} heads, "
        f"{model.vocab_size:,} pieces, {count_params(model, exp.objective.heads):,} parameters, "
        f"products in {model.compute_dtype}",
        f"devices: {exp.mesh.size} x {kind} ({mesh}), jax {jax.__version__}",
        f"data: {corpora.total_tokens(prepared):,} tokens, {rows:,} rows an epoch; "
        f"{cfg.train.num_steps:,} steps of {cfg.train.batch_size} rows are {slots / rows:.1f} epochs",
    ]
    return lines + corpora.few_rows_warning(cfg, prepared, rows)


def _resume_or_begin(
    exp: build.Experiment, prepared: Prepared, checkpoints: Checkpoints, changes: list[Change]
) -> TrainState:
    """The newest checkpoint, else weights from `init_from`, else fresh ones."""
    restored = checkpoints.restore(exp.abstract_state())
    if restored is None:
        state = exp.init_state()
        return state if exp.cfg.init_from is None else _init_from(exp, prepared, state)
    _require_same_data(restored.meta["data"], prepared.digests)
    print(f"resuming at step {restored.step}")
    for key, before, now in changes:
        print(f"  {key}: {before} -> {now}")
    if any(key == "train.num_steps" or key.startswith("schedule.") for key, *_ in changes):
        print(_schedule_change(exp, restored.step, changes))
    return restored.state


def _schedule_change(exp: build.Experiment, step: int, changes: list[Change]) -> str:
    """What a change of length or schedule does to the learning rate."""
    old = exp.cfg.copy_and_resolve_references()
    for key, before, _ in changes:
        if key == "train.num_steps" or key.startswith("schedule."):
            group, leaf = key.split(".")
            old[group][leaf] = before
    was = make_schedule(check.schedule_config(old))
    last = exp.cfg.train.num_steps - 1
    return (
        f"  learning rate of the next step: {float(was(step)):.3e} before, {float(exp.schedule(step)):.3e} now; "
        f"of the last one ({last}): {float(exp.schedule(last)):.3e}"
    )


def _require_same_data(saved: dict[str, str], now: dict[str, str]) -> None:
    changed = sorted(name for name in {*saved, *now} if saved.get(name) != now.get(name))
    if changed:
        raise UserError(
            f"the data of this run changed since its checkpoint ({', '.join(changed)}); bring back the text it was "
            "trained on, or give another --workdir and take the weights alone with --config.init_from"
        )


def _init_from(exp: build.Experiment, prepared: Prepared, state: TrainState) -> TrainState:
    """The fresh state with the weights of a Hugging Face folder or of another work folder."""
    folder = Path(exp.cfg.init_from).expanduser()
    if (folder / "checkpoints").is_dir():
        stored = load_run(folder)
        given, config, pieces = stored.params, stored.experiment.model, stored.tokenizer.pieces
    else:
        model = load_pretrained(folder)
        given, config, pieces = model.params, model.config, load_tokenizer(folder).pieces
    _require_same_model(folder, config, exp.model)
    if pieces != prepared.tokenizer.pieces:
        raise UserError(
            f"init_from={folder} was trained with other pieces than data.tokenizer has: its embeddings would stand for "
            f"other words; set --config.data.tokenizer={folder}"
        )
    params, kept = merge_params(jax.device_get(state.params), given)
    print(f"weights from {folder}" + (f"; fresh: {', '.join(kept)}" if kept else ""))
    laid = jax.tree.map(lambda leaf: leaf.sharding, state.params)
    return state._replace(params=jax.device_put(params, laid), opt_state=restart_average(state.opt_state, params))


def _require_same_model(folder: Path, given: EncoderConfig, wanted: EncoderConfig) -> None:
    """Raises `UserError` when the encoders differ in more than how far, and over which wave lengths, they reach.

    Rotary and relative positions have no table: a model may go on with longer rows and another base, as ModernBERT did.
    """
    free = {"pad_token_id"}
    if wanted.position_embedding != "learned":
        free |= {"max_position_embeddings", "rotary_base", "rotary_local_base"}
    different = [
        f"{name} {getattr(given, name)} there, {getattr(wanted, name)} here"
        for name in differences(given, wanted, heads=False)
        if name not in free
    ]
    if different:
        raise UserError(
            f"init_from={folder} is another model: {'; '.join(different)}. Set model.* to its sizes and "
            f"data.tokenizer (with data.vocab_size) to its tokenizer"
        )


def _finish(exp: build.Experiment, prepared: Prepared, workdir: Path, state: TrainState) -> None:
    """Fill-in examples, and the export if the config asks for one."""
    params = build.true_size_params(exp.chosen_params(state), exp.model)
    show_fillings(exp, prepared, params)
    if exp.cfg.export.at_end:
        tokens = corpora.total_tokens(prepared)
        export_params(exp, prepared.tokenizer, params, int(state.step), tokens, workdir, workdir / "export")


def show_fillings(exp: build.Experiment, prepared: Prepared, params: Params) -> None:
    """Prints what the model puts behind the masks of `eval.fill_mask`."""
    sentences = list(exp.cfg.eval.fill_mask)
    if not sentences:
        return
    model = PretrainedModel(build.float32_config(exp.model), params, exp.objective.heads)
    for sentence, fillings in zip(sentences, fill_mask(model, prepared.tokenizer, sentences), strict=True):
        print(sentence)
        print("    " + "  ".join(f"{filling.piece} {filling.probability:.2f}" for filling in fillings))
