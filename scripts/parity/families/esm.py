"""ESM-2 and ESM-1b: `transformers.EsmConfig`. Mask tokens are among the inputs: they scale the embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.cases import Arrays, Case, ExtraCall

_ROWS = 2  # the third protein is one token, whose contacts are 0 / 0 in `transformers`


def _their_contacts(model: Any, batch: Arrays) -> Arrays:
    import torch

    with torch.no_grad():
        ids, mask = (torch.from_numpy(batch[name][:_ROWS]) for name in ("input_ids", "attention_mask"))
        model.set_attn_implementation("eager")
        contacts = model.predict_contacts(ids, mask).numpy()
        model.set_attn_implementation("sdpa")
    return {"probabilities": contacts}


def _our_contacts(model: Any, batch: Arrays) -> Arrays:
    contacts = model.predict_contacts(batch["input_ids"][:_ROWS], batch["attention_mask"][:_ROWS])
    return {"probabilities": np.asarray(contacts)}


# fmt: off
CASES = (
    Case("esm", "heads of 10, token dropout, another base", "EsmConfig",
         dict(vocab_size=33, hidden_size=30, num_hidden_layers=3, num_attention_heads=3, intermediate_size=41,
              hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3, max_position_embeddings=40,
              position_embedding_type="rotary", rope_theta=70.0, token_dropout=True, mask_token_id=7, pad_token_id=1,
              layer_norm_eps=1e-5, id2label={0: "H", 1: "E", 2: "C"}, label2id={"H": 0, "E": 1, "C": 2}),
         ("EsmForMaskedLM", "EsmForSequenceClassification", "EsmForTokenClassification", "EsmModel"), seq_len=33,
         left_padding=True),
    Case("esm", "absolute positions, norm of the embeddings, untied scores, pad id 4", "EsmConfig",
         dict(vocab_size=57, hidden_size=28, num_hidden_layers=2, num_attention_heads=4, intermediate_size=19,
              max_position_embeddings=40, emb_layer_norm_before=True, token_dropout=True, mask_token_id=3,
              pad_token_id=4, tie_word_embeddings=False),
         ("EsmForMaskedLM", "EsmModel"), left_padding=True),
    Case("esm", "contacts", "EsmConfig",
         dict(vocab_size=33, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=19,
              position_embedding_type="rotary", mask_token_id=32, pad_token_id=1),
         ("EsmForMaskedLM",), calls=(ExtraCall("contacts", _their_contacts, _our_contacts),)),
)
# fmt: on
