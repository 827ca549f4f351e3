"""The report as a callback of training, and pages that combine several runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config.model import float32_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.callbacks import Callback, TrainingStart
from bertjax.experiment.load import stored_experiment
from bertjax.experiment.model_card_facts import base_model, data_sources
from bertjax.experiment.workdir import has_checkpoints, read_config, read_settings
from bertjax.inference.pseudo_labels import read_label_summaries
from bertjax.models.model import count_params
from bertjax.report.probes import ModelProbes, Probe, ProbeConfig, probe_memory
from bertjax.report.render import render
from bertjax.report.run_record import ProbeLog, read_run
from bertjax.tasks.evaluate import EvalResult
from bertjax.training.flops import training_flops
from bertjax.training.lr_finder import LrCurve
from bertjax.types import Params

FAILED = "warning: {what} failed ({error}); training continues without it (printed once)"


class ReportCallback:
    """Writes probes and the report after every evaluation. A failure is printed once as a warning."""

    def __init__(
        self,
        workdir: Path,
        step: int,
        facts: Callable[[], Mapping[str, Any]],
        probe: Callable[[int, Params], Iterable[Probe]],
        log: Callable[[str], None] = print,
    ):
        """Opens the probe log and writes the first page.

        Args:
            workdir: Work directory of the run.
            step: Step at which the run starts or resumes.
            facts: Returns the fields of the `run` record (see `probe_log`).
            probe: Returns the probes of the parameters at a step.
            log: Prints a line for the user.
        """
        self.workdir, self.probe, self.log = workdir, probe, log
        self._failed: set[str] = set()
        self._probe_log: ProbeLog | None = None
        self._guard("writing probes.jsonl", lambda: self._begin(step, facts))
        self.render()

    def __call__(self, step: int, params: Params, metrics: Mapping[str, float]) -> None:
        """Probes the model and rewrites the page.

        Args:
            step: Step that was evaluated.
            params: Parameters that were evaluated.
            metrics: Evaluation metrics; metrics.jsonl already holds them.
        """
        if "probing the model" not in self._failed:
            self._guard("probing the model", lambda: self._write(step, params))
        self.render()

    def render(self) -> None:
        """Rewrites the page. Call it at the end as well, for metrics written after the last evaluation."""
        self._guard("writing report.html", lambda: render(self.workdir))

    def _begin(self, step: int, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._probe_log = ProbeLog(self.workdir, step)
        self._probe_log.describe(facts())

    def _write(self, step: int, params: Params) -> None:
        if self._probe_log is None:
            return
        probes = list(self.probe(step, params))
        self._probe_log.forget(step)  # a run that was rolled back reaches this step again
        for kind, fields in probes:
            self._probe_log.write(step, kind, **fields)

    def _guard(self, what: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:  # no error in the report may stop training
            if what not in self._failed:
                self._failed.add(what)
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                self.log(FAILED.format(what=what, error=reason[:300]))


MODEL_PROBES = ("fill_mask", "attention", "neighbors")
BEST_PARAMS = "the weights taken"
_OF_SCORES = ("confusion", "classes", "samples")
SEVERAL_PROCESSES = "The run has several processes; their weights are not gathered for probes."


class ReportWriter(Callback):
    """Writes probes and `report.html` after every evaluation; active on the first process if the config enables it."""

    def __init__(self) -> None:
        self._callback: ReportCallback | None = None
        self._scores: EvalResult | None = None
        self._labels: list[Probe] = []

    def on_train_begin(self, start: TrainingStart) -> None:
        """Writes the first page."""
        exp, run = start.experiment, start.run
        if not exp.cfg.report.enabled or run.processes.index != 0:
            return
        if start.task is not None:
            self._labels = [("pseudo_labels", dict(each)) for each in read_label_summaries(start.task)]
        model_probes = functools.cache(lambda: probes(exp, start.tokenizer, start.token_counts))

        def facts() -> dict[str, Any]:
            sequences = sum(run.batches.sequences_per_epoch.values())
            return run_facts(exp, run.meta["tokens"], sequences, start.mean_batch_size)

        def probe(step: int, params: Params) -> list[Probe]:
            records = [probe_memory(), *self._labels, *self.task_probes()]
            if run.processes.count > 1:
                return [*records, *(("note", {"about": each, "text": SEVERAL_PROCESSES}) for each in MODEL_PROBES)]
            return [*records, *model_probes()(step, build.unpadded_params(params, exp.model))]

        self._callback = ReportCallback(run.workdir, start.step, facts, probe, run.console.print)

    def on_evaluate(self, step: int, params: Params, metrics: Mapping[str, float]) -> None:
        """Probes the model and rewrites the page. Args: as in the base class."""
        if self._callback is not None:
            self._callback(step, params, metrics)

    def on_task_scores(self, scores: EvalResult) -> None:
        """Keeps the scores for the next page."""
        self._scores = scores

    def on_train_end(self) -> None:
        """Rewrites the page with the metrics that came after the last evaluation."""
        if self._callback is not None:
            self._callback.render()

    def on_best_params(self, workdir: Path, step: int, best_step: int) -> None:
        """Writes the scores of the best parameters next to those of the last ones, unless they are there already.

        Args: as in the base class.
        """
        run = read_run(workdir)
        if any(each.get("set") == BEST_PARAMS for kind in _OF_SCORES for each in run.newest(kind)):
            return
        log = ProbeLog(workdir, step)
        for kind, fields in self.task_probes():
            log.write(step, kind, set=BEST_PARAMS, of_step=best_step, **fields)
        render(workdir)

    def on_test_scores(self, workdir: Path) -> None:
        """Writes the report again. Args: as in the base class."""
        render(workdir)

    def task_probes(self) -> list[Probe]:
        """Returns what the last evaluation has: confusion matrix, scores per class, generated texts."""
        scores, records = self._scores, []
        if scores is not None and scores.confusion is not None:
            records.append(("confusion", {"labels": list(scores.labels), "counts": scores.confusion.tolist()}))
        if scores is not None and scores.per_class:
            rows = [{"label": label, **score._asdict()} for label, score in scores.per_class.items()]
            records.append(("classes", {"rows": rows}))
        if scores is not None and scores.reliability:
            records.append(("reliability", {"bins": [list(each) for each in scores.reliability]}))
        if scores is not None and scores.samples:
            records.append(("samples", {"rows": list(scores.samples), "signatures": dict(scores.signatures)}))
        return records


def write_seed_scores(workdirs: Mapping[int, Path], metrics: Mapping[int, Mapping[str, float]]) -> None:
    """Writes the held-out metrics of all seeds of a task into the report of every seed.

    Args:
        workdirs: Work directory by seed.
        metrics: Held-out metrics by seed.
    """
    rows = [
        {"seed": seed, "scores": {name.removeprefix("eval/"): value for name, value in scores.items()}}
        for seed, scores in metrics.items()
    ]
    for workdir in workdirs.values():
        step = read_run(workdir).step
        ProbeLog(workdir, step).write(step, "seeds", rows=rows)
        render(workdir)


def write_lr_curve(workdir: Path, curve: LrCurve) -> Path:
    """Writes the chart of a learning-rate range test; returns the path of the page."""
    finite = np.isfinite(curve.losses)
    rates, losses = curve.learning_rates[finite].tolist(), curve.losses[finite].tolist()
    ProbeLog(workdir, 0).write(0, "lr_finder", rates=rates, losses=losses, suggestion=curve.suggestions.valley)
    return render(workdir)


def probes(exp: build.Experiment, tokenizer: Tokenizer, counts: np.ndarray) -> ModelProbes:
    """Returns the probes that the config enables, for its networks in float32.

    Args:
        exp: the experiment.
        tokenizer: its tokenizer.
        counts: int [V], occurrences of every token in the training text.
    """
    cfg = exp.cfg
    sentences = tuple(cfg.eval.fill_mask)
    shown = cfg.report.sentence if cfg.report.sentence is not None else next(iter(sentences), None)
    probe_config = ProbeConfig(
        sentences=sentences,
        sentence=shown or None,
        tokens=tuple(cfg.report.tokens),
        counts=counts,
        num_steps=cfg.train.num_steps,
        interval=cfg.eval.interval_steps,
        two_streams=exp.objective.two_streams,
    )
    networks = {
        name: (float32_config(each.config), each.heads)
        for name, each in exp.objective.networks.items()
        if each.stands_alone
    }
    return ModelProbes(networks, exp.objective.network_params, tokenizer, probe_config)


def run_facts(
    exp: build.Experiment, tokens: int | None, sequences: int | None, mean_batch_size: float | None = None
) -> dict[str, Any]:
    """Returns the `run` record of `probes.jsonl`; FLOPs are those of a step without padding.

    Args:
        exp: the experiment.
        tokens: training tokens, if known.
        sequences: sequences per epoch, if known.
        mean_batch_size: mean sequences per batch, where it varies.
    """
    kind = exp.mesh.devices.flat[0].device_kind
    phases = []
    for program in exp.programs:
        length = program.phase.cfg.data.seq_len
        slots = (mean_batch_size or program.phase.cfg.train.batch_size) * length
        phases.append(
            {"start": program.phase.start, "slots": slots, "flops": training_flops(program.objective, length) * slots}
        )
    model = exp.model
    facts = {
        "parameters": {name: count_params(config, heads) for name, (config, heads) in exp.objective.networks.items()},
        "sizes": {"num_layers": model.num_layers, "hidden_size": model.hidden_size, "num_heads": model.num_heads},
        "devices": f"{exp.mesh.size} x {kind}",
        "objective": exp.objective.summary,
        "base_model": base_model(exp.cfg),
        "sources": data_sources(exp.cfg),
        "jax": jax.__version__,
        "tokens": tokens,
        "rows": sequences,
        "phases": phases,
    }
    return {name: value for name, value in facts.items() if value is not None}


def verify(workdir: Path) -> None:
    """Raises `UserError` if config or tokenizer are not those that the run was trained with."""
    try:
        read_config(workdir)
    except UserError:
        return  # not a run, as `read_run` reports, or one of another version, whose metrics can still be drawn
    if has_checkpoints(workdir):
        read_settings(workdir)


def stored_facts(workdir: Path) -> dict[str, Any] | None:
    """Returns parameters and FLOPs of a run without a record of them; None if its work directory is incomplete."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        facts = run_facts(stored_experiment(workdir)[0], None, None)
    except UserError as error:
        print(f"{workdir}: the cost of a step is unknown ({error})")
        return None
    return {name: value for name, value in facts.items() if name not in ("devices", "jax")}
