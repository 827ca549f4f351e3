"""Tokens per second of generation: bertjax with and without the cache, and `transformers`, same model and inputs.

python scripts/bench_generation.py [--size tiny|base] [--class bart|gpt2] [--batch 16] [--new 64] [--out FILE]

The contestants take turns, and the median counts; compilation is not measured. No end token: all write `--new` tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import bertjax

SIZES = {"tiny": (64, 2, 4, 1000), "base": (768, 6, 12, 32000)}


def make(name: str, size: str, positions: int) -> Any:
    """Returns a random model of `transformers`.

    Args:
        name: bart or gpt2.
        size: a key of `SIZES`.
        positions: length of the position table.
    """
    width, layers, heads, vocab = SIZES[size]
    torch.manual_seed(0)
    if name == "gpt2":
        sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions}
        ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocab, **sizes, **ids)).eval()
    networks = {
        f"{network}_{key}": value
        for network in ("encoder", "decoder")
        for key, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))
    }
    ids = {"eos_token_id": None, "forced_eos_token_id": None, "decoder_start_token_id": 2, "pad_token_id": 1}
    config = transformers.BartConfig(
        vocab_size=vocab, d_model=width, max_position_embeddings=positions, **networks, **ids
    )
    return transformers.BartForConditionalGeneration(config).eval()


def contestants(theirs: Any, ours: Any, ids: np.ndarray, settings: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Returns the functions to time.

    Args:
        theirs: model of `transformers`.
        ours: the same model.
        ids: prompts or sources.
        settings: settings of generation.
    """
    tensor = torch.tensor(ids)
    return {
        "bertjax": lambda: ours.generate(ids, **settings),
        "bertjax, no cache": lambda: ours.generate(ids, use_cache=False, **settings),
        "transformers": lambda: theirs.generate(
            tensor, attention_mask=torch.ones_like(tensor), do_sample=False, **settings
        ),
    }


def measure(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Returns the median seconds of every function; they take turns."""
    took: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if turn:  # the first turn compiles
                took[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in took.items()}


def main() -> None:
    """Prints a table, and writes it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--class", dest="name", choices=("bart", "gpt2"), default="bart")
    for flag, default in (("--batch", 16), ("--length", 32), ("--new", 64), ("--repeats", 5)):
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    theirs = make(options.name, options.size, options.length + options.new + 8)
    ids = np.random.default_rng(0).integers(5, SIZES[options.size][3], (options.batch, options.length))
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = bertjax.load_pretrained(folder)
    records = []
    for search, settings in {"greedy": {}, "beam 5": {"num_beams": 5}}.items():
        runs = contestants(theirs, ours, ids, {"max_new_tokens": options.new, **settings})
        with torch.no_grad():
            for name, seconds in measure(runs, options.repeats).items():
                rate = options.batch * options.new / seconds
                records.append({"search": search, "contestant": name, "seconds": seconds, "tokens_per_second": rate})
                print(f"{search:8} {name:20} {rate:10,.0f} tokens per second", flush=True)
    if options.out is not None:
        result = vars(options) | {"out": None, "records": records}
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
