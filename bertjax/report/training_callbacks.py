"""Who looks on while a run trains, and what it is told of the run: what `report/` cannot know by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.experiment import build
from bertjax.models.model import count_params
from bertjax.report.callback import ReportCallback
from bertjax.report.probe_log import ProbeLog
from bertjax.report.probes import ModelProbes, Probe, ProbeConfig, probe_memory
from bertjax.report.render import render
from bertjax.report.run_record import read_run
from bertjax.runtime.process_group import ProcessGroup
from bertjax.training.flops import training_flops
from bertjax.training.loop import train
from bertjax.training.run_context import RunContext
from bertjax.training.state import TrainState
from bertjax.types import Params

if TYPE_CHECKING:
    from bertjax.finetuning.evaluate import EvalResult

LOOKED_AT = ("fill_mask", "attention", "neighbors")
TAKEN = "the weights taken"
SEVERAL = "The run has several processes, whose weights are not gathered for a look."


def report_callback(
    exp: build.Experiment,
    tokenizer: Tokenizer,
    counts: np.ndarray,
    run: RunContext,
    step: int,
    processes: ProcessGroup,
    told: Callable[[], list[Probe]] = list,
    mean_rows: float | None = None,
) -> ReportCallback | None:
    """Sets `run.on_evaluate` to the one that writes the report from update `step` on, and returns it.

    None on other processes than the first, and where the config wants no report. `told` gives what else there is to
    see of the evaluation that was just made; `mean_rows` is for `run_facts`.
    """
    if not exp.cfg.report.enabled or processes.index != 0:
        return None
    look = functools.cache(lambda: probes(exp, tokenizer, counts))

    def facts() -> dict[str, Any]:
        return run_facts(exp, run.meta["tokens"], sum(run.batches.rows_per_epoch.values()), mean_rows)

    def seen(step: int, params: Params) -> list[Probe]:
        if processes.count > 1:
            return [probe_memory(), *told(), *(("note", {"about": each, "text": SEVERAL}) for each in LOOKED_AT)]
        return [probe_memory(), *told(), *look()(step, build.unpadded_params(params, exp.model))]

    run.on_evaluate = onlooker = ReportCallback(run.workdir, step, facts, seen, run.console.print)
    return onlooker


def train_with_callback(
    run: RunContext, state: TrainState, onlooker: ReportCallback | None
) -> tuple[TrainState, dict[str, float]]:
    """`training.loop.train`; console and writers are closed behind it, and the page has its last figures."""
    try:
        return train(run, state)
    finally:
        run.console.close()
        for writer in run.writers:
            writer.close()
        if onlooker is not None:
            onlooker.render()  # with the figures that came after the last evaluation


class TaskScoreRecorder:
    """What the last evaluation of a task told, for the report: `tell` of `finetune.measure` calls it.

    `labels_kept` tells of training labels that came from a larger model (`finetune.silver_labels.kept_labels`).
    """

    def __init__(self, labels_kept: Sequence[Mapping[str, Any]] = ()) -> None:
        self._scored: EvalResult | None = None
        self._kept: list[Probe] = [("pseudo_labels", dict(each)) for each in labels_kept]

    def __call__(self, scored: EvalResult) -> None:
        self._scored = scored

    def findings(self) -> list[Probe]:
        """The confusion matrix and the scores of the classes, where there are any, and labels of a larger model."""
        scored, found = self._scored, list(self._kept)
        if scored is not None and scored.confusion is not None:
            found.append(("confusion", {"labels": list(scored.labels), "counts": scored.confusion.tolist()}))
        if scored is not None and scored.per_class:
            rows = [{"label": label, **score._asdict()} for label, score in scored.per_class.items()]
            found.append(("classes", {"rows": rows}))
        return found


def write_best_scores(workdir: Path, step: int, taken: int, scores: TaskScoreRecorder) -> None:
    """Writes what the chosen weights, those of update `taken`, got right into the report, beside the last ones'.

    `scores` have just been told of them. Said at every start that finds a finished run: never twice in the file.
    """
    journal = ProbeLog(workdir, step)
    if any(record.get("set") == TAKEN for record in read_run(workdir).newest("confusion")):
        return
    for kind, fields in scores.findings():
        if kind in ("confusion", "classes"):
            journal.write(step, kind, set=TAKEN, of_step=taken, **fields)
    render(workdir)


def write_seed_scores(folders: Mapping[int, Path], figures: Mapping[int, Mapping[str, float]]) -> None:
    """Writes the held-out figures of all seeds of a task into the report of each, which is drawn anew."""
    rows = [
        {"seed": seed, "scores": {name.removeprefix("eval/"): value for name, value in found.items()}}
        for seed, found in figures.items()
    ]
    for folder in folders.values():
        step = read_run(folder).step
        ProbeLog(folder, step).write(step, "seeds", rows=rows)
        render(folder)


def probes(exp: build.Experiment, tokenizer: Tokenizer, counts: np.ndarray) -> ModelProbes:
    """What the config wants to see of its networks, in float32."""
    cfg = exp.cfg
    sentences = tuple(cfg.eval.fill_mask)
    # A model that reads a hidden word off the token before it (objective.predict_next) would fill in the next one.
    filled = () if cfg.objective.predict_next else sentences
    shown = cfg.report.sentence if cfg.report.sentence is not None else next(iter(sentences), None)
    wanted = ProbeConfig(
        sentences=filled,
        sentence=shown or None,
        tokens=tuple(cfg.report.tokens),
        counts=counts,
        num_steps=cfg.train.num_steps,
        interval=cfg.eval.interval_steps,
        two_streams=cfg.objective.name == "plm",
    )
    networks = {name: (build.float32_config(own), heads) for name, (own, heads) in exp.objective.networks.items()}
    return ModelProbes(networks, exp.objective.network_params, tokenizer, wanted)


def run_facts(
    exp: build.Experiment, tokens: int | None, rows: int | None, mean_rows: float | None = None
) -> dict[str, Any]:
    """The `run` line of `probes.jsonl`; FLOPs are those of a step whose rows are full.

    `mean_rows` of a batch, where not all have as many as the config says.
    """
    kind = exp.mesh.devices.flat[0].device_kind
    stages = []
    for program in exp.programs:
        length = program.phase.cfg.data.seq_len
        slots = (mean_rows or program.phase.cfg.train.batch_size) * length
        stages.append(
            {"start": program.phase.start, "slots": slots, "flops": training_flops(program.objective, length) * slots}
        )
    model = exp.model
    facts = {
        "parameters": {name: count_params(own, heads) for name, (own, heads) in exp.objective.networks.items()},
        "sizes": {"num_layers": model.num_layers, "hidden_size": model.hidden_size, "num_heads": model.num_heads},
        "devices": f"{exp.mesh.size} x {kind}",
        "jax": jax.__version__,
        "tokens": tokens,
        "rows": rows,
        "phases": stages,
    }
    return {name: value for name, value in facts.items() if value is not None}
