"""LUKE and I-BERT (transformers: models/luke, models/ibert): folders that are read, and exported, as RoBERTa.

The words of LUKE (arXiv:2010.01057) and mLUKE attend as in RoBERTa where no entities are passed. What belongs to
entities is not read, with a warning that names it; no class of LUKE could be written without it. I-BERT
(arXiv:2101.01321) without `quant_mode` is RoBERTa next to ranges and integers of a quantization that is off.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import comma_list
from bertjax.hf.keymap import Entry, KeyMap, Tensors
from bertjax.hf.keymaps import bert, roberta
from bertjax.hf.keymaps.family import Family, change_defaults

log = logging.getLogger(__name__)

_OF_ENTITIES = re.compile(r"(entity_(?:embeddings|predictions)|(?:w2e|e2w|e2e)_query)\.")
_OUTPUT, _CLASSIFIER = "lm_head.decoder.weight", "LukeForSequenceClassification"


class _Luke(Family):
    """LUKE, whose pooler is the dense layer of RoBERTa's classifier."""

    def keymap_for(self, architecture: str, config: EncoderConfig) -> KeyMap:
        """Returns the names of the parameters in files of a class."""
        keymap = super().keymap_for(architecture, config)
        if architecture != _CLASSIFIER:
            return keymap
        renames = (
            (r"^luke\.pooler\.dense\.", "classifier.dense."),
            (r"^classifier\.(weight|bias)$", r"classifier.out_proj.\1"),
        )
        return dataclasses.replace(keymap, renames=(*keymap.renames, *renames))


def _luke_keymap(config: EncoderConfig) -> KeyMap:
    """Returns the names of the words' parameters; transformers 5 does not tie the output table."""
    keymap = roberta.make_keymap(config, "luke")
    ties, entries = dict(keymap.ties), keymap.entries
    if not config.tie_word_embeddings:
        del ties[_OUTPUT]
        entries += (Entry("mlm_head/table", _OUTPUT, "V D", head="mlm"),)
    return dataclasses.replace(keymap, entries=entries, ties=ties, ignored=(*keymap.ignored, _OF_ENTITIES.pattern))


def _luke_fields(config: EncoderConfig, tensors: Tensors, where: str) -> dict[str, Any]:
    """Returns whether the output table is that of the words; a warning names what is not read."""
    if parts := {match[1] for match in map(_OF_ENTITIES.search, tensors) if match}:
        log.warning("%s: what belongs to entities is not read: %s", where, comma_list(sorted(parts)))
    output, words = (tensors.get(name) for name in (_OUTPUT, "luke.embeddings.word_embeddings.weight"))
    return {"tie_word_embeddings": output is None or words is None or np.array_equal(output, words)}


def _ibert_keymap(config: EncoderConfig) -> KeyMap:
    keymap = roberta.make_keymap(config, "ibert")
    unused = r"\.(\w+_integer|\w+_scaling_factor|x_min|x_max|LayerNorm\.shift)$"
    return dataclasses.replace(keymap, ignored=(*keymap.ignored, unused))


def _family(kind: type[Family], name: str, classes: str, **changes: Any) -> Family:
    """Returns a family whose models become RoBERTas; `changes` are other attributes of it."""
    base = roberta.FAMILY
    attributes = {field.name: getattr(base, field.name) for field in dataclasses.fields(Family)}
    changes = {
        "name": name,
        "model_type": name,
        "architectures": {each.replace("Roberta", classes): heads for each, heads in base.architectures.items()},
        "structure": {**base.structure, "family": base.name, "tie_word_embeddings": True},
        "prefix": f"{name}.",
        "written": False,
        **changes,
    }
    return kind(**attributes | changes)


_FAMILIES = (
    _family(
        _Luke,
        "luke",
        "Luke",
        make_keymap=_luke_keymap,
        fields=change_defaults(bert.BERT_FIELDS, vocab_size=50267, pad_token_id=1),
        fields_of_tensors=_luke_fields,
        ignored_keys="bert_model_name cls_entity_prediction entity_emb_size entity_vocab_size "
        "use_entity_aware_attention",
    ),
    _family(
        Family,
        "ibert",
        "IBert",
        make_keymap=_ibert_keymap,
        fields=change_defaults(bert.ENCODER_FIELDS, pad_token_id=1),
        unsupported=(
            *roberta.FAMILY.unsupported,
            ("quant_mode", (False, None), "it is computed without quantization"),
            ("hidden_act", ("gelu",), "the class has no other"),
        ),
        ignored_keys="force_dequant",
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}
