"""Lists which models of `transformers` bertjax reads.

    python scripts/model_types.py --out types.md

Types are those with a class for masked tokens, vectors, choices, answers, tags or targets. Each is built at toy size
with random weights, saved, read by bertjax, and run by both on two rows. The types come from the mappings of the
installed `transformers`, so that a new release shows its new ones. Prints one line per type: loads and agrees, loads
and differs, or the reason of the refusal.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.auto import modeling_auto

import bertjax
from bertjax.errors import UserError, one_line

MAPPINGS = (
    "MASKED_LM",
    "TEXT_ENCODING",
    "MULTIPLE_CHOICE",
    "QUESTION_ANSWERING",
    "TOKEN_CLASSIFICATION",
    "SEQ_TO_SEQ_CAUSAL_LM",
)
TOLERANCE = 5e-5
# Sizes by the names that configs use for them; a config takes those that it has.
SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "d_model": 32,
    "dim": 32,
    "emb_dim": 32,
    "n_embd": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layers": 2,
    "n_layer": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_heads": 4,
    "n_head": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "d_kv": 8,
    "d_head": 8,
    "intermediate_size": 48,
    "d_inner": 48,
    "d_ff": 48,
    "hidden_dim": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "default_language": "en_XX",
    "enable_shape": False,  # the shapes and sounds of RoCBert's tokens are in files of its tokenizer
    "enable_pronunciation": False,
}
SIZES_OF: dict[str, dict[str, Any]] = {"mobilebert": {"embedding_size": 16}}
READ_PADDING = ("convbert", "mobilebert")  # in transformers, but not here: compared without any
ROWS, LENGTH = 2, 11


@dataclasses.dataclass(frozen=True)
class Result:
    """Outcome of a type: `loads`, `differs`, `refused` or `not built`, with the class and the reason."""

    model_type: str
    outcome: str
    architecture: str = ""
    reason: str = ""


def model_types() -> list[str]:
    """Returns the types with a class of `MAPPINGS`."""
    names = (getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES") for name in MAPPINGS)
    return sorted({model_type for mapping in names for model_type in mapping})


def build(model_type: str) -> Any:
    """Returns a small random model, with the head for masked tokens where there is one."""
    default = transformers.AutoConfig.for_model(model_type)
    if {"text_config", "vision_config", "audio_config"} & {*default.sub_configs}:
        raise ValueError("a composite of several models, whose sizes are in configs of their own")
    values = _sizes(default)
    encoder = modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.get(model_type)
    if {"encoder", "decoder"} <= {*default.sub_configs}:
        values |= {name: _sizes(getattr(default, name)) for name in ("encoder", "decoder")}
        values["is_encoder_decoder"] = encoder is None
    pad_id = getattr(default, "pad_token_id", None)
    if pad_id is None or not 0 <= pad_id < SIZES["vocab_size"]:
        values["pad_token_id"] = 0
    config = transformers.AutoConfig.for_model(model_type, **values)
    torch.manual_seed(0)
    has_head = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    has_decoder = model_type in modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    alone = transformers.AutoModelForSeq2SeqLM if has_decoder else transformers.AutoModel
    auto = transformers.AutoModelForMaskedLM if has_head else alone
    model = getattr(transformers, encoder)(config) if encoder and not has_head else auto.from_config(config)
    for parameter in (each for each in model.parameters() if each.requires_grad):  # not RoFormer's table of positions
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def _sizes(config: Any) -> dict[str, Any]:
    values = SIZES | SIZES_OF.get(config.model_type, {})
    return {name: value for name, value in values.items() if hasattr(config, name)}


def check(model_type: str) -> Result:
    """Builds a type, reads it, and compares the first output."""
    try:
        model = build(model_type)
    except Exception as error:  # whatever a config of this size breaks in the library
        return Result(model_type, "not built", reason=f"{type(error).__name__}: {one_line(error)[:90]}")
    name = type(model).__name__
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        try:
            ours: Any = bertjax.load_pretrained(folder)
        except UserError as error:
            return Result(model_type, "refused", name, one_line(error).replace(folder, "")[:160])
        ids = np.random.default_rng(0).integers(5, 99, (ROWS, LENGTH))
        mask = np.ones_like(ids)
        mask[1, -3:] = model_type in READ_PADDING
        with torch.no_grad():
            inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            if hasattr(ours.config, "decoder"):
                inputs["decoder_input_ids"] = inputs["input_ids"][:, :5]
            output = model(**inputs)
        theirs = output.logits if "logits" in output else output.last_hidden_state
        actual: Any = ours(*(np.asarray(each) for each in inputs.values()))
        mine = np.asarray(actual.logits if "logits" in output else actual.last_hidden_state)
        real = slice(None) if hasattr(ours.config, "decoder") else mask.astype(bool)
        difference = float(np.abs(mine[real] - theirs.numpy()[real]).max())
    outcome = "loads" if difference < TOLERANCE else "differs"
    return Result(model_type, outcome, name, f"largest difference {difference:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="types to check (default: all)")
    parser.add_argument("--out", type=Path, help="a file for the table")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    results = []
    for model_type in options.types or model_types():
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            results.append(check(model_type))
        print(" | ".join(dataclasses.astuple(results[-1])), flush=True)
    counts = Counter(each.outcome for each in results)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()), f"of {len(results)}")
    if options.out is not None:
        rows = ["| type | outcome | class | reason |", "| --- | --- | --- | --- |"]
        rows += [f"| {' | '.join(dataclasses.astuple(each))} |" for each in results]
        options.out.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
