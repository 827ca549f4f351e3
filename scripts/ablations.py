"""Changes the recipe `bertjax` one setting at a time, and measures what each is worth.

    python scripts/ablations.py --out runs/ablations --train text:train.txt.gz --eval text:valid.txt.gz
        --tags eng.train eng.testa --pairs 'blimp/*.jsonl' [--arms baseline rate-4e-3 ...] [--steps 1600]

Every arm is a run of bertjax:nano (`--size`) on the same text as `baseline`, which has three seeds; the others
have one. The same command goes on where it stopped. Writes `table.md` into `--out` after every arm: held-out loss (of
the same masked tokens, but for mixtures and other mask rates), the first evaluation 1.5 nats below the unigram loss, F1
of a linear probe for tags (`bertjax probe`, its best layer), and minimal pairs preferred.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

ROOT = Path(__file__).parents[1]
SEEDS = {"baseline": (0, 1, 2)}
STEPS, BATCH = 1600, 32
EXIT = 1.5
"""Nats below the unigram loss at which a model has left the plateau on which it knows frequencies alone."""


def _adamw(rate: float = 2.8e-3) -> dict[str, Any]:
    return {"optimizer.name": "adamw", "optimizer.learning_rate": rate}


_BERT = {  # BERT-nano as published: the same layers and widths, with as many parameters in the feed-forward block
    "model.preset": "bert-base",
    "model.position_embedding": "learned",
    "model.intermediate_size": 384,
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.global_rope_theta": "preset",
    "optimizer.weight_decay": 0.01,
}
_MIXTURE = {"objective.name": "mixture", "objective.mlm.masked_next_token": True}


def _causal_first(share: str = "40%") -> dict[str, Any]:
    """Returns a start in which half of the sequences are causal and all tokens predicted from the one before."""
    return {
        "objective.name": "mixture",
        "objective.mixture.members": "mlm@63,clm@1",
        "train.phases": f"{share}:objective.mlm.masked_next_token=true,objective.mixture.members=mlm@1,clm@1",
    }


def _batch(size: int, rate: float) -> dict[str, Any]:
    """Returns an arm that reads the tokens of the default number of steps in batches of another size."""
    steps = STEPS * BATCH // size
    return {
        "train.batch_size": size,
        "train.num_steps": steps,
        "optimizer.learning_rate": rate,
        "schedule.warmup_steps": steps // 20,
        "eval.interval_steps": steps // 10,
    }


ARMS: Mapping[str, Mapping[str, Any]] = {
    "baseline": {},
    "rate-2.8e-3": {"optimizer.learning_rate": 2.8e-3},
    "rate-4e-3": {"optimizer.learning_rate": 4e-3},
    "rate-1.6e-2": {"optimizer.learning_rate": 1.6e-2},
    "adamw": _adamw(),
    "adamw-rate-1e-3": _adamw(1e-3),
    "adamw-rate-2e-3": _adamw(2e-3),
    "adamw-rate-4e-3": _adamw(4e-3),
    "adamw-rate-8e-3": _adamw(8e-3),
    "adamw-batch-16": _adamw() | _batch(16, 2e-3),
    "adamw-batch-64": _adamw() | _batch(64, 4e-3),
    "adamw-causal-first": _adamw() | _causal_first(),
    "adamw-causal-first-batch-64": _adamw() | _causal_first() | _batch(64, 4e-3),
    "learned-post-rate-1e-3": _BERT | _adamw(1e-3),
    "learned-post-rate-2e-3": _BERT | _adamw(2e-3),
    "causal-first": _causal_first(),
    "causal-first-20": _causal_first("20%"),
    "causal-first-80": _causal_first("80%"),
    "batch-16": _batch(16, 5.7e-3),
    "batch-64": _batch(64, 1.13e-2),
    "qk-norm": {"model.qk_norm": True},
    "disentangled": {
        "model.attention_position": "disentangled",
        "model.pos_att_type": "c2p,p2c",
        "model.share_att_key": True,
        "model.position_buckets": 32,
        "model.max_relative_positions": 128,
    },
    "length-64": {"data.seq_len": 64, "train.batch_size": 64},
    "mixture-1-1": _MIXTURE | {"objective.mixture.members": "mlm@1,clm@1"},
    "mixture-1-1-in-place": {"objective.name": "mixture", "objective.mixture.members": "mlm@1,clm@1"},
    "mixture-15-1": _MIXTURE | {"objective.mixture.members": "mlm@15,clm@1"},
    "mask-rate-15": {"objective.masking.mask_rate": 0.15},
    "mask-rate-20": {"objective.masking.mask_rate": 0.2},
    "mask-rate-40": {"objective.masking.mask_rate": 0.4},
    "whole-word": {"objective.masking.mask_unit": "whole_word"},
    "decay-0.01": {"optimizer.weight_decay": 0.01},
}


def run(arm: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Trains, or resumes, or reads the finished run of an arm, and measures its export."""
    workdir = options.out / f"{arm}-seed-{seed}"
    if not (workdir / "outcome.json").exists():
        settings = {
            "data.sources": options.train,
            "data.eval_sources": options.eval,
            "seed": seed,
            "train.num_steps": options.steps,
            "schedule.warmup_steps": options.steps // 20,
            "eval.interval_steps": options.steps // 10,
            "eval.num_batches": 16,
            "checkpoint.interval_steps": options.steps // 4,
            "checkpoint.keep": 1,
            "logging.tensorboard": "false",
            "report.enabled": "false",
        } | dict(ARMS[arm])
        flags = [f"--config.{key}={value}" for key, value in settings.items()]
        call("pretrain", "--config", f"bertjax:{options.size}", "--workdir", str(workdir), *flags)
        outcome = measure(workdir, options)
        (workdir / "outcome.json").write_text(json.dumps(outcome))
    outcome = json.loads((workdir / "outcome.json").read_text())
    print(arm, seed, json.dumps(outcome), flush=True)
    return outcome


def measure(workdir: Path, options: argparse.Namespace) -> dict[str, float]:
    """Returns the loss, the step of `EXIT`, and the scores of the export."""
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [each for each in records if "eval/mlm_loss" in each]
    gains = {each["step"]: each["eval/mlm_unigram_loss"] - each["eval/mlm_loss"] for each in losses}
    outcome = {"loss": losses[-1]["eval/mlm_loss"], "below_unigram": gains[losses[-1]["step"]]}
    outcome["exit_step"] = next((step for step, gain in gains.items() if gain > EXIT), math.nan)
    speeds = [each["train/tokens_per_second"] for each in records if "train/tokens_per_second" in each]
    outcome["tokens_per_second"] = median(speeds)
    model = str(workdir / "export")
    if options.tags:
        train, held_out = (f"conll:{path}" for path in options.tags)
        out = workdir / "tags.json"
        call("probe", "--model", model, "--train", train, "--eval", held_out, "--seeds", "0", "--out", str(out))
        (layers,) = json.loads(out.read_text()).values()
        outcome["tags"] = max(each["f1"][0] for each in layers)
    if options.pairs:
        call("eval-minimal-pairs", "--model", model, "--pairs", *options.pairs, "--out", str(workdir / "pairs.jsonl"))
        pairs = [json.loads(line) for line in (workdir / "pairs.jsonl").read_text().splitlines()]
        outcome["pairs"] = fmean(each["score_good"] > each["score_bad"] for each in pairs)
    return outcome


def write_table(out: Path) -> None:
    """Writes the mean of every arm that has an outcome, with the standard deviation over seeds where it has several."""
    outcomes: dict[str, list[dict[str, float]]] = {}
    for path in sorted(out.glob("*-seed-*/outcome.json")):
        outcomes.setdefault(path.parent.name.partition("-seed-")[0], []).append(json.loads(path.read_text()))
    names = ("loss", "below_unigram", "exit_step", "tags", "pairs", "tokens_per_second")
    lines = ["| arm | seeds | " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) + 1)]
    for arm in sorted(outcomes, key=lambda arm: fmean(each["loss"] for each in outcomes[arm])):
        runs = outcomes[arm]
        cells = [_cell([each[name] for each in runs if name in each], name) for name in names]
        lines.append(f"| {arm} | {len(runs)} | " + " | ".join(cells) + " |")
    (out / "table.md").write_text("\n".join(lines) + "\n")


def _cell(values: list[float], name: str) -> str:
    if not values or math.isnan(sum(values)):
        return "-"
    digits = 0 if name in ("exit_step", "tokens_per_second") else 3
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):,.{digits}f}{spread}"


def call(*arguments: str) -> str:
    command = [sys.executable, "-m", "bertjax", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", required=True, help="as data.sources")
    parser.add_argument("--eval", required=True, help="as data.eval_sources")
    parser.add_argument("--tags", type=Path, nargs=2, metavar=("TRAIN", "DEV"))
    parser.add_argument("--pairs", nargs="+", metavar="FILE")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--size", default="nano")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, nargs="+", help="default: three of the baseline, one of the others")
    options = parser.parse_args()
    for arm in options.arms:
        for seed in options.seeds or SEEDS.get(arm, (0,)):
            run(arm, seed, options)
            write_table(options.out)


if __name__ == "__main__":
    main()
