"""DPR's two encoders (arXiv:2004.04906) under the names of transformers (models/dpr/modeling_dpr.py).

Each is a BERT whose first token is the vector of a question or of a passage. Heads go into the sidecar files. An
encoder of passages is written as one of questions, which has the same tensors under another prefix.
"""

from __future__ import annotations

import dataclasses

from bertjax.extensions import EncoderConfig, Family, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import ENCODER_ONLY


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters of an encoder: those of a BERT without its heads."""
    keymap = bert.make_keymap(config)
    encoder = tuple(entry for entry in keymap.entries if not entry.head)
    return dataclasses.replace(keymap, entries=encoder, ignored=(*bert.BUFFERS, r"pooler\.dense\."), ties={})


FAMILY = Family(
    name="dpr",
    model_type="dpr",
    make_keymap=make_keymap,
    architectures={"DPRQuestionEncoder": (), "DPRContextEncoder": ()},
    fields=bert.ENCODER_FIELDS,
    structure={"initializer": "normal"},
    constants={"is_decoder": False, "add_cross_attention": False, "projection_dim": 0},
    unsupported=(*ENCODER_ONLY, ("projection_dim", (0, None), "vectors are not projected")),
    prefix="bert.",
    prefixes={"DPRQuestionEncoder": "question_encoder.bert_model.", "DPRContextEncoder": "ctx_encoder.bert_model."},
)
