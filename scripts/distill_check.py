"""Compares a student trained with a teacher to the same student without: same layers, text, masks and steps.

    bertjax pretrain --config quickstart --workdir runs/teacher --config.model.num_layers=4 \\
        --config.data.sources=text:corpus.txt --config.data.seq_len=64 --config.train.num_steps=1500 \\
        --config.data.example_format=block
    python scripts/distill_check.py --teacher runs/teacher --out runs/distilled --layers 2

The students have the teacher's config except for their depth. Prints the held-out masked-LM loss (lower is better) of
the teacher and of a student `alone`, `taught` (DistilBERT's losses) and `taught, started` from some of the teacher's
layers; exits with 1 if distillation does not help. The same command resumes unfinished runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ml_collections import ConfigDict

from bertjax.experiment.config import parse as check
from bertjax.experiment.pretrain import pretrain
from bertjax.experiment.workdir import read_config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, required=True, help="work directory of the teacher")
    parser.add_argument("--out", type=Path, required=True, help="directory for the students' work directories")
    parser.add_argument("--layers", type=int, default=2, help="of the students")
    parser.add_argument("--steps", type=int, help="steps of every student (default: the teacher's)")
    options = parser.parse_args()
    losses = {"teacher": masked_word_loss(options.teacher)}
    for name, taught, started in (
        ("alone", False, False),
        ("taught", True, False),
        ("taught, started", True, True),
    ):
        cfg = student(options.teacher, options.layers, options.steps, taught, started)
        check(cfg)
        workdir = options.out / name.replace(", ", "-")
        pretrain(cfg, workdir)
        losses[name] = masked_word_loss(workdir)
    for name, loss in losses.items():
        print(f"{name:<16} {loss:.4f}")
    return 0 if max(losses["taught"], losses["taught, started"]) < losses["alone"] else 1


def student(teacher: Path, layers: int, steps: int | None, taught: bool, started: bool) -> ConfigDict:
    """Trains with the teacher's config and fewer layers, optionally with a teacher and initialized from its layers."""
    cfg = read_config(teacher)
    depth = cfg.model.num_layers
    cfg.model.num_layers = layers
    cfg.data.tokenizer = str(teacher / "tokenizer")
    cfg.export.at_end = False
    if steps is not None:
        cfg.schedule.warmup_steps = cfg.schedule.warmup_steps * steps // cfg.train.num_steps
        cfg.train.num_steps = steps
    if taught:
        cfg.objective.name = "distillation"
        cfg.objective.distillation.teacher = str(teacher)
        cfg.objective.distillation.mlm_weight = 2.0
    if started:
        if depth is None:
            raise SystemExit("give the teacher model.num_layers, to say which of its layers the student starts as")
        cfg.objective.distillation.teacher_layers = tuple(layer * depth // layers for layer in range(layers))
    return cfg


def masked_word_loss(workdir: Path) -> float:
    """Returns the last held-out masked-LM loss."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record["eval/mlm_loss"] for line in lines if "eval/mlm_loss" in (record := json.loads(line))][-1]


if __name__ == "__main__":
    sys.exit(main())
