"""Published folders whose classes are code of their authors: their config.json in the words of a family.

Their code is recognized by the names in `auto_map`, and never run; folders that MosaicML's Composer wrote have no
`auto_map`, and are recognized by keys. Names of tensors are translated by the keymap of the family. Any
other `auto_map` remains an error.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from typing import Any

from bertjax.errors import UserError, comma_list
from bertjax.hf.keymaps.family import Refusals
from bertjax.hf.safe_files import refuse

log = logging.getLogger(__name__)

Values = dict[str, Any]
_ABSENT = (False, None)
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")

# Read here, or of what changes no output: kernels, the form of matrices in memory, pooling, adapters of tasks.
_GTE_KEYS = """layer_norm_type logn_attention_clip1 logn_attention_scale pack_qkv position_embedding_type unpad_inputs
use_memory_efficient_attention"""
_JINA_V3_KEYS = """emb_pooler load_trained_adapters lora_adaptations lora_alpha lora_dropout_p
lora_main_params_trainable lora_prompts lora_rank matryoshka_dimensions position_embedding_type rotary_emb_base
task_instructions truncate_dim use_flash_attn use_reg_tokens"""
_FLEX_KEYS = """activation_function allow_embedding_resizing attention_layer attention_probs_dropout_prob attn_out_bias
attn_out_dropout_prob attn_qkv_bias bert_layer classifier_dropout compile_model deterministic_fa2 embed_dropout_prob
embed_norm embedding_layer encoder_layer final_norm gradient_checkpointing head_class_act head_class_bias
head_class_dropout head_class_norm head_pred_act head_pred_bias head_pred_dropout head_pred_norm hidden_act
hidden_dropout_prob init_cutoff_factor init_method init_small_embedding init_std initial_attention_layer
initial_bert_layer initial_mlp_layer local_attn_rotary_emb_base local_attn_rotary_emb_dim loss_function loss_kwargs
masked_prediction mlp_dropout_prob mlp_in_bias mlp_layer mlp_out_bias norm_kwargs normalization num_initial_layers
pad_logits padding pooling_type rotary_emb_base rotary_emb_base_local rotary_emb_dim rotary_emb_interleaved
rotary_emb_scale_base skip_first_prenorm sliding_window type_vocab_size unpad_embeddings use_fa2 use_sdpa_attn_mask"""

_FLEX_READ = """
attention_layer attention_probs_dropout_prob attn_out_bias attn_out_dropout_prob attn_qkv_bias bert_layer decoder_bias
embed_dropout_prob embed_norm embedding_layer final_norm global_attn_every_n_layers head_pred_act head_pred_bias
head_pred_dropout head_pred_norm hidden_act local_attn_rotary_emb_base mlp_dropout_prob mlp_in_bias
mlp_layer mlp_out_bias norm_kwargs normalization rotary_emb_base skip_first_prenorm sliding_window
"""
_FLEX_REFUSALS: Refusals = (
    ("attention_layer", ("rope",), "positions are rotations"),
    ("embedding_layer", ("sans_pos",), "positions are rotations"),
    ("bert_layer", ("prenorm",), "norms are before the blocks"),
    ("mlp_layer", ("glu",), "blocks are gated"),
    ("normalization", ("layernorm",), "norms are centered"),
    ("embed_norm", (True,), "embeddings have a norm"),
    ("final_norm", (True,), "the last layer is followed by a norm"),
    ("head_pred_norm", (True,), "the head has a norm"),
    ("skip_first_prenorm", (True,), "the attention of the first layer has no norm"),
    ("rotary_emb_dim", (None,), "whole heads are rotated"),
    ("local_attn_rotary_emb_dim", (None,), "whole heads are rotated"),
    ("rotary_emb_scale_base", (None,), "rotations are not scaled"),
    ("rotary_emb_interleaved", (False,), "halves of heads are rotated"),
    *((f"initial_{part}_layer", (None,), "all layers are of one kind") for part in ("attention", "bert", "mlp")),
)


@dataclasses.dataclass(frozen=True)
class Published:
    """Code of authors, whose folders bertjax reads.

    Attributes:
        model_type: regex of the key in their config.json; "" where it is absent.
        code: regex of all names in their `auto_map`.
        translate: config.json of a family in `transformers`, from (theirs without `auto_map`, file to name in errors).
        composer_keys: keys by which a config.json that Composer wrote is known to be theirs; () = none is.
    """

    model_type: str
    code: str
    translate: Callable[[Values, str], Values]
    composer_keys: tuple[str, ...] = ()


def translate_config(values: Values, where: str) -> Values:
    """Returns the config.json of a family where a folder names known code of authors, else what it holds.

    Args:
        values: config.json.
        where: the file to name in errors.

    Raises:
        UserError: the folder has a variant of the architecture that is not supported.
    """
    auto_map, kind = values.get("auto_map"), str(values.get("model_type", ""))
    if "auto_map" not in values:
        for known in PUBLISHED:
            if known.composer_keys and kind == known.model_type and values.keys() >= {*known.composer_keys}:
                return known.translate(values, where)
    if not isinstance(auto_map, dict) or not auto_map:
        return values
    lists = [each if isinstance(each, list) else [each] for each in auto_map.values()]
    names = [name for each in lists for name in each if name is not None]  # of a slow and a fast tokenizer, for example
    for known in PUBLISHED:
        if re.fullmatch(known.model_type, kind) and all(re.fullmatch(known.code, str(name)) for name in names):
            return known.translate({key: value for key, value in values.items() if key != "auto_map"}, where)
    return values


def _require(values: Values, where: str, *keys: str) -> None:
    """Refuses a file without these keys: the defaults of the authors' code are not those of `transformers`."""
    if missing := [key for key in keys if key not in values]:
        raise UserError(f"{where}: {comma_list(missing)} must be there, as in the published files")


def _rename_classes(values: Values, old: str, new: str) -> list[Any]:
    names = values.get("architectures")
    return [re.sub(f"^{old}", new, str(name)) for name in names] if isinstance(names, list) else []


def _without(values: Values, keys: str) -> Values:
    """Returns the values without keys that change nothing, separated by spaces."""
    return {key: value for key, value in values.items() if key not in keys.split()}


def _gte(values: Values, where: str) -> Values:
    """Alibaba-NLP/new-impl (arXiv:2407.19669); its NTK rescaling is a larger base and a linear rescaling.

    1 / ((s b)^(2i / d) s^(2 / d)) are the frequencies for a factor s.
    """
    _require(values, where, *_SIZES, "type_vocab_size", "layer_norm_eps", "rope_theta")
    for key, allowed, reason in (
        ("position_embedding_type", ("rope",), "positions are rotations"),
        ("layer_norm_type", ("layer_norm", None), "norms are centered"),
        ("logn_attention_scale", _ABSENT, "scores do not depend on the length"),
        ("hidden_act", ("gelu",), "blocks and head have one activation"),
    ):
        refuse(values, where, key, allowed, reason)
    result = {**values, "model_type": "gte", "architectures": _rename_classes(values, "New", "Gte")}
    if scaling := result.pop("rope_scaling", None):
        scaling = scaling if isinstance(scaling, dict) else {"type": scaling}
        refuse(scaling, f"{where}: rope_scaling", "type", ("ntk",), "the authors' code knows ntk alone")
        refuse(scaling, f"{where}: rope_scaling", "mixed_b", (None,), "one factor rescales all frequencies")
        numbers = [scaling.get("factor"), values["rope_theta"], values["hidden_size"], values["num_attention_heads"]]
        if not all(type(each) in (int, float) and each > 0 for each in numbers):
            raise UserError(f"{where}: rope_scaling, rope_theta and sizes must be positive numbers, not {numbers}")
        factor, base, width, heads = numbers
        if factor > 1:  # else the authors' code leaves the frequencies as they are
            linear = {"rope_type": "linear", "factor": factor ** (2.0 * heads / width)}
            result |= {"rope_theta": base * float(factor), "rope_scaling": linear}
    return _without(result, _GTE_KEYS)


def _jina_v3(values: Values, where: str) -> Values:
    """jinaai/xlm-roberta-flash-implementation (arXiv:2409.10173), without the adapters of tasks."""
    _require(values, where, *_SIZES, "type_vocab_size", "layer_norm_eps", "rotary_emb_base")
    refuse(values, where, "position_embedding_type", ("rotary",), "positions are rotations")
    refuse(values, where, "use_reg_tokens", _ABSENT, "there are no register tokens")
    if tasks := values.get("lora_adaptations"):
        log.warning("%s: the adapters of %s are not read: vectors are those without a task", where, comma_list(tasks))
    classes = _rename_classes(values, "XLMRobertaLoRA$", "XLMRobertaModel")
    result = {
        **values,
        "model_type": "jina_embeddings_v3",
        "architectures": _rename_classes({"architectures": classes}, "XLMRoberta", "JinaEmbeddingsV3"),
        "rope_theta": values["rotary_emb_base"],
    }
    return _without(result, _JINA_V3_KEYS)


def _gte_qwen2(values: Values, where: str) -> Values:
    """Alibaba-NLP/gte-Qwen2: Qwen 2, whose tokens see those after them where `is_causal` is false."""
    if type(values.get("is_causal")) is not bool:
        raise UserError(
            f"{where}: is_causal must be there: write false if tokens see those after them, as the authors' code "
            "decides, else true"
        )
    return values


def _alibi(values: Values, where: str) -> Values:
    """Refuses what neither code of BERTs with ALiBi has in common with the other."""
    _require(values, where, *_SIZES, "type_vocab_size", "layer_norm_eps")
    refuse(values, where, "hidden_act", ("gelu",), "the head and most blocks have the exact GELU")
    return _without(values, "position_embedding_type")


def _mosaic_bert(values: Values, where: str) -> Values:
    """mosaicml/examples: bert_layers.py; `alibi_starting_size` is the first length that biases are computed for."""
    refuse(values, where, "normalization", ("layernorm",), "norms are centered")
    refuse(values, where, "head_pred_act", ("gelu",), "the head has the exact GELU")
    inert = "alibi_starting_size allow_embedding_resizing deterministic_fa2 head_pred_act normalization"
    return {**_without(_alibi(values, where), inert), "model_type": "mosaic_bert"}


def _flex_bert(values: Values, where: str) -> Values:
    """ModernBERT as its authors trained it (AnswerDotAI/ModernBERT: src/bert_layers), the options that it has alone.

    The masked-LM class is assumed: `architectures` is that of the BERT whose config.json the run started from. Its
    layers read `hidden_act`, its head `head_pred_act`.
    """
    _require(values, where, *_SIZES, *_FLEX_READ.split())
    window, period = values["sliding_window"], values["global_attn_every_n_layers"]
    for key, allowed, reason in _FLEX_REFUSALS:
        refuse(values, where, key, allowed, reason)
    for key, other in (("attn_qkv_bias", "attn_out_bias"), ("mlp_in_bias", "mlp_out_bias")):
        refuse(values, where, key, (values[other],), f"{other} is {values[other]}")
    norms = {"eps": 1e-5, "bias": True} | values["norm_kwargs"]
    if norms.keys() != {"eps", "bias"}:
        raise UserError(f"{where}: norm_kwargs must have eps and bias alone, not {comma_list(values['norm_kwargs'])}")
    if window != -1 and period < 1:
        raise UserError(f"{where}: global_attn_every_n_layers must be at least 1, as layer 0 is global, not {period}")
    local = window != -1 and period > 1
    theta, local_theta = values["rotary_emb_base"], values["local_attn_rotary_emb_base"]
    if (rate := values["attn_out_dropout_prob"]) != values["attention_probs_dropout_prob"]:
        log.warning("%s: for its dropout of the output of attention set model.attention_output_dropout=%s", where, rate)
    return {
        **_without(values, _FLEX_KEYS),
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM"],
        "attention_bias": values["attn_out_bias"],
        "attention_dropout": values["attention_probs_dropout_prob"],
        "classifier_activation": values["head_pred_act"],
        "classifier_bias": values["head_pred_bias"],
        "classifier_dropout": values["head_pred_dropout"],
        "embedding_dropout": values["embed_dropout_prob"],
        "global_attn_every_n_layers": period if local else 1,
        **({"local_attention": window} if local else {}),
        "global_rope_theta": theta,
        "local_rope_theta": theta if local_theta in (None, -1) else local_theta,
        "hidden_activation": values["hidden_act"],
        "mlp_bias": values["mlp_in_bias"],
        "mlp_dropout": values["mlp_dropout_prob"],
        "norm_bias": norms["bias"],
        "norm_eps": norms["eps"],
    }


def _jina_v2(values: Values, where: str) -> Values:
    """jinaai/jina-bert-implementation; files of its masked-LM class may lack that head."""
    refuse(values, where, "position_embedding_type", ("alibi",), "positions are linear biases")
    refuse(values, where, "feed_forward_type", ("geglu", "reglu"), "known are geglu and reglu")
    _require(values, where, "feed_forward_type", "position_embedding_type")
    classes = _rename_classes(_alibi(values, where), "JinaBertForMaskedLM$", "JinaBertModel")
    return {
        **_without(_alibi(values, where), "attn_implementation emb_pooler feed_forward_type model_max_length"),
        "model_type": "jina_bert",
        "architectures": _rename_classes({"architectures": classes}, "Jina", ""),
        "hidden_act": {"geglu": "gelu", "reglu": "relu"}[values["feed_forward_type"]],
    }


def _norbert(values: Values, where: str) -> Values:
    """NorBERT 3: modeling_norbert.py of ltgoslo/norbench, which is the first version of LTG-BERT's code."""
    classes = _rename_classes(values, "Norbert", "LtgBert")
    return _ltg_bert({**values, "architectures": classes, "share_att_key": False}, where)


def _ltg_bert(values: Values, where: str) -> Values:
    """modeling_ltgbert.py, whose two versions read the projection of distances in different orders."""
    _require(values, where, *_SIZES, "layer_norm_eps", "max_position_embeddings", "position_bucket_size")
    if type(values.get("share_att_key")) is not bool:
        raise UserError(
            f"{where}: share_att_key must be there: write false if modeling_ltgbert.py splits the projection of the "
            "relative embedding by 2*self.head_size, true if by chunk(2, dim=-1)"
        )
    return {**values, "model_type": "ltg_bert"}


def _gpt_bert(values: Values, where: str) -> Values:
    """ltg/gpt-bert-babylm-*: modeling_ltgbert.py, whose class of a causal model has the tensors of the masked one."""
    _require(values, where, *_SIZES, "layer_norm_eps", "max_position_embeddings", "position_bucket_size")
    classes, causal = _rename_classes(values, "Ltgbert", "GptBert"), "GptBertForCausalLM"
    values = _without(values, "is_decoder" if causal in classes else "")  # which this class sets itself
    classes = _rename_classes({"architectures": classes}, causal, "GptBertForMaskedLM")
    return {**values, "architectures": classes, "model_type": "gpt_bert", "share_att_key": True}


def _nucleotide_transformer(values: Values, where: str) -> Values:
    """InstaDeepAI/nucleotide-transformer-v2-*: modeling_esm.py, the class of `transformers` with gated blocks."""
    _require(values, where, *_SIZES, "add_bias_fnn", "layer_norm_eps", "position_embedding_type")
    return {**values, "model_type": "nucleotide_transformer"}


PUBLISHED = (
    Published("new", r"([\w.-]+/[\w.-]+--)?(configuration\.NewConfig|modeling\.New\w+)", _gte),
    Published(
        "xlm-roberta",
        r"(jinaai/xlm-roberta-flash-implementation(-onnx)?--)?"
        r"(configuration_xlm_roberta\.XLMRobertaFlashConfig|modeling_(lora|xlm_roberta)\.XLMRoberta\w+)",
        _jina_v3,
    ),
    Published(
        "qwen2",
        r"(Alibaba-NLP/gte-Qwen[\w.-]+--)?(modeling_qwen\.Qwen2\w+|tokenization_qwen\.Qwen2Tokenizer(Fast)?)",
        _gte_qwen2,
    ),
    Published(
        "bert",
        r"((mosaicml|zhihan1996)/[\w.-]+--)?(configuration_bert\.BertConfig|bert_layers\.Bert\w+)",
        _mosaic_bert,
        composer_keys=("alibi_starting_size",),
    ),
    Published(
        r"\w*",
        r"(ltg/norbert3-[\w.-]+--)?(configuration_norbert\.NorbertConfig|modeling_norbert\.Norbert\w+)",
        _norbert,
    ),
    Published(
        r"\w*",
        r"(ltg/[\w.-]+--)?(configuration_ltgbert\.LtgBertConfig|modeling_ltgbert\.LtgBert\w+)",
        _ltg_bert,
    ),
    Published(
        r"\w*",
        r"(ltg/gpt-bert-[\w.-]+--)?(configuration_ltgbert\.LtgbertConfig|modeling_ltgbert\.Ltgbert\w+)",
        _gpt_bert,
    ),
    Published(
        "esm",
        r"(InstaDeepAI/nucleotide-transformer-v2-[\w.-]+--)?(esm_config\.EsmConfig|modeling_esm\.Esm\w+)",
        _nucleotide_transformer,
    ),
    Published("bert", "", _flex_bert, composer_keys=("bert_layer", "sliding_window", "global_attn_every_n_layers")),
    Published(
        "bert",
        r"(jinaai/jina-bert-implementation--)?(configuration_bert\.JinaBertConfig|modeling_bert\.JinaBert\w+)",
        _jina_v2,
    ),
)
