"""BertGeneration (arXiv:1907.12461; transformers: models/bert_generation): BERT without token types and pooler.

The masked-token head is scores and a bias, without a layer. As a decoder (`is_decoder`) it is refused.
"""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import change_defaults

_SIZES = {"vocab_size": 50358, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
_FIELDS = change_defaults(bert.ENCODER_FIELDS, intermediate_size=4096, **_SIZES)


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    keymap = bert.make_keymap(config)
    entries = tuple(entry for entry in keymap.entries if not entry.head and "token_type" not in entry.tensor)
    return dataclasses.replace(
        keymap,
        entries=(*entries, Entry("mlm_head/bias", "lm_head.bias", "V", head="mlm")),
        ties={
            "lm_head.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        backbone=r"^(bert|lm_head)\.",
    )


FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="bert-generation",
    model_type="bert-generation",
    make_keymap=make_keymap,
    architectures={"BertGenerationDecoder": ("mlm",), "BertGenerationEncoder": ()},
    fields={key: field for key, field in _FIELDS.items() if key != "type_vocab_size"},
    structure={**bert.FAMILY.structure, "type_vocab_size": 0, "mlm_head": "bias"},
    ignored_keys="",
)
