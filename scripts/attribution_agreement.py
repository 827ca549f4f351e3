"""Counts on how many texts two attributions name the same word as the one that speaks most for the prediction.

    python scripts/attribution_agreement.py --model runs/sst2 --in dev.tsv --text_column sentence --first 100

Prints for leave-one-out and each other method the share of texts with the same top word, that by chance (one word in
so many), and the mean rank correlation (Spearman) of the words of a text.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import bertjax

METHODS = ("integrated-gradients", "gradient-x-input", "attention-rollout")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--in", dest="inputs", type=Path, required=True)
    parser.add_argument("--text_column")
    parser.add_argument("--first", type=int, default=100, help="texts of two words or more")
    options = parser.parse_args()
    rows = [
        each["text"]
        for each in bertjax.predict(options.model, [options.inputs], text_column=options.text_column, with_input=True)
    ]
    texts = list(itertools.islice((text for text in rows if len(text.split()) > 1), options.first))
    scores = {
        method: [
            [word["score"] for word in record["words"]]
            for record in bertjax.explain(options.model, texts, method=method)  # type: ignore[arg-type]
        ]
        for method in ("leave-one-out", *METHODS)
    }
    reference = scores.pop("leave-one-out")
    chance = np.mean([1 / len(each) for each in reference])
    for method, values in scores.items():
        pairs = list(zip(reference, values, strict=True))
        same = np.mean([np.argmax(one) == np.argmax(other) for one, other in pairs])
        rank = np.nanmean([spearmanr(one, other).statistic for one, other in pairs])
        print(f"{method}: same top word {same:.2f} (chance {chance:.2f}), rank correlation {rank:.2f}", flush=True)


if __name__ == "__main__":
    main()
