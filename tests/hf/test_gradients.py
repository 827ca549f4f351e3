"""Losses and gradients in every parameter equal torch's for the same weights, masks and labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradients_lab import (
    VOCAB,
    assert_same_gradients,
    loaded,
    masked_batch,
    masked_lm_loss,
    pair_labels,
    perturbed,
    torch_inputs,
    torch_labels,
)

transformers = pytest.importorskip("transformers")


@pytest.mark.long
def test_loss_and_gradients_of_bert_are_torchs(tmp_path: Path) -> None:
    sizes = dict(hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50)
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=16, initializer_range=0.2, **sizes)
    theirs, batch = perturbed(transformers.BertForPreTraining(config)), masked_batch()
    expected = theirs(**torch_inputs(batch), labels=torch_labels(batch), next_sentence_label=pair_labels(batch)).loss
    ours = loaded(theirs, tmp_path)
    assert_same_gradients(ours, theirs, masked_lm_loss(ours, batch), expected)


SHARING = {
    "three layers in two groups of two inner layers": dict(
        num_hidden_layers=3, num_hidden_groups=2, inner_group_num=2, embedding_size=13
    ),
    "one group for all": dict(num_hidden_layers=2, embedding_size=36),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "sharing",
    [
        pytest.param(sharing, id=name, marks=pytest.mark.weekly if name == "one group for all" else [])
        for name, sharing in SHARING.items()
    ],
)
def test_loss_and_gradients_of_albert_are_torchs(tmp_path: Path, sharing: dict[str, int]) -> None:
    sizes = dict(hidden_size=36, num_attention_heads=3, intermediate_size=50, max_position_embeddings=16)
    config = transformers.AlbertConfig(vocab_size=VOCAB, initializer_range=0.2, classifier_dropout_prob=0.0, **sizes)
    config.update(sharing)
    theirs, batch = perturbed(transformers.AlbertForPreTraining(config)), masked_batch()
    expected = theirs(**torch_inputs(batch), labels=torch_labels(batch), sentence_order_label=pair_labels(batch)).loss
    ours = loaded(theirs, tmp_path)
    assert ours.config.num_groups == config.num_hidden_groups and ours.heads == ("pooler", "mlm", "pair")
    gaps = assert_same_gradients(ours, theirs, masked_lm_loss(ours, batch), expected)
    assert len(gaps) == len(dict(theirs.named_parameters()))
