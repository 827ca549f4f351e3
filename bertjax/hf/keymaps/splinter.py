"""Splinter (arXiv:2101.00438) under the names of transformers (models/splinter).

A BERT without pooler, whose only head compares every token with the token [QUESTION], which its tokenizer puts between
question and context. Both classes with that head have the same tensors, and are written as that of questions.
"""

from __future__ import annotations

import dataclasses

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps import bert
from bertjax.hf.keymaps.family import ABSOLUTE_POSITIONS, ENCODER_ONLY, Family, linear, norm

_HEAD = "question_answering"


def make_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    keymap = bert.make_keymap(config, "splinter")
    entries = [entry for entry in keymap.entries if not entry.head]
    for side in ("query_start", "query_end", "start", "end"):
        param, tensor = f"answer_head/{side}", f"splinter_qass.{side}_transform"
        entries += linear(f"{param}/dense", f"{tensor}.dense", "D D", head=_HEAD)
        entries += norm(f"{param}/norm", f"{tensor}.LayerNorm", config, head=_HEAD)
    for side in ("start", "end"):
        tensor = f"splinter_qass.{side}_classifier"
        entries += linear(f"answer_head/{side}_product", tensor, "D D", bias=False, head=_HEAD)
    return dataclasses.replace(keymap, entries=tuple(entries), ties={}, backbone=r"^splinter(_qass)?\.")


FAMILY = Family(
    name="splinter",
    model_type="splinter",
    make_keymap=make_keymap,
    architectures={
        "SplinterForQuestionAnswering": (_HEAD,),
        "SplinterForPreTraining": (_HEAD,),
        "SplinterModel": (),
    },
    fields={**bert.ENCODER_FIELDS, "question_token_id": ("question_token_id", 104, int)},
    structure={"initializer": "normal", "answer_head": "question"},
    unsupported=(*ABSOLUTE_POSITIONS, *ENCODER_ONLY),
    ignored_keys="initialize_new_qass use_cache",
    # Without the token the class holds the encoder alone; its config needs a number.
    extra_keys=lambda config, _: {"question_token_id": 104} if config.question_token_id is None else {},
    prefix="splinter.",
)
