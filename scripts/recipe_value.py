"""Measures what minutes of pretraining are worth: the recipe `bertjax`, its peers, and random weights.

    python scripts/recipe_value.py --out runs/value --minutes 60 --text text.txt --held_out valid.txt \\
        --suite suite.json --pairs blimp/*.jsonl.gz --seeds 0 1 --finetune_seeds 0,1,2

Every side reads the same text file for the same minutes on the cores that the process may use:

- `recipe`: `bertjax pretrain --config bertjax --minutes N`, which chooses its size;
- `published`: BERT-mini as published (`bert:mini`, learned positions) with 32 sequences of 128 tokens;
- `run_mlm`: Trainer with the defaults of the example `run_mlm` of transformers (8 sequences of 512 tokens, 5e-5 falling
  to zero, AdamW without decay, 15 % masks, dropout 0.1), by `trainer_peer.py` with autocast to bfloat16, in the size of
  `--peer_size` (`--sides screen` trains all sizes for a quarter of the minutes);
- `random`: the network of `recipe` without any training.

All but `published` use the tokenizer of `recipe`, seed 0. Writes table.md: nats of held-out tokens, 15 % of them
masked, computed by transformers from what each side exported (not comparable between tokenizers), minimal pairs, and
the tasks of `--suite`; in brackets the margin of the recipe in standard errors, of seeds and of the sampling of the
held-out examples (`--examples`) together. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev, variance

import numpy as np
import torch
import transformers

SIDES = ("recipe", "published", "run_mlm", "random")
PEER_SIZES = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8)}  # layers, width, heads (arXiv:1908.08962)
LENGTH, MASK_RATE, SEQUENCES = 128, 0.15, 1024


def call(command: list[str], **environment: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def bertjax(*arguments: str) -> None:
    call([sys.executable, "-m", "bertjax", *arguments])


def train(side: str, seed: int, options: argparse.Namespace) -> Path:
    """Returns the folder of transformers that a side leaves, after training it where it is not there yet."""
    folder = options.out / f"{side}-{seed}"
    model = folder / ("export" if side in ("recipe", "published") else "model")
    if (model / "config.json").exists():
        return model
    if side == "random":
        transformers.set_seed(seed)
        source = options.out / "recipe-0" / "export"
        config = transformers.AutoConfig.from_pretrained(source)
        transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(model)
        transformers.AutoTokenizer.from_pretrained(source).save_pretrained(model)
    elif side == "run_mlm":
        peer(folder, options.peer_size, 60 * options.minutes, seed, options)
    else:
        config = ["bertjax"] if side == "recipe" else ["bert:mini", "--config.train.batch_size=32"]
        values = {"data.sources": f"text:{options.text}", "data.eval_sources": f"text:{options.held_out}", "seed": seed}
        flags = [f"--config.{key}={value}" for key, value in values.items()]
        minutes = ("--minutes", f"{options.minutes:g}")
        bertjax("pretrain", "--config", *config, *minutes, "--workdir", str(folder), *flags)
    return model


def peer(folder: Path, size: str, seconds: float, seed: int, options: argparse.Namespace) -> None:
    """Trains the size by the defaults of run_mlm for so many seconds, in its own process."""
    folder.mkdir(parents=True, exist_ok=True)
    layers, width, heads = PEER_SIZES[size]
    tokenizer = options.out / "recipe-0" / "export"
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(tokenizer))
    model = {"vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    job = {
        "text": str(options.text),
        "tokenizer": str(tokenizer),
        "cache": str(options.out / "datasets"),
        "model": model | {"intermediate_size": 4 * width, "max_position_embeddings": 512},
        "form": "group",
        "seq_len": 512,
        "rows": 8,
        "dtype": "bfloat16",
        "compile": False,
        "seconds": seconds,
        "arguments": {"learning_rate": 5e-5, "weight_decay": 0.0, "seed": seed},
        "save": str(folder / "model"),
        "out": str(folder / "outcome.json"),
    }
    (folder / "job.json").write_text(json.dumps(job))
    call([options.peer_python, str(Path(__file__).with_name("trainer_peer.py")), str(folder / "job.json")])


def held_out_loss(model: Path, text: Path) -> float:
    """Returns nats per masked token: every model with the same tokenizer predicts the same tokens, all masks.

    Line ends are read as blanks, as in training.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    blanks = " ".join(text.read_text(encoding="utf-8").split())
    ids = np.array(tokenizer(blanks, add_special_tokens=False, verbose=False)["input_ids"])
    ids = ids[: min(SEQUENCES, len(ids) // LENGTH) * LENGTH].reshape(-1, LENGTH)
    masked = torch.tensor(np.random.default_rng(0).random(ids.shape) < MASK_RATE)
    labels = torch.tensor(ids)
    inputs = labels.masked_fill(masked, tokenizer.mask_token_id)
    network = transformers.AutoModelForMaskedLM.from_pretrained(model).eval()
    total = 0.0
    with torch.inference_mode():
        for rows, gold, where in zip(inputs.split(32), labels.split(32), masked.split(32), strict=True):
            total += float(torch.nn.functional.cross_entropy(network(rows).logits[where], gold[where], reduction="sum"))
    return total / int(masked.sum())


def minimal_pairs(model: Path, files: list[str]) -> float:
    out = model.parent / "pairs.jsonl"
    if not out.exists():
        bertjax("eval-minimal-pairs", "--model", str(model), "--pairs", *files, "--out", str(out))
    records = [json.loads(line) for line in out.read_text().splitlines()]
    return fmean(each["score_good"] > each["score_bad"] for each in records)


def finetune(models: dict[str, Path], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Returns the scores of every task by side, of all seeds of pretraining and finetuning."""
    workdir = options.out / "suite"
    flags = [part for model in models.values() for part in ("--model", str(model))]
    bertjax("suite", str(options.suite), *flags, "--workdir", str(workdir), "--seeds", options.finetune_seeds)
    results = json.loads((workdir / "suite.json").read_text())
    sides = dict(zip(results["models"], models, strict=True))
    scores: dict[str, dict[str, list[float]]] = {}
    for entry in results["results"]:
        side = sides[entry["model"]].rpartition("-")[0]
        scores.setdefault(entry["task"], {}).setdefault(side, []).extend(entry["scores"][entry["metric"]])
    return scores


def cell(scores: list[float], recipe: list[float], examples: int) -> str:
    """Returns mean and deviation, and the margin of the recipe in standard errors."""
    text = f"{fmean(scores):.4f}" + (f" ± {stdev(scores):.4f}" if len(scores) > 1 else "")
    if scores is recipe:
        return text
    error = sum(fmean(side) * (1 - fmean(side)) / examples for side in (scores, recipe))
    error += sum(variance(side) / len(side) for side in (scores, recipe) if len(side) > 1)
    return f"{text} ({(fmean(recipe) - fmean(scores)) / math.sqrt(error):.1f})"


def table(models: dict[str, Path], options: argparse.Namespace) -> str:
    columns: dict[str, dict[str, list[float]]] = {"nats": {}, "pairs": {}}
    for name, model in models.items():
        side = name.rpartition("-")[0]
        columns["nats"].setdefault(side, []).append(held_out_loss(model, options.held_out))
        if options.pairs:
            columns["pairs"].setdefault(side, []).append(minimal_pairs(model, options.pairs))
    columns |= finetune(models, options) if options.suite else {}
    columns = {name: sides for name, sides in columns.items() if sides}
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for side in options.sides:
        cells = []
        for name, sides in columns.items():
            scores = sides[side]
            plain = " / ".join(f"{score:.3f}" for score in scores)
            examples = options.examples.get(name)
            cells.append(plain if examples is None else cell(scores, sides["recipe"], examples))
        lines.append(f"| {side} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--text", type=Path, required=True, help="text file that every side reads")
    parser.add_argument("--held_out", type=Path, required=True, help="text file for the held-out loss")
    parser.add_argument("--sides", nargs="+", choices=(*SIDES, "screen"), default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of pretraining")
    parser.add_argument("--suite", type=Path, help="tasks, as for bertjax suite")
    parser.add_argument("--examples", type=json.loads, default={}, help='held-out examples by task: {"mnli": 9815}')
    parser.add_argument("--finetune_seeds", default="0,1,2")
    parser.add_argument("--pairs", nargs="+", metavar="FILE")
    parser.add_argument("--peer_size", choices=PEER_SIZES, default="mini")
    parser.add_argument("--peer_python", default=sys.executable, help="an interpreter with torch and accelerate")
    options = parser.parse_args()
    for name in ("out", "text", "held_out"):
        setattr(options, name, getattr(options, name).absolute())
    return options


def main() -> None:
    options = arguments()
    if "screen" in options.sides:
        for size in PEER_SIZES:
            folder = options.out / f"screen-{size}"
            if not (folder / "model").exists():
                peer(folder, size, 15 * options.minutes, 0, options)
            print(size, held_out_loss(folder / "model", options.held_out), flush=True)
        return
    models = {f"{side}-{seed}": train(side, seed, options) for side in options.sides for seed in options.seeds}
    text = table(models, options)
    (options.out / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
