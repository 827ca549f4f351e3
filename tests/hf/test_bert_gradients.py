"""The loss and its gradient in every parameter equal torch's for the same weights, masks and labels."""

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
def test_loss_and_gradients_are_torchs(tmp_path: Path) -> None:
    sizes = dict(hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50)
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=16, initializer_range=0.2, **sizes)
    theirs, batch = perturbed(transformers.BertForPreTraining(config)), masked_batch()
    expected = theirs(**torch_inputs(batch), labels=torch_labels(batch), next_sentence_label=pair_labels(batch)).loss
    ours = loaded(theirs, tmp_path)
    assert_same_gradients(ours, theirs, masked_lm_loss(ours, batch), expected)
