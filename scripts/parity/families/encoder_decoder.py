"""Encoder-decoders: (m)BART and its variants, Pegasus, Marian, M2M-100, (m)T5, and `EncoderDecoderModel`s."""

from __future__ import annotations

from typing import Any

from parity.cases import Case

_NETWORKS = dict(
    vocab_size=83,
    d_model=30,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=3,
    decoder_attention_heads=5,
    encoder_ffn_dim=31,
    decoder_ffn_dim=37,
    max_position_embeddings=23,
)
_T5 = dict(
    vocab_size=83,
    d_model=30,
    d_kv=7,
    d_ff=31,
    num_heads=3,
    num_layers=2,
    num_decoder_layers=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=11,
    decoder_start_token_id=0,
)


def _pair(model_type: str, **others: Any) -> dict[str, Any]:
    sizes = dict(model_type=model_type, hidden_size=30, intermediate_size=31, max_position_embeddings=26, vocab_size=83)
    decoder = dict(num_hidden_layers=3, num_attention_heads=5, is_decoder=True, add_cross_attention=True)
    return dict(
        encoder=sizes | dict(num_hidden_layers=2, num_attention_heads=3),
        decoder=sizes | decoder | others,
        decoder_start_token_id=2,
        pad_token_id=0,
    )


# fmt: off
CASES = (
    Case("bart", "other heads and widths in the decoder, scaled embeddings", "BartConfig",
         _NETWORKS | dict(scale_embedding=True), ("BartForConditionalGeneration",)),
    Case("mbart", "pre-norm, other heads and widths in the decoder", "MBartConfig",
         _NETWORKS | dict(decoder_start_token_id=2), ("MBartForConditionalGeneration",)),
    Case("mvp", "SiLU, scaled embeddings", "MvpConfig",
         _NETWORKS | dict(activation_function="silu", scale_embedding=True), ("MvpForConditionalGeneration",)),
    Case("plbart", "embeddings that are not scaled", "PLBartConfig", _NETWORKS | dict(scale_embedding=False),
         ("PLBartForConditionalGeneration",)),
    Case("blenderbot", "pre-norm, ReLU, scaled embeddings", "BlenderbotConfig",
         _NETWORKS | dict(activation_function="relu", scale_embedding=True), ("BlenderbotForConditionalGeneration",)),
    Case("blenderbot-small", "the decoder norms its words alone, scaled embeddings", "BlenderbotSmallConfig",
         _NETWORKS | dict(scale_embedding=True), ("BlenderbotSmallForConditionalGeneration",)),
    Case("pegasus", "pre-norm, sinusoids, ReLU, scaled embeddings", "PegasusConfig",
         _NETWORKS | dict(activation_function="relu", scale_embedding=True), ("PegasusForConditionalGeneration",)),
    Case("m2m_100", "pre-norm, sinusoids after pad id 4, SiLU", "M2M100Config",
         _NETWORKS | dict(activation_function="silu", pad_token_id=4), ("M2M100ForConditionalGeneration",),
         left_padding=True),
    Case("marian", "swish, one vocabulary", "MarianConfig",
         _NETWORKS | dict(activation_function="swish", pad_token_id=82, decoder_start_token_id=82),
         ("MarianMTModel",)),
    Case("marian", "ReLU, two vocabularies", "MarianConfig",
         _NETWORKS | dict(activation_function="relu", decoder_vocab_size=71, share_encoder_decoder_embeddings=False,
                        pad_token_id=70, decoder_start_token_id=70, scale_embedding=True),
         ("MarianMTModel",)),
    Case("t5", "v1.0: ReLU, scaled logits, distances in shared buckets", "T5Config", _T5,
         ("T5ForConditionalGeneration",)),
    # transformers 5 writes tie_word_embeddings = true for both versions
    Case("t5", "v1.1: gated GELU, a table of the output", "T5Config",
         _T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, initializer_factor=0.3),
         ("T5ForConditionalGeneration",), unwritten=("tie_word_embeddings",)),
    Case("mt5", "gated SiLU", "MT5Config", _T5 | dict(feed_forward_proj="gated-silu", initializer_factor=0.3),
         ("MT5ForConditionalGeneration",), unwritten=("tie_word_embeddings",)),
    Case("encoder-decoder", "BERTs, a deeper decoder with a smaller vocabulary", "EncoderDecoderConfig",
         _pair("bert", vocab_size=71), ("EncoderDecoderModel",)),
    Case("encoder-decoder", "RoBERTas", "EncoderDecoderConfig", _pair("roberta", pad_token_id=0),
         ("EncoderDecoderModel",)),
)
# fmt: on
