"""Compares a masked language model as an encoder of sentences with itself after TSDAE and RetroMAE.

    python scripts/measure_sentence_encoders.py --encoder runs/mlm --out runs/sentences --steps 2000 \\
        --sources lines:sentences.txt --pairs mrpc/dev.tsv --labeled sst-2/train.tsv sst-2/dev.tsv

Every seed continues the run of `--encoder` for so many steps by masked tokens (the control), by TSDAE and by RetroMAE;
the same command resumes. Pairs: the area under the ROC curve of the cosines, for tsv with a header, by default MRPC's.
Labeled: the accuracy of a logistic regression on the frozen vectors, for tsv with columns `sentence` and `label`.
Vectors are the mean of the tokens and the first token. Prints mean and standard deviation over seeds; needs
scikit-learn.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertjax.commands.embed import Embedder
from bertjax.config.overrides import set_values
from bertjax.experiment.config import parse as check
from bertjax.experiment.load import load_model
from bertjax.experiment.pretrain import pretrain
from bertjax.experiment.workdir import read_config
from bertjax.hf.sentence_transformers import Pooling

VARIANTS = {
    "mlm": {"objective.name": "mlm"},
    "tsdae, first": {"objective.name": "tsdae", "decoder.sharing": "all", "objective.tsdae.pooling": "first"},
    "tsdae, mean": {"objective.name": "tsdae", "decoder.sharing": "all", "objective.tsdae.pooling": "mean"},
    "retromae": {"objective.name": "retromae", "objective.masking.mask_rate": 0.3},
}


def main() -> None:
    options = parse_arguments()
    results = {("before", pooling): [measure(options.encoder, pooling, options)] for pooling in ("mean", "cls")}
    for seed in range(options.seeds):
        for name in options.variants:
            workdir = options.out / f"{name.replace(', ', '-')}-{seed}"
            cfg = continued(options, VARIANTS[name], seed)
            check(cfg)
            pretrain(cfg, workdir)
            for pooling in ("mean", "cls"):
                results.setdefault((name, pooling), []).append(measure(workdir, pooling, options))
    table = {f"{name}: {pooling}": np.array(scores) for (name, pooling), scores in results.items()}
    print(f"{'encoder: vector':<24}{'pairs, AUC':>18}{'probe, accuracy':>20}")
    for name, scores in table.items():
        columns = [f"{mean:.4f} ± {std:.4f}" for mean, std in zip(scores.mean(0), scores.std(0), strict=True)]
        print(f"{name:<24}{columns[0]:>18}{columns[1]:>20}")
    print(json.dumps({name: scores.round(5).tolist() for name, scores in table.items()}))


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True, help="work directory of a run with the objective mlm")
    parser.add_argument("--out", type=Path, required=True, help="directory of the work directories")
    parser.add_argument("--pairs", type=Path, required=True, help="tsv of pairs")
    parser.add_argument("--labeled", type=Path, nargs=2, metavar=("TRAIN", "DEV"), required=True)
    parser.add_argument("--columns", nargs=3, default=("#1 String", "#2 String", "Quality"), help="of --pairs")
    parser.add_argument("--sources", nargs="+", help="text to continue with (default: that of the run)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=10_000, help="labeled sentences to train the probe on")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    return parser.parse_args()


def continued(options: argparse.Namespace, values: dict[str, object], seed: int) -> ConfigDict:
    """Returns the config of the encoder's run with another objective, from its weights on."""
    cfg = read_config(options.encoder)
    common: dict[str, object] = {
        "init_from": str(options.encoder),
        "seed": seed,
        "data.tokenizer": str(options.encoder / "tokenizer"),
        "data.example_format": "block",
        "data.seq_len": options.seq_len,
        "train.num_steps": options.steps,
        "train.batch_size": options.batch_size,
        "optimizer.learning_rate": options.learning_rate,
        "schedule.warmup_steps": options.steps // 10,
        "export.at_end": False,
        "eval.fill_mask": (),
    }
    if options.sources:
        common["data.sources"] = tuple(options.sources)
    return set_values(cfg, common | values)


def measure(workdir: Path, pooling: str, options: argparse.Namespace) -> tuple[float, float]:
    """Returns the area under the curve of the pairs and the accuracy of the probe."""
    model, tokenizer, _ = load_model(workdir)
    embed = Embedder(model, tokenizer, Pooling(pooling, normalize=False))
    first, second, same = read_columns(options.pairs, options.columns)
    vectors = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (embed(first), embed(second))]
    area = roc_auc_score([int(float(each)) for each in same], (vectors[0] * vectors[1]).sum(1))
    train, dev = (read_columns(path, ("sentence", "label")) for path in options.labeled)
    chosen = np.random.default_rng(0).permutation(len(train[0]))[: options.most]
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))
    probe.fit(embed([train[0][each] for each in chosen]), [train[1][each] for each in chosen])
    return float(area), float(probe.score(embed(dev[0]), dev[1]))


def read_columns(path: Path, names: tuple[str, ...]) -> list[list[str]]:
    """Reads columns of a tsv file with a header."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [[row[name] for row in rows] for name in names]


if __name__ == "__main__":
    main()
