"""Compares what `bertjax prune` chooses with other choices of the same size: the table of docs/export.md.

    python scripts/pruning_choices.py --model FOLDER --text text:sample.txt [--layers 4] [--units 1152 768 384]

Prints the mean cosine of the last hidden states to those of the whole model, on held-out text and without a recovery:
for every choice of so many layers, and for inner units chosen by importance, by the size of their weights, at random.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bertjax.experiment.open_model import load_pretrained
from bertjax.experiment.prune import PruningTarget, agreement, open_corpus, prune_model
from bertjax.experiment.shrink import UNITS, choose_units, shrink
from bertjax.hf.pretrained import PretrainedModel
from bertjax.io.stderr import note
from bertjax.io.tree_paths import flatten_tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", nargs="+", required=True, metavar="SOURCE", help="as data.sources")
    parser.add_argument("--layers", type=int, metavar="N")
    parser.add_argument("--units", type=int, nargs="*", default=[], metavar="N")
    options = parser.parse_args()
    model = load_pretrained(options.model)
    assert isinstance(model, PretrainedModel)
    corpus = open_corpus(options.model, {"data.sources": tuple(options.text)})

    def cosine(layers: Sequence[int] | None = None, units: np.ndarray | None = None) -> float:
        remaining = {} if units is None else {"intermediate_size": units}
        params, config = shrink(model.params, model.heads, model.config, layers=layers, remaining=remaining)
        return agreement(model, dataclasses.replace(model, params=params, config=config), corpus, None)

    if options.layers is not None:
        chosen = prune_model(model, corpus, PruningTarget(layers=options.layers), note).layers
        choices = itertools.combinations(range(model.config.num_layers), options.layers)
        for score, layers in sorted(((cosine(layers), layers) for layers in choices), reverse=True):
            print(f"layers {', '.join(map(str, layers))}: {score:.3f}{' (chosen)' * (layers == chosen)}", flush=True)
    (path,) = (path for path in flatten_tree(model.params) if path.endswith(UNITS["intermediate_size"]))
    sizes = (np.asarray(flatten_tree(model.params)[path]) ** 2).sum(-1)
    drawn = np.random.default_rng(0).random(sizes.shape)
    for count in options.units:
        pruned = prune_model(model, corpus, PruningTarget(intermediate_size=count), note).model
        others = {"weights": choose_units(sizes, count), "random": choose_units(drawn, count)}
        scores = {"importance": agreement(model, pruned, corpus, None)}
        scores |= {name: cosine(units=units) for name, units in others.items()}
        print(f"{count} units: {', '.join(f'{name} {score:.3f}' for name, score in scores.items())}", flush=True)


if __name__ == "__main__":
    main()
