"""`bertjax benchmark`: how fast a config's step is on this machine, where its time goes, and what the peer needs."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bertjax.benchmark.bertjax_runner import BertjaxRunner
from bertjax.benchmark.interleaved_timing import TimedRun, interleave
from bertjax.benchmark.report import bertjax_metrics, format_bertjax, format_scopes, format_torch, torch_metrics
from bertjax.benchmark.torch_baseline import BaselineConfig
from bertjax.benchmark.torch_subprocess import TorchProcess
from bertjax.config import parse_objective
from bertjax.config.objectives.clm import ClmConfig
from bertjax.config.objectives.mlm import MlmConfig
from bertjax.data import corpora
from bertjax.data.corpora import Prepared
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.teacher import attach_teacher, read_teacher
from bertjax.hf.export_plan import plan_export
from bertjax.hf.safe_files import auto_class
from bertjax.hf.save import save_pretrained

TRACED_STEPS = 3


class BenchmarkCounts(NamedTuple):
    """How much is measured."""

    turns: int
    steps: int
    warmup: int


def benchmark(
    cfg: ConfigDict, amounts: BenchmarkCounts, against: str | None, with_compile: bool, out: Path | None
) -> None:
    """Measures, prints, and writes all figures to `out` as JSON; trains nothing that is kept."""
    for name, amount in amounts._asdict().items():
        if amount < 1:
            raise UserError(f"--{name} must be at least 1, not {amount}")
    if out is not None and not out.resolve().parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.resolve().parent}")
    build.check_devices(cfg)
    peer_class = None if against is None else _peer_class(cfg)
    prepared = corpora.prepare(cfg)
    teacher = read_teacher(cfg, prepared.tokenizer)
    exp = build.make_experiment(cfg, prepared.vocabulary, None if teacher is None else teacher.network)
    attach_teacher(exp, teacher)
    with contextlib.closing(BertjaxRunner(exp, prepared)) as ours:
        ours.run(amounts.warmup)
        if peer_class is None:
            figures = _own(ours, interleave([ours], amounts.turns, amounts.steps)[0])
        else:
            with (
                tempfile.TemporaryDirectory(prefix="bertjax-peer-") as folder,
                contextlib.closing(_peer(exp, prepared, ours, Path(folder), peer_class)) as peer,
            ):
                trials = peer.choose_mode(with_compile)
                turns, theirs = interleave([ours, peer], amounts.turns, amounts.steps)
            figures = _own(ours, turns)
            figures["baseline"] = torch_metrics(peer, trials, turns, theirs)
            print("\n".join(format_torch(figures["baseline"])))
    if out is not None:
        out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        print(f"all figures: {out}")


def _own(ours: BertjaxRunner, turns: Sequence[TimedRun]) -> dict[str, Any]:
    """Prints our side; returns its figures."""
    figures = bertjax_metrics(ours, turns)
    print("\n".join(format_bertjax(figures)))
    parts = ours.trace(TRACED_STEPS)
    print("\n".join(format_scopes(parts)))
    found: dict[str, dict[str, float]] = {}
    for part, seconds in parts.items():
        found.setdefault(part.title, {})[part.direction] = seconds
    return figures | {"work_seconds": found}


def _peer_class(cfg: ConfigDict) -> str:
    """The class of `transformers` that trains the same; raises `UserError` where there is none."""
    objective, model = parse_objective.objective_config(cfg), parse_objective.encoder_config(cfg)
    if isinstance(objective, MlmConfig):
        if objective.pair not in ("none", "nsp") or objective.span_boundary or objective.predict_next:
            raise UserError(
                "--baseline hf: transformers has no training with this second objective; set "
                "--config.objective.pair=none and --config.objective.span_boundary=0"
            )
        heads: tuple[str, ...] = ("mlm",) if objective.pair == "none" else ("pooler", "mlm", "pair")
    elif isinstance(objective, ClmConfig):
        heads = ("mlm",)
    else:
        raise UserError(
            f"--baseline hf: transformers has no training for objective.name={cfg.objective.name}; mlm and clm can be "
            "compared"
        )
    found = plan_export(model, heads)
    if found.family is None:
        raise UserError(f"--baseline hf: no class of transformers holds this model ({', '.join(found.unsupported)})")
    return auto_class(found.architecture)


def _peer(
    exp: build.Experiment, prepared: Prepared, ours: BertjaxRunner, folder: Path, peer_class: str
) -> TorchProcess:
    """The same network from the same first weights."""
    cfg, objective = exp.programs[-1].phase.cfg, parse_objective.objective_config(exp.programs[-1].phase.cfg)
    network = exp.network
    params = build.unpadded_params(exp.init_state().params, network.config)
    save_pretrained(
        folder / "model",
        params,
        build.float32_config(network.config),
        heads=network.heads,
        tokenizer=prepared.tokenizer,
    )
    recipe = BaselineConfig(
        batch_size=cfg.train.batch_size,
        masked=isinstance(objective, MlmConfig),
        mask_rate=objective.masking.mask_rate if isinstance(objective, MlmConfig) else 0.0,
        learning_rate=cfg.optimizer.learning_rate,
        weight_decay=cfg.optimizer.weight_decay,
        clip_norm=cfg.optimizer.clip_norm,
        seed=cfg.seed,
    )
    return TorchProcess(folder / "model", peer_class, ours.examples(), recipe)
