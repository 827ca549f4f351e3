"""A speedrun for text encoders: train on WikiText-2 in the least time, scored by libraries that everybody has.

    python scripts/speedrun.py run --data wikitext-2 --out runs/speedrun --name recipe --command COMMAND
    python scripts/speedrun.py score FOLDER --data wikitext-2 [--sst2 sst-2]

docs/speedrun.md has the rules. `run` checks the text, times the command from its start to its end (`{text}` and `{out}`
in it stand for the training file and the folder of this run), scores `{out}/export` or the folder named by `--model`,
and appends a line of JSON to OUT/log.jsonl. `score` prints the scores of a folder of transformers. Needs torch,
transformers and scikit-learn, not bertjax.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import random
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy

DIGESTS = {  # pytorch/examples:word_language_model/data/wikitext-2
    "train.txt": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
}
CHUNK, RATE = 64, 0.15  # words that a model sees at once; share of them that it does not
PROBE_SENTENCES = 10_000


def check_text(folder: Path) -> None:
    for name, digest in DIGESTS.items():
        path = folder / name
        if not path.exists():
            sys.exit(f"{path}: no such file; it is in pytorch/examples, word_language_model/data/wikitext-2")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            sys.exit(f"{path} has other bytes than pytorch/examples, word_language_model/data/wikitext-2")


def chunks(path: Path) -> Iterator[tuple[list[str], list[bool]]]:
    """Yields up to 64 words of a paragraph and whether each is masked: the same words for every tokenizer."""
    draw = random.Random(0)
    for line in path.read_text(encoding="utf-8").split("\n"):
        words = line.split()
        if words and words[0] != "=":  # headings
            for start in range(0, len(words), CHUNK):
                part = words[start : start + CHUNK]
                masked = [draw.random() < RATE and word != "<unk>" for word in part]
                if any(masked):
                    yield part, masked


def encode(words: list[str], masked: list[bool], tokenizer: Any) -> tuple[list[int], list[int], int]:
    """Returns ids, the position of each in its masked word (-1 elsewhere), and the bytes of the masked words.

    A token belongs to a word if it holds a letter of it; one that only holds the blank before it does not.
    """
    text = " ".join(words)
    word_at, at = np.full(len(text) + 1, -1), 0
    for index, (word, is_masked) in enumerate(zip(words, masked, strict=True)):
        if is_masked:
            word_at[at : at + len(word)] = index
        at += len(word) + 1
    coded = tokenizer(text, return_offsets_mapping=True, truncation=True, max_length=512)
    lengths: Counter[int] = Counter()
    positions = []
    for start, end in coded["offset_mapping"]:
        word = int(word_at[start:end].max()) if end > start else -1
        positions.append(lengths[word] if word >= 0 else -1)
        lengths[word] += 1
    size = sum(len(word.encode()) for word, is_masked in zip(words, masked, strict=True) if is_masked)
    return coded["input_ids"], positions, size


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


@torch.inference_mode()
def nats_per_byte(model: Path, valid: Path) -> float:
    """Returns the loss of masked words, per byte: of each token with those before it in its word (arXiv:2305.10588)."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForMaskedLM.from_pretrained(model).eval()
    rows = sorted((encode(*chunk, tokenizer) for chunk in chunks(valid)), key=lambda row: len(row[0]))
    total = 0.0
    for position in range(max(max(positions) for _, positions, _ in rows) + 1):
        concerned = [(ids, positions) for ids, positions, _ in rows if position in positions]
        for start in range(0, len(concerned), 32):
            batch = concerned[start : start + 32]
            inputs = [
                [tokenizer.mask_token_id if at >= position else token for token, at in zip(*row, strict=True)]
                for row in batch
            ]
            labels = [[token if at == position else -100 for token, at in zip(*row, strict=True)] for row in batch]
            mask = padded([[1] * len(ids) for ids in inputs], 0)
            logits = network(padded(inputs, tokenizer.pad_token_id or 0), attention_mask=mask).logits.flatten(0, 1)
            total += float(cross_entropy(logits, padded(labels, -100).flatten(), reduction="sum"))
    return total / sum(size for _, _, size in rows)


def guessing(data: Path) -> float:
    """Returns the nats per byte of guessing the masked words by their frequency in the training text."""
    counts = Counter((data / "train.txt").read_text(encoding="utf-8").split())
    hidden = [
        word
        for words, masked in chunks(data / "valid.txt")
        for word, is_masked in zip(words, masked, strict=True)
        if is_masked
    ]
    nats = sum(math.log(counts.total() / counts[word]) for word in hidden)
    return nats / sum(len(word.encode()) for word in hidden)


@torch.inference_mode()
def vectors(model: Path, texts: list[str]) -> np.ndarray:
    """Returns the mean of the last hidden states of every text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModel.from_pretrained(model).eval()
    results = np.empty((len(texts), network.config.hidden_size), np.float32)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for start in range(0, len(texts), 64):
        chosen = order[start : start + 64]
        batch = tokenizer([texts[index] for index in chosen], padding=True, truncation=True, max_length=128)
        ids, mask = torch.tensor(batch["input_ids"]), torch.tensor(batch["attention_mask"])
        hidden = network(input_ids=ids, attention_mask=mask)[0] * mask[..., None]
        results[chosen] = (hidden.sum(1) / mask.sum(1, keepdim=True)).numpy()
    return results


def probe(model: Path, folder: Path) -> float:
    """Returns the accuracy of a logistic regression on frozen vectors: SST-2's first sentences, its dev set."""
    features, labels = {}, {}
    for split in ("train", "dev"):
        lines = (folder / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        pairs = [line.rsplit("\t", 1) for line in (lines[:PROBE_SENTENCES] if split == "train" else lines)]
        features[split], labels[split] = vectors(model, [text for text, _ in pairs]), [label for _, label in pairs]
    mean, deviation = features["train"].mean(0), features["train"].std(0) + 1e-6
    scaled = {split: (values - mean) / deviation for split, values in features.items()}
    fitted = LogisticRegression(max_iter=2000).fit(scaled["train"], labels["train"])
    return float(fitted.score(scaled["dev"], labels["dev"]))


def score(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    network = transformers.AutoModelForMaskedLM.from_pretrained(model)
    scores = {
        "guessing": round(guessing(options.data), 4),
        "nats_per_byte": round(nats_per_byte(model, options.data / "valid.txt"), 4),
        "parameters": sum(each.numel() for each in network.parameters()),
    }
    return scores | ({"sst2_probe": round(probe(model, options.sst2), 4)} if options.sst2 else {})


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    widest = next((each for each in ("avx512_bf16", "avx512f", "avx2") if each in flags), "")
    return " ".join([names[0] if names else platform.processor(), widest]).strip()


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Times the command in an environment without caches of earlier runs, and returns the record of the log."""
    out = options.out / options.name
    if out.exists():
        sys.exit(f"{out} is there already; a run begins without anything of an earlier one")
    options.out.mkdir(parents=True, exist_ok=True)
    output, cache = options.out / f"{options.name}.log", str(options.out / f"{options.name}-cache")
    names = {"{text}": str(options.data / "train.txt"), "{out}": str(out)}
    command = shlex.split(options.command)
    for name, value in names.items():
        command = [part.replace(name, value) for part in command]
    caches = dict.fromkeys(("XDG_CACHE_HOME", "HF_HOME", "JAX_COMPILATION_CACHE_DIR"), cache)
    with output.open("w") as log:
        began = time.perf_counter()
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | caches).returncode
        seconds = time.perf_counter() - began
    if status:
        sys.exit(f"the command ended with status {status}: {output}")
    facts = {"name": options.name, "date": time.strftime("%Y-%m-%d"), "seconds": round(seconds, 1)}
    facts |= {"cores": len(os.sched_getaffinity(0)), "processor": processor(), "command": options.command}
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return facts | gpu | score(out / "export" if options.model is None else options.model, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="action")
    for name in ("run", "score"):
        each = commands.add_parser(name)
        each.add_argument("--data", type=Path, required=True, help="folder with train.txt and valid.txt")
        each.add_argument("--sst2", type=Path, help="folder with train.tsv and dev.tsv of SST-2, for the probe")
    commands.choices["score"].add_argument("folder", type=Path)
    each = commands.choices["run"]
    each.add_argument("--out", type=Path, required=True)
    each.add_argument("--name", required=True)
    each.add_argument("--model", type=Path, help="folder that the command writes (default: export in that of the run)")
    each.add_argument("--command", required=True, help="as in a shell, which does not see it")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    check_text(options.data)
    if options.action == "score":
        print(json.dumps(score(options.folder, options)))
        return
    record = run(options)
    with (options.out / "log.jsonl").open("a") as log:
        log.write(json.dumps(record) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
