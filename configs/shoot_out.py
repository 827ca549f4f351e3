"""One small encoder under eight objectives, to be compared at equal FLOPs (scripts/shoot_out.py).

    bertjax pretrain --config shoot_out:rtd --workdir runs/rtd --config.data.sources='text:corpus/*.txt'

Objectives: mlm, whole_word, span (SpanBERT's, with the span-boundary loss), sop (mlm with sentence order), rtd
(ELECTRA's), plm (XLNet's, without memory), causal, hybrid (GPT-BERT's).

All share the encoder (four layers of 128 with rotary positions, norms before the blocks and gated feed-forward blocks:
it learns from context early), tokenizer, sequences, optimizer and schedule; only plm has relative positions, which its
two streams need. Learning rates are not tuned. Hardware and time: minutes on two CPU cores. Result: docs/results.md.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("mlm", "whole_word", "span", "sop", "rtd", "plm", "causal", "hybrid")


def get_config(objective: str = "mlm") -> ConfigDict:
    """The small encoder under one of `SIZES`, which are objectives here."""
    require_one_of("objective", objective, SIZES)
    config = base_config()
    config.model.preset = "bert-tiny"
    make_smoke(config)
    config.model.num_layers = 4
    config.model.intermediate_size = 384
    config.model.feed_forward = "glu"
    config.model.norm_placement = "pre"
    config.model.position_embedding = "none"
    config.model.attention_position = "rotary"
    config.model.max_position_embeddings = config.data.get_ref("seq_len")
    config.data.example_format = "sop_pairs" if objective == "sop" else "block"
    config.data.lowercase = False
    config.data.vocab_size = 8192
    config.train.num_steps = 1000
    config.train.batch_size = 64
    _OBJECTIVES.get(objective, lambda _: None)(config)
    return config


def _whole_word(config: ConfigDict) -> None:
    config.objective.masking.mask_unit = "whole_word"


def _span(config: ConfigDict) -> None:
    config.objective.masking.mask_unit = "span"
    config.objective.masking.mask_rounding = "ceil"
    config.objective.masking.replacement_unit = "span"
    config.objective.masking.random_token_distribution = "unigram"
    config.objective.mlm.span_boundary_weight = 1.0


def _rtd(config: ConfigDict) -> None:
    config.objective.name = "rtd"
    config.objective.masking.mask_token_rate = 0.85
    config.objective.masking.random_token_rate = 0.0
    config.generator.width_ratio = 0.25


def _plm(config: ConfigDict) -> None:
    config.objective.name = "plm"
    config.model.attention_position = "relative"
    config.model.attention_bias = "none"  # relative scores have biases of their own


def _causal(config: ConfigDict) -> None:
    config.objective.name = "clm"
    config.model.causal = True


def _hybrid(config: ConfigDict) -> None:
    config.objective.name = "mixture"
    config.objective.mixture.members = ("mlm@15", "clm@1")
    config.objective.mlm.masked_next_token = True


_OBJECTIVES = {
    "whole_word": _whole_word,
    "span": _span,
    "rtd": _rtd,
    "plm": _plm,
    "causal": _causal,
    "hybrid": _hybrid,
}
