"""Schemes of entity tags are recognized from the tags alone; F1 is reported only where entities are scored."""

from __future__ import annotations

import numpy as np
import pytest
from tokens_lab import make_features, task_config, trained

from bertjax.config.defaults import base_config
from bertjax.errors import UserError
from bertjax.experiment.config import read_objective
from bertjax.tasks.readers.examples import WordExamples
from bertjax.tasks.readers.labels import collect_labels
from bertjax.tasks.tag_schemes import normalize_tags, recognize_scheme

# The same sentence in every scheme: an entity of three words, one of one word, a word outside, one of two.
SCHEMES = {
    "iob2": "B-PER I-PER I-PER B-LOC O B-LOC I-LOC",
    "iob1": "I-PER I-PER I-PER I-LOC O I-LOC I-LOC",
    "bioes": "B-PER I-PER E-PER S-LOC O B-LOC E-LOC",
    "bilou": "B-PER I-PER L-PER U-LOC O B-LOC L-LOC",
    "bmes": "B-PER M-PER E-PER S-LOC O B-LOC E-LOC",
    "plain": "DET ADJ NOUN NAME VERB DET NOUN",
}
WORDS = ["The", "cat", "sat", "on", "a", "mat", "while"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_metrics_of_every_scheme(scheme: str) -> None:
    """The model predicts all entities but the last one, whose words it assigns to the one before."""
    gold, locations = [SCHEMES[scheme].split()], ["a:1"]
    tags, _ = normalize_tags(gold, "auto", locations)
    config = task_config(kind="tokens", train=("conll:a",), max_length=32)
    examples = WordExamples([WORDS], tags, ["0"], locations)
    labels = collect_labels(config, examples)
    data = make_features(config, examples, trained("bert"), labels, training=True)
    first = data.first_token_of_word
    scores = np.zeros((len(data.features.tokens), len(labels)))
    scores[first, data.features.labels["token_labels"][first]] = 1.0
    scores[first[-2:]] = np.eye(len(labels))[labels.index(tags[0][4])]
    metrics = config.spec.compute_metrics(config, examples, data, scores, labels).metrics
    if scheme == "plain":
        assert "accuracy" in metrics and not {"f1", "precision", "recall"} & set(metrics)
        assert data.notes[0].startswith("tags mark no entities")
    else:
        assert (metrics["precision"], metrics["recall"], metrics["f1"]) == (1.0, 2 / 3, pytest.approx(0.8))
        assert data.notes[0].startswith(f"tags are {scheme.upper().replace('IOB1', 'IOB2')}")
    assert metrics["accuracy"] == pytest.approx(5 / 7)


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("B M E S", "bmes"),
        ("O B I", "iob2"),
        ("S-PER O", "bioes"),
        ("O", "plain"),
        ("S U", "plain"),  # parts of speech
        ("B-PER L-PER S-PER", "plain"),  # prefixes that belong to no scheme
        ("O B-PER NN", "plain"),
        ("O PER", "plain"),
        ("B-geo-loc I-geo-loc", "iob2"),
    ],
)
def test_recognized(tags: str, scheme: str) -> None:
    assert recognize_scheme(tags.split()) == scheme
    assert recognize_scheme(tags.split(), "plain") == "plain"


def test_segmentation_is_kept_and_an_explicit_scheme_must_hold() -> None:
    assert normalize_tags([["I", "O", "B"]], "auto", ["a:1"]) == ([["I", "O", "B"]], [])
    assert normalize_tags([["I", "O", "B"]], "iob1", ["a:1"])[0] == [["B", "O", "B"]]
    with pytest.raises(UserError, match="a:2: tag 'I-X' is neither O nor B-TYPE nor M-TYPE nor E-TYPE nor S-TYPE"):
        normalize_tags([["B-X", "E-X"], ["I-X"]], "bmes", ["a:1", "a:2"])


@pytest.mark.parametrize(("scheme", "metric"), [("auto", "eval/f1"), ("plain", "eval/accuracy")])
def test_checkpoints_are_compared_by_a_metric_that_there_is(scheme: str, metric: str) -> None:
    cfg = base_config()
    cfg.objective.name, cfg.task.kind, cfg.task.eval = "task", "tokens", ("conll:dev.txt",)
    cfg.task.tokens.tag_scheme = scheme
    assert f"eval/{read_objective(cfg).main_metric}" == metric
