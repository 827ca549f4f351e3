"""Published folders whose classes are code of their authors: their config.json in the words of a family.

Their code is recognized by the names in `auto_map`, and never run. Names of tensors are translated by the keymap of the
family. Any other `auto_map` remains an error.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from typing import Any

from bertjax.errors import UserError, comma_list
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


@dataclasses.dataclass(frozen=True)
class Published:
    """Code of authors, whose folders bertjax reads.

    Attributes:
        model_type: value of the key in their config.json.
        code: regex of all names in their `auto_map`.
        translate: config.json of a family in `transformers`, from (theirs without `auto_map`, file to name in errors).
    """

    model_type: str
    code: str
    translate: Callable[[Values, str], Values]


def translate_config(values: Values, where: str) -> Values:
    """Returns the config.json of a family where a folder names known code of authors, else what it holds.

    Args:
        values: config.json.
        where: the file to name in errors.

    Raises:
        UserError: the folder has a variant of the architecture that is not supported.
    """
    auto_map = values.get("auto_map")
    if not isinstance(auto_map, dict) or not auto_map:
        return values
    lists = [each if isinstance(each, list) else [each] for each in auto_map.values()]
    names = [name for each in lists for name in each if name is not None]  # of a slow and a fast tokenizer, for example
    for known in PUBLISHED:
        if values.get("model_type") == known.model_type and all(re.fullmatch(known.code, str(name)) for name in names):
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
    return {**_without(_alibi(values, where), "alibi_starting_size"), "model_type": "mosaic_bert"}


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
    ),
    Published(
        "bert",
        r"(jinaai/jina-bert-implementation--)?(configuration_bert\.JinaBertConfig|modeling_bert\.JinaBert\w+)",
        _jina_v2,
    ),
)
