"""BART, mBART, Marian and Pegasus under Hugging Face's names (transformers: models/bart): one layout of tensors.

BART has learned positions after two unused rows and a norm of the embeddings; Marian has sinusoids and no norm, and may
have two vocabularies. mBART (arXiv:2001.08210) and Pegasus (arXiv:1912.08777) are their pre-norm forms.
`final_logits_bias`, a buffer there, is the bias of the output here, and is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.hf.encoder_decoder.family import EncoderDecoderFamily, Values, joint_axis_sizes, network_entries
from bertjax.hf.keymap import Entry, KeyMap, Tensors
from bertjax.hf.keymaps.family import (
    Activation,
    Fields,
    change_defaults,
    linear,
    norm,
    parse_fields,
    render_fields,
    table,
)
from bertjax.hf.safe_files import JsonKeys, refuse
from bertjax.models.rope import sinusoids

FIELDS: Fields = {
    "vocab_size": ("vocab_size", 50265, int),
    "d_model": ("hidden_size", 1024, int),
    "max_position_embeddings": ("max_position_embeddings", 1024, int),
    "activation_function": ("hidden_act", "gelu", Activation),
    "dropout": ("hidden_dropout", 0.1, float),
    "attention_dropout": ("attention_dropout", 0.0, float),
    "activation_dropout": ("activation_dropout", 0.0, float),
    "init_std": ("initializer_range", 0.02, float),
    "scale_embedding": ("embedding_scale", False, bool),
    "pad_token_id": ("pad_token_id", 1, int),
}
NETWORK: Values = {
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "mlm_head": "bias",
    "initializer": "normal",
    "classifier_dense": "own",
}
STRUCTURE: Values = {"family": "bertjax"} | NETWORK
_BART: Values = STRUCTURE | {"position_offset": 2}
_MARIAN: Values = STRUCTURE | {"position_embedding": "sinusoidal", "embedding_norm": "none"}
_MARIAN_FIELDS = change_defaults(FIELDS, vocab_size=58101, pad_token_id=58100)
PRE_NORM: Values = {"norm_placement": "pre"}
INERT = """
add_bias_logits add_final_layer_norm attention_bias classif_dropout classifier_dropout decoder_layerdrop
do_blenderbot_90_layernorm encoder_layerdrop extra_pos_embeddings force_bos_token_to_be_generated gradient_checkpointing
layernorm_variant num_hidden_layers output_past save_step static_position_embeddings
"""


def network_fields(network: str) -> Fields:
    """Returns the keys that are fields of one network, encoder or decoder."""
    return {
        f"{network}_layers": ("num_layers", 12, int),
        f"{network}_attention_heads": ("num_heads", 16, int),
        f"{network}_ffn_dim": ("intermediate_size", 4096, int),
    }


def parse_encoder_decoder(
    values: JsonKeys, shared: Fields, structure: Values, where: str, **defaults: int
) -> EncoderDecoderConfig:
    """Returns the model of a config.json.

    Args:
        values: config.json.
        shared: keys that are fields of encoder and decoder.
        structure: fields that every model of the family has.
        where: the file to name in errors.
        **defaults: other defaults of keys of one network, such as `decoder_layers`.
    """
    refuse(values, where, "tie_word_embeddings", (True, None), "the output table is the decoder's word table")
    require_norms(values, structure, where)
    common = structure | parse_fields(values, shared, where)
    encoder, decoder = (
        EncoderConfig(**common | parse_fields(values, change_defaults(network_fields(network), **defaults), where))
        for network in ("encoder", "decoder")
    )
    return EncoderDecoderConfig(encoder, decoder.as_decoder(encoder))


def require_norms(values: Mapping[str, Any], structure: Values, where: str) -> None:
    """Raises `UserError` for another order of norms than that of the class. Args: as of `parse_encoder_decoder`."""
    pre_norm, embedding_norm = "norm_placement" in structure, "embedding_norm" not in structure
    order = f"norms {'precede' if pre_norm else 'follow'} the blocks"
    for key, allowed, reason in (
        ("normalize_before", (pre_norm,), order),
        ("add_final_layer_norm", (pre_norm,), order),
        ("normalize_embedding", (embedding_norm,), "the embeddings of this class decide it"),
    ):
        refuse(values, where, key, allowed, reason)


def render_encoder_decoder(config: EncoderDecoderConfig, shared: Fields) -> Values:
    """Returns the config.json of a model; `shared` are keys that are fields of encoder and decoder."""
    networks = {"encoder": config.encoder, "decoder": config.decoder}
    return {
        **render_fields(config.encoder, shared),
        **{
            key: value
            for name, each in networks.items()
            for key, value in render_fields(each, network_fields(name)).items()
        },
        "tie_word_embeddings": True,
    }


def make_keymap(config: EncoderDecoderConfig) -> KeyMap:
    """Returns the names of the parameters."""
    shares = config.sharing == "embeddings"
    table_name = {
        network: "model.shared" if shares else f"model.{network}.embed_tokens" for network in ("encoder", "decoder")
    }
    bias = Entry("decoder/mlm_head/bias", "final_logits_bias", "v", "row")
    copies = {"lm_head.weight": f"{table_name['decoder']}.weight"}
    if shares:
        copies |= {f"model.{network}.embed_tokens.weight": "model.shared.weight" for network in table_name}
    return KeyMap(
        entries=(
            *network_entries(_entries(config.encoder, "encoder", table_name["encoder"]), "encoder"),
            *network_entries(_entries(config.decoder, "decoder", "" if shares else table_name["decoder"]), "decoder"),
            *([bias] if config.decoder.mlm_head == "bias" else []),
        ),
        sizes=joint_axis_sizes(config),
        renames=((r"^(shared|encoder|decoder)\.", r"model.\1."),),  # of the class without an output
        ignored=(r"^(model\.)?(encoder|decoder)\.version$",),
        computed=_sinusoids(config) if config.encoder.position_embedding == "sinusoidal" else {},
        ties=copies,
    )


def _entries(config: EncoderConfig, network: str, table_name: str) -> tuple[Entry, ...]:
    param, tensor, embeddings = "encoder/layers/{L}", f"model.{network}.layers.{{L}}", "encoder/embeddings"
    has_norm, learned = config.embedding_norm != "none", config.position_embedding == "learned"
    return (
        *(table(f"{embeddings}/word_embeddings", table_name, "V D") if table_name else ()),
        *(table(f"{embeddings}/position_embeddings", f"model.{network}.embed_positions", "P D") if learned else ()),
        *(norm(f"{embeddings}/norm", f"model.{network}.layernorm_embedding", config) if has_norm else ()),
        *_attention(f"{param}/attention", f"{tensor}.self_attn", config, "D"),
        *(_attention(f"{param}/cross_attention", f"{tensor}.encoder_attn", config, "Q") if config.causal else ()),
        *linear(f"{param}/feed_forward/intermediate", f"{tensor}.fc1", "D F"),
        *linear(f"{param}/feed_forward/output", f"{tensor}.fc2", "F D"),
        *norm(f"{param}/feed_forward/norm", f"{tensor}.final_layer_norm", config),
        *(norm("encoder/norm", f"model.{network}.layer_norm", config) if config.norm_placement == "pre" else ()),
    )


def _attention(param: str, tensor: str, config: EncoderConfig, source: str) -> tuple[Entry, ...]:
    return (
        *linear(f"{param}/query", f"{tensor}.q_proj", "D A"),
        *linear(f"{param}/key", f"{tensor}.k_proj", f"{source} A"),
        *linear(f"{param}/value", f"{tensor}.v_proj", f"{source} A"),
        *linear(f"{param}/output", f"{tensor}.out_proj", "A D"),
        *norm(f"{param}/norm", f"{tensor}_layer_norm", config),
    )


def _parse_marian(values: JsonKeys, where: str) -> EncoderDecoderConfig:
    config = parse_encoder_decoder(values, _MARIAN_FIELDS, _MARIAN, where)
    size = values.get("decoder_vocab_size") or config.encoder.vocab_size
    if values.get("share_encoder_decoder_embeddings", True):
        return config
    decoder = dataclasses.replace(config.decoder, vocab_size=size)
    return dataclasses.replace(config, decoder=decoder, sharing="none")


def _render_marian(config: EncoderDecoderConfig) -> Values:
    vocabularies: dict[str, Any] = {
        "decoder_vocab_size": config.decoder.vocab_size,
        "share_encoder_decoder_embeddings": config.sharing == "embeddings",
    }
    return render_encoder_decoder(config, _MARIAN_FIELDS) | vocabularies


BART = EncoderDecoderFamily(
    name="bart",
    architecture="BartForConditionalGeneration",
    headless="BartModel",
    parse=lambda values, where: parse_encoder_decoder(values, FIELDS, _BART, where),
    render=lambda config: render_encoder_decoder(config, FIELDS),
    make_keymap=make_keymap,
    ignored_keys=INERT,
    objective="infilling",
)
MARIAN = EncoderDecoderFamily(
    name="marian",
    architecture="MarianMTModel",
    headless="MarianModel",
    parse=_parse_marian,
    render=_render_marian,
    make_keymap=make_keymap,
    ignored_keys=INERT,
)
MBART = dataclasses.replace(
    BART,
    name="mbart",
    architecture="MBartForConditionalGeneration",
    headless="MBartModel",
    parse=lambda values, where: parse_encoder_decoder(values, FIELDS, _BART | PRE_NORM, where),
)


def _sinusoids(config: EncoderDecoderConfig) -> Tensors:
    """Returns the position tables; files of Pegasus hold them, those of Marian may."""
    positions = jnp.arange(config.encoder.max_position_embeddings)
    tables = np.asarray(sinusoids(positions, config.encoder.hidden_size), np.float32)
    return {f"model.{network}.embed_positions.weight": tables for network in ("encoder", "decoder")}


_PEGASUS_FIELDS = change_defaults(FIELDS, pad_token_id=0)
PEGASUS = dataclasses.replace(
    BART,
    name="pegasus",
    architecture="PegasusForConditionalGeneration",
    headless="PegasusModel",
    parse=lambda values, where: parse_encoder_decoder(values, _PEGASUS_FIELDS, _MARIAN | PRE_NORM, where),
    stores_computed=True,
    objective="",
)
