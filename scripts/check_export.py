"""Loads an exported masked language model with transformers, on the GPU if there is one, and fills masks.

    python scripts/check_export.py runs/on_gpu/runs/curve/export

Exits with 1 if the class lacks a weight of the file, or the file one of the class, or a score is not finite.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
import transformers

PROMPTS = (
    "The capital of France is {}.",
    "The river flows into the {} sea.",
    "He was elected president of the United {}.",
    "Water is made of hydrogen and {}.",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path)
    folder, device = parser.parse_args().export, "cuda" if torch.cuda.is_available() else "cpu"
    if not (folder / "config.json").exists():
        sys.exit(f"no export in {folder}: did the training run end?")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, loaded = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, device=device, top_k=3)
    finite = True
    for prompt in PROMPTS:
        guesses = fill(prompt.format(tokenizer.mask_token))
        finite &= all(math.isfinite(guess["score"]) for guess in guesses)
        print(prompt.format("___"), "  ".join(f"{guess['token_str']} {guess['score']:.2f}" for guess in guesses))
    wrong = {name: sorted(map(str, keys)) for name, keys in loaded.items() if keys}
    print(
        f"transformers {transformers.__version__} on {fill.device}: {model.num_parameters():,} parameters, "
        f"{wrong or 'all weights'}, {'finite scores' if finite else 'scores that are NOT finite'}"
    )
    return 1 if wrong or not finite else 0


if __name__ == "__main__":
    sys.exit(main())
