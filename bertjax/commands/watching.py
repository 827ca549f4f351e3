"""Who looks on while a run trains, and what it is told of the run: what `report/` cannot know by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bertjax import build
from bertjax.data.tokenizer import Tokenizer
from bertjax.distributed.processes import Alone, Processes
from bertjax.models.model import count_params
from bertjax.report.probes import Finding, Probes, Wanted, memory
from bertjax.report.watch import Watcher
from bertjax.training.accounting import training_flops
from bertjax.training.run import Run
from bertjax.types import Params


def watcher(
    exp: build.Experiment,
    tokenizer: Tokenizer,
    counts: np.ndarray,
    run: Run,
    step: int,
    processes: Alone | Processes,
) -> Watcher | None:
    """Sets `run.watch` to the one that writes the report from update `step` on, and returns it.

    None on other processes than the first, and where the config wants no report.
    """
    if not exp.cfg.report.enabled or processes.index != 0:
        return None
    facts = run_facts(exp, run.meta["tokens"], sum(run.batches.rows_per_epoch.values()))
    onlooker = Watcher(run.workdir, step, facts, _look(exp, tokenizer, counts, processes.count), run.console.print)
    run.watch = onlooker
    return onlooker


def _look(
    exp: build.Experiment, tokenizer: Tokenizer, counts: np.ndarray, processes: int
) -> Callable[[int, Params], list[Finding]]:
    """What is seen at an evaluation. Weights that lie on several hosts stay there: all would have to hand them over."""
    look = probes(exp, tokenizer, counts)
    note = "The run has several processes: their weights are not gathered for a look."

    def seen(step: int, params: Params) -> list[Finding]:
        if processes > 1:
            about = ("fill_mask", "attention", "neighbours")
            return [memory(), *(("note", {"about": each, "text": note}) for each in about)]
        return [memory(), *look(step, build.true_size_params(params, exp.model))]

    return seen


def probes(exp: build.Experiment, tokenizer: Tokenizer, counts: np.ndarray) -> Probes:
    """What the config wants to see of its networks, in float32."""
    cfg = exp.cfg
    sentences = tuple(cfg.eval.fill_mask)
    # A model that reads a hidden word off the token before it (objective.predict_next) would fill in the next one.
    filled = () if cfg.objective.predict_next else sentences
    shown = cfg.report.sentence if cfg.report.sentence is not None else next(iter(sentences), None)
    wanted = Wanted(
        sentences=filled,
        sentence=shown or None,
        pieces=tuple(cfg.report.pieces),
        counts=counts,
        num_steps=cfg.train.num_steps,
        interval=cfg.eval.interval_steps,
        two_streams=cfg.objective.name == "plm",
    )
    networks = {name: (build.float32_config(own), heads) for name, (own, heads) in exp.objective.networks.items()}
    return Probes(networks, exp.objective.network_params, tokenizer, wanted)


def run_facts(exp: build.Experiment, tokens: int | None, rows: int | None) -> dict[str, Any]:
    """The `run` line of `probes.jsonl`; FLOPs are those of a step whose rows are full."""
    kind = exp.mesh.devices.flat[0].device_kind
    stages = []
    for part in exp.parts:
        slots, length = part.cfg.train.batch_size * part.cfg.data.seq_len, part.cfg.data.seq_len
        stages.append({"start": part.start, "slots": slots, "flops": training_flops(part.objective, length) * slots})
    model = exp.model
    facts = {
        "parameters": {name: count_params(own, heads) for name, (own, heads) in exp.objective.networks.items()},
        "sizes": {"num_layers": model.num_layers, "hidden_size": model.hidden_size, "num_heads": model.num_heads},
        "devices": f"{exp.mesh.size} x {kind}",
        "jax": jax.__version__,
        "tokens": tokens,
        "rows": rows,
        "stages": stages,
    }
    return {name: value for name, value in facts.items() if value is not None}
