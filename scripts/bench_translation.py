"""Translation from scratch in a given wall-clock time: bertjax, and a plain PyTorch loop with `nn.Transformer`.

    python scripts/bench_translation.py --train data/train:en-de --test data/test:en-de \\
        --minutes 90 --out bench

Both train the same model on the same pairs with the same tokenizer, batches of as many examples, learning rates, label
smoothing and dropout, in processes of their own, one after the other. The time counts training and compilation.
At `--points` moments of it the weights are copied; afterwards each translates the test file, greedily and with a
beam of 5, and sacrebleu scores it. Writes OUT/results.json, and prints a table. Needs `bertjax[seq2seq,benchmark]`.

A pretrained encoder with the same tokenizer, to start both networks of bertjax from; cross-attention stays fresh:

    bertjax pretrain --config transformer:base --workdir encoder --config.data.tokenizer=bench/tokenizer ...
    python scripts/bench_translation.py ... --out bench --only bertjax --encoder encoder    # bench/bertjax-encoder.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config.source_files import parallel_files
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.io.jsonl import read_lines

BEAM, MAX_TOKENS, DECODED = 5, 64, 100


def read_pairs(where: str) -> list[list[str]]:
    """Returns the lines of the two files of PREFIX:en-de or SOURCE:TARGET."""
    return [[line.rstrip("\n") for _, line in read_lines(path)] for path in parallel_files(where)]


def learning_rates(steps: np.ndarray, options: argparse.Namespace) -> np.ndarray:
    """Returns the schedule of arXiv:1706.03762 with this peak, by step from 1."""
    return options.learning_rate * np.minimum(steps / options.warmup, np.sqrt(options.warmup / np.maximum(steps, 1)))


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Returns <s> text </s>, cut to the length that both models read."""
    ids = tokenizer.encode_batch(texts)
    return [[tokenizer.cls_id, *each[: MAX_TOKENS - 2].tolist(), tokenizer.sep_id] for each in ids]


def score(texts: list[str], references: list[str]) -> dict[str, Any]:
    """Returns BLEU and chrF with their signatures."""
    import sacrebleu

    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    values = {
        "bleu": bleu.corpus_score(texts, [references]).score,
        "chrf": chrf.corpus_score(texts, [references]).score,
    }
    return values | {"signatures": [str(bleu.get_signature()), str(chrf.get_signature())], "first": texts[:3]}


def run_bertjax(options: argparse.Namespace) -> dict[str, Any]:
    """Trains with `bertjax.experiment` step by step, and translates with `generate`."""
    import jax

    from bertjax.config.generation import GenerationConfig
    from bertjax.config.overrides import load_config, set_values
    from bertjax.experiment import build
    from bertjax.experiment.config import parse as check
    from bertjax.experiment.finetune import initial_state
    from bertjax.experiment.task import read_task, resolve_config
    from bertjax.experiment.task_feed import task_batches
    from bertjax.tasks.readers.examples import read_examples
    from bertjax.tasks.seq2seq import TextGenerator, float32_model
    from bertjax.training.sharding import put_batch

    values = {
        **{f"model.{name}": getattr(options, name) for name in ("num_layers", "hidden_size", "num_heads")},
        "model.intermediate_size": 4 * options.hidden_size,
        "model.hidden_dropout": options.dropout,
        "model.attention_dropout": options.dropout,
        "task.train": (f"parallel:{options.train}",),
        "task.batch_size": options.batch_size,
        "task.epochs": 4.0,  # orders repeat after these
        "data.tokenizer": str(options.out / "tokenizer"),
        "optimizer.learning_rate": options.learning_rate,
        "schedule.warmup_steps": 1,
        "train.compute_dtype": options.dtype,
    }
    if options.encoder:
        values |= {"init_from": str(options.encoder), "task.from_scratch": False}
    cfg = set_values(load_config("finetune/seq2seq:translation-small"), values)
    task = read_task(cfg, options.out / "bertjax")
    batches = task_batches(cfg, task)
    cfg = resolve_config(cfg, task, batches)
    cfg.train.num_steps = 10_000_000
    cfg.schedule.warmup_steps = options.warmup
    check(cfg)
    exp = build.make_experiment(cfg, task.tokenizer.vocabulary())
    state, stored, elapsed, cursor = initial_state(exp, task), [], 0.0, 0
    with jax.set_mesh(exp.mesh):
        for point in range(1, options.points + 1):
            while elapsed < options.minutes * 60 * point / options.points:
                began = time.monotonic()
                for _ in range(10):  # the device is read once in ten steps
                    state, metrics = exp.train_step(state, exp.frozen, put_batch(batches.batch(cursor), exp.mesh))
                    cursor += 1
                jax.block_until_ready(metrics)
                elapsed += time.monotonic() - began
            stored.append((elapsed, cursor, jax.device_get(state.params)))
        model = float32_model(exp.objective.seq2seq_model)  # type: ignore[attr-defined]
        examples = read_examples(task.config, "test", labeled=False, sources=[f"parallel:{options.test}"])
        features, references = (
            task.config.spec.make_features(task.config, examples, task.tokenizer, (), False).features,
            read_pairs(options.test)[1],
        )
        points = []
        for seconds, steps, params in stored:
            entry: dict[str, Any] = {"seconds": seconds, "steps": steps}
            for name, beams in (("greedy", 1), ("beam", BEAM)):
                settings = GenerationConfig(
                    max_new_tokens=MAX_TOKENS,
                    num_beams=beams,
                    decoder_start_token_id=model.decoder_start_token_id,
                    eos_token_id=(task.tokenizer.sep_id,),
                    pad_token_id=task.tokenizer.pad_id,
                )
                generator = TextGenerator(model, task.tokenizer, settings, DECODED)
                entry[name] = score(generator(params, features, len(features))[0], references)
            points.append(entry)
    return {"parameters": sum(leaf.size for leaf in jax.tree.leaves(stored[-1][2])), "points": points}


def run_torch(options: argparse.Namespace) -> dict[str, Any]:
    """Trains `nn.Transformer` as a usual loop does: batches of shuffled pairs, padded to the longest one."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_model, save_model
    from torch import nn

    torch.manual_seed(0)
    tokenizer = load_tokenizer(options.out / "tokenizer")
    sources, targets = (encode(tokenizer, texts) for texts in read_pairs(options.train))
    pad, end, width = tokenizer.pad_id, tokenizer.sep_id, options.hidden_size

    class Translator(nn.Module):
        """Shared table, sinusoids, `nn.Transformer`, tied output."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(tokenizer.size, width)
            nn.init.normal_(self.table.weight, std=0.02)
            self.bias = nn.Parameter(torch.zeros(tokenizer.size))
            layers, heads = options.num_layers, options.num_heads
            self.layers = nn.Transformer(
                width, heads, layers, layers, 4 * width, options.dropout, batch_first=True, activation="relu"
            )
            angles = np.arange(MAX_TOKENS + 2)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
            self.register_buffer("positions", torch.tensor(np.concatenate([np.sin(angles), np.cos(angles)], 1)).float())
            self.dropout = nn.Dropout(options.dropout)

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            return self.dropout(self.table(ids) * width**0.5 + self.positions[: ids.shape[1]])

        def encode(self, ids: torch.Tensor) -> torch.Tensor:
            return self.layers.encoder(self.embed(ids), src_key_padding_mask=ids == pad)

        def decode(self, ids: torch.Tensor, memory: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
            length = ids.shape[1]
            causal = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
            states = self.layers.decoder(
                self.embed(ids), memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=source == pad
            )
            return states @ self.table.weight.T + self.bias

    def padded(rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor([row + [pad] * (max(map(len, rows)) - len(row)) for row in rows])

    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    loss_of = nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=0.1)
    elapsed, step, order, draw = 0.0, 0, [], np.random.default_rng(0)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bfloat16")
    weights_of = {point: options.out / f"torch-{point}.safetensors" for point in range(1, options.points + 1)}
    for point in () if all(map(Path.exists, weights_of.values())) else weights_of:
        while elapsed < options.minutes * 60 * point / options.points:
            began = time.monotonic()
            if len(order) < options.batch_size:
                order = draw.permutation(len(sources)).tolist()
            chosen, order = order[: options.batch_size], order[options.batch_size :]
            source, target = (padded([side[index] for index in chosen]) for side in (sources, targets))
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = float(learning_rates(np.array(step), options))
            with autocast:
                logits = model.decode(target[:, :-1], model.encode(source), source)
            optimizer.zero_grad()
            loss_of(logits.float().flatten(0, 1), target[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            elapsed += time.monotonic() - began
        save_model(model, weights_of[point], {"seconds": str(elapsed), "steps": str(step)})

    @torch.no_grad()
    def translate(texts: list[list[int]], beams: int) -> list[list[int]]:
        """Beam search over a batch, which texts leave that have ended in all beams.

        Scores are log probabilities divided by the length, as with length_penalty=1.
        """
        source = padded(texts).repeat_interleave(beams, 0)
        memory, open_texts = model.encode(source), list(range(len(texts)))
        ids = torch.full((len(source), 1), tokenizer.cls_id)
        scores = torch.tensor([0.0] + [-1e9] * (beams - 1)).repeat(len(texts), 1)
        finished: list[list[tuple[float, list[int]]]] = [[] for _ in texts]
        for length in range(1, MAX_TOKENS + 1):
            logits = model.decode(ids, memory, source)[:, -1].log_softmax(-1).view(len(open_texts), beams, -1)
            best, index = (scores[:, :, None] + logits).view(len(open_texts), -1).topk(2 * beams, -1)
            rows, next_scores, remaining = [], [], []
            for item, text in enumerate(open_texts):
                alive: list[tuple[float, int, int]] = []
                for rank, (value, flat) in enumerate(zip(best[item].tolist(), index[item].tolist(), strict=True)):
                    parent, token = divmod(flat, logits.shape[-1])
                    if token == end and rank < beams:
                        finished[text].append((value / length, ids[item * beams + parent, 1:].tolist()))
                    elif token != end and len(alive) < beams:
                        alive.append((value, parent, token))
                if length == MAX_TOKENS:
                    finished[text].append((alive[0][0] / length, ids[item * beams + alive[0][1], 1:].tolist()))
                if len(finished[text]) < beams:
                    remaining.append(item)
                    next_scores.append([value for value, _, _ in alive])
                    rows += [torch.cat([ids[item * beams + at], torch.tensor([token])]) for _, at, token in alive]
            if not remaining:
                break
            taken = torch.tensor([item * beams + beam for item in remaining for beam in range(beams)])
            ids, scores, memory, source = torch.stack(rows), torch.tensor(next_scores), memory[taken], source[taken]
            open_texts = [open_texts[item] for item in remaining]
        return [max(each)[1] for each in finished]

    test, references = read_pairs(options.test)
    encoded, points = encode(tokenizer, test), []
    model.eval()
    for path in weights_of.values():
        load_model(model, path)
        with safe_open(path, framework="pt") as opened:
            trained = opened.metadata()
        entry: dict[str, Any] = {"seconds": float(trained["seconds"]), "steps": int(trained["steps"])}
        for name, beams in (("greedy", 1), ("beam", BEAM)):
            groups = [encoded[begin : begin + DECODED] for begin in range(0, len(encoded), DECODED)]
            ids = [each for group in groups for each in translate(group, beams)]
            entry[name] = score(tokenizer.decode_texts(ids), references)
        points.append(entry)
    return {"parameters": sum(each.numel() for each in model.parameters()), "points": points}


RUNS = {"bertjax": run_bertjax, "torch": run_torch}


def main() -> None:
    """Runs both, each in its process, or with `--only` one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="pairs, as PREFIX:en-de or SOURCE:TARGET")
    parser.add_argument("--test", required=True, help="likewise")
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--encoder", type=Path, help="work directory or folder of an encoder for bertjax to start from")
    parser.add_argument("--only", choices=tuple(RUNS), help="one of the two")
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--num-heads", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of matrix products")
    options = parser.parse_args()
    if not (options.out / "tokenizer").exists():
        texts = [text for side in read_pairs(options.train) for text in side]
        tokenizer = train_tokenizer(
            texts, model="bpe", family="roberta", vocab_size=options.vocab_size, lowercase=False
        )
        save_tokenizer(tokenizer, options.out / "tokenizer")
    if options.only:
        name = f"{options.only}-encoder" if options.encoder else options.only
        (options.out / f"{name}.json").write_text(json.dumps(RUNS[options.only](options)))
        return
    for name in RUNS:
        subprocess.run([sys.executable, *sys.argv, "--only", name], check=True)
    results = {name: json.loads((options.out / f"{name}.json").read_text()) for name in RUNS}
    settings = {name: str(value) for name, value in vars(options).items()}
    (options.out / "results.json").write_text(json.dumps({"settings": settings, **results}, indent=2))
    print(
        "| | minutes | steps | BLEU greedy | BLEU beam 5 | chrF greedy | chrF beam 5 |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for name, result in results.items():
        for point in result["points"]:
            values = [point[search][metric] for metric in ("bleu", "chrf") for search in ("greedy", "beam")]
            cells = [f"{point['seconds'] / 60:.1f}", f"{point['steps']:,}", *(f"{value:.2f}" for value in values)]
            print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
