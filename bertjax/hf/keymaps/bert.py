"""BERT under Hugging Face's names (transformers: models/bert/modeling_bert.py) and its config.json."""

from __future__ import annotations

from bertjax.config.model import EncoderConfig
from bertjax.hf.keymap import KeyMap
from bertjax.hf.keymaps import bert_names as names
from bertjax.hf.keymaps.family import ABSOLUTE_POSITIONS, ENCODER_ONLY, Family, axis_sizes, linear


def make_keymap(config: EncoderConfig, prefix: str = "bert", norms: names.NormNames = names.AFTER) -> KeyMap:
    """Returns the names of the parameters of a BERT, or of a family with its tensors.

    Args:
        config: the model.
        prefix: what the names begin with.
        norms: names of the norms.
    """
    return KeyMap(
        entries=(
            *names.embedding_entries(prefix, config),
            *names.layer_entries(prefix, config, norms),
            *linear("pooler/dense", f"{prefix}.pooler.dense", "D D", head="pooler"),
            *names.prediction_entries("cls.predictions", config, "D"),
            *linear("pair_head", "cls.seq_relationship", "D 2", head="pair"),
            *linear("sequence_head/output", "classifier", "D C", head="sequence_classification"),
            *names.choice_entries("classifier"),
            *names.token_head_entries(),
        ),
        sizes=axis_sizes(config),
        renames=((r"^(embeddings|encoder|pooler)\.", rf"{prefix}.\1."),),  # BertModel: no prefix
        ignored=names.BUFFERS,
        ties={
            "cls.predictions.decoder.weight": f"{prefix}.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        backbone=rf"^({prefix}|cls)\.",
    )


FAMILY = Family(
    name="bert",
    model_type="bert",
    make_keymap=make_keymap,
    # A file may hold more heads than its class (Google's BertForMaskedLM files have the pooler and the pair head).
    # BertModel may come without its pooler: `add_pooling_layer` is not in config.json.
    architectures={
        "BertForPreTraining": ("pooler", "mlm", "pair"),
        "BertForSequenceClassification": ("pooler", "sequence_classification"),
        "BertForMultipleChoice": ("pooler", "multiple_choice"),
        "BertForTokenClassification": ("token_classification",),
        "BertForQuestionAnswering": ("question_answering",),
        "BertForMaskedLM": ("mlm",),
        "BertForNextSentencePrediction": ("pooler", "pair"),
        "BertModel": (),
    },
    fields=names.BERT_FIELDS,
    structure={"initializer": "normal"},
    constants=names.BERT_CONSTANTS,
    unsupported=(*ABSOLUTE_POSITIONS, *ENCODER_ONLY),
    # Of the multilingual files; nothing reads them.
    ignored_keys="directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
    "pooler_type",
    prefix="bert.",
)
