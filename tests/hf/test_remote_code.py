"""Exports with code of their own: random mixtures in a process without bertjax, against the same models in jax."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bertjax.config.fields import settings_of
from bertjax.config.model import ComputeConfig, EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf import save as save_module
from bertjax.hf.forward import run_model
from bertjax.hf.inputs import check_inputs
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models.model import HEADS
from bertjax.parity.compare import random_params

pytest.importorskip("torch")
pytest.importorskip("transformers")

LAB = Path(__file__).with_name("remote_code_lab.py")
TOLERANCE = 2e-5
VOCAB, BATCH, LENGTH = 41, 4, 11

# Values of the fields that have no choices; those with one value are the same in every mixture.
VALUES: dict[str, tuple[Any, ...]] = {
    "vocab_size": (VOCAB,),
    "hidden_size": (24,),
    "num_layers": (2, 3),
    "num_heads": (2, 4),
    "num_key_value_heads": (None, 1, 2),
    "head_size": (None, 10),
    "intermediate_size": (20,),
    "embedding_size": (None, 14),
    "max_position_embeddings": (16,),
    "position_offset": (0, 3),
    "type_vocab_size": (0, 2, 3),
    "global_rope_theta": (10_000.0, 50.0),
    "local_rope_theta": (10_000.0, 20.0),
    "pos_att_type": ((), ("c2p",), ("p2c", "c2p")),
    "position_buckets": (0, 4),
    "max_relative_positions": (None, 9),
    "clamp_len": (-1, 4),
    "relative_attention_num_buckets": (8,),
    "relative_attention_max_distance": (9,),
    "conv_kernel_size": (0, 3),
    "conv_act": ("gelu", "tanh"),
    "pooler_act": ("tanh", "silu"),
    "classifier_act": ("tanh", "relu"),
    "local_attention": (0, 4),
    "global_attn_every_n_layers": (1, 2),
    "layer_norm_eps": (1e-12, 1e-3),
    "num_groups": (None, 1, 2),
    "inner_layers": (1, 2),
    "pad_token_id": (2,),
    "mlm_act": (None, "relu"),
    "span_positions": (6,),
    "span_position_size": (5,),
    "labels": (("LABEL_0", "LABEL_1"), ("x", "y", "z")),
}
# Fields that change no output of the exported classes, with the reason.
UNREAD = {
    "mem_len": "no memory between calls",
    "reuse_len": "no memory between calls",
    "initializer": "only normal draws of new heads",
    "scale_residual_init": "only normal draws of new heads",
}
NEVER_READ = {("global_attn_every_n_layers", 1)}
UNDRAWN = {*UNREAD, "family", "initializer_range", *(name for name in settings_of(EncoderConfig) if "dropout" in name)}
FIELDS = {name: each for name, each in settings_of(EncoderConfig).items() if name not in settings_of(ComputeConfig)}


def values_of(name: str) -> tuple[Any, ...]:
    field = FIELDS[name]
    return VALUES.get(name) or ((False, True) if field.kind is bool else tuple(field.choices))


def draw_config(seed: int) -> EncoderConfig | None:
    """Returns a random mixture; None if the draw cannot be built."""
    draw = random.Random(seed)
    values = {name: draw.choice(values_of(name)) for name in FIELDS if name not in UNDRAWN}
    drawn = types.SimpleNamespace(**values)
    unread = [name for name in values if (read_if := FIELDS[name].read_if) is not None and not read_if(drawn)]
    values |= {name: FIELDS[name].default for name in unread}
    if values["mlm_head"] != "transform":
        values["embedding_size"] = None
    if values["pooling"] == "last":
        values["rtd_head"] = "dense"  # "summary" reads the first token
    try:
        return EncoderConfig(**values, family="bertjax", padded_vocab_size=VOCAB + 7)
    except UserError:
        return None


def aspects(config: EncoderConfig) -> set[tuple[str, Any]]:
    """Returns the (field, value) pairs that the model reads."""
    read = {name for name, each in FIELDS.items() if each.read_if is None or each.read_if(config)}
    return {(name, getattr(config, name)) for name in read - UNDRAWN}


def mixtures() -> list[EncoderConfig]:
    """Returns random mixtures that together have every value of every field."""
    draws = [(config, aspects(config)) for config in map(draw_config, range(3000)) if config is not None]
    chosen: list[EncoderConfig] = []
    missing = {(name, value) for name in FIELDS if name not in UNDRAWN for value in values_of(name)} - NEVER_READ
    while missing:
        config, values = max(draws, key=lambda draw: len(draw[1] & missing))
        assert values & missing, f"no draw has {missing}"
        chosen.append(config)
        missing -= values
    return chosen


def test_every_field_of_the_encoder_is_in_the_code() -> None:
    from bertjax.hf.remote_code.configuration_bertjax import BertjaxConfig

    theirs = {name: getattr(BertjaxConfig, name) for name in vars(BertjaxConfig)["__annotations__"]}
    ours = {name: each.default for name, each in FIELDS.items() if name not in ("family", "labels")}
    assert theirs == {**ours, "heads": (), "use_cache": False}
    code = b"".join(native_format.code_files().values()).decode()
    read = set(re.findall(r"config\.(\w+)", code)) | set(re.findall(r'rate\("(\w+)"\)', code))
    read |= set(re.findall(r"self\.(\w+)", native_format.code_files()["configuration_bertjax.py"].decode()))
    assert ours.keys() - read == {*UNREAD, "tie_word_embeddings"} & ours.keys()


def make_batch(config: EncoderConfig, seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed).integers
    mask = (np.arange(LENGTH)[None] < np.array([LENGTH, 6, 9, 1])[:, None]).astype(np.int64)
    mask = mask[:, ::-1].copy() if config.pooling == "last" else mask  # the last token is real
    ids = draw(config.pad_token_id + 1, VOCAB, (BATCH, LENGTH))
    batch = {"input_ids": np.where(mask > 0, ids, config.pad_token_id), "attention_mask": mask}
    if config.type_vocab_size or config.relative_segments:
        batch["token_type_ids"] = draw(0, config.type_vocab_size or 2, (BATCH, LENGTH))
    return batch


OUTPUT_NAMES = {
    "AutoModel/sdpa/last_hidden_state": "last_hidden_state",
    "AutoModel/sdpa/pooler_output": "pooler_output",
    "AutoModelForPreTraining/sdpa/seq_relationship_logits": "pair_logits",
    "AutoModelForPreTraining/sdpa/prediction_logits": "mlm_logits",
    "AutoModelForPreTraining/sdpa/replaced_token_logits": "rtd_logits",
    "AutoModelForSequenceClassification/sdpa/logits": "sequence_logits",
    "AutoModelForTokenClassification/sdpa/logits": "token_logits",
    "AutoModelForQuestionAnswering/sdpa/start_logits": "start_logits",
    "AutoModelForQuestionAnswering/sdpa/end_logits": "end_logits",
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[EncoderConfig]]]:
    """Exports every mixture, and runs all of them in one process."""
    folder, configs = tmp_path_factory.mktemp("remote") / "exports", mixtures()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save_module, "verify_export", lambda *_, **__: None)
        for index, config in enumerate(configs):
            save_pretrained(folder / f"{index:02d}", random_params(config, HEADS, index), config, heads=HEADS)
            np.savez(folder / f"{index:02d}" / "inputs.npz", **make_batch(config, index))
    environment = {**os.environ, "HF_HOME": str(folder.parent / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-P", str(LAB), str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    yield folder, configs


def test_mixtures_in_a_process_without_bertjax(exports: tuple[Path, list[EncoderConfig]]) -> None:
    folder, configs = exports
    assert len(configs) >= 6
    worst = {}
    jax.config.update("jax_disable_most_optimizations", True)
    for index, config in enumerate(configs):
        model = load_pretrained(folder / f"{index:02d}")
        assert model.config == dataclasses.replace(config, padded_vocab_size=None)
        batch = make_batch(config, index)
        with np.load(folder / f"{index:02d}" / "outputs.npz") as outputs:
            for padding in ("none", "some"):
                mask = None if padding == "none" else batch["attention_mask"]
                inputs = check_inputs(config, HEADS, batch["input_ids"], mask, batch.get("token_type_ids"))
                out = run_model(model.config, HEADS, model.params, inputs, output_hidden_states=True)
                real = np.ones((BATCH, LENGTH), bool) if mask is None else mask > 0
                for name, ours in expected(config, out, real).items():
                    if "/eager/" in name and index >= 4:
                        continue
                    theirs = outputs[f"{padding}/{name}"]
                    gap = np.abs(ours - theirs)[real] if theirs.shape[:2] == real.shape else np.abs(ours - theirs)
                    worst[index, padding, name] = float(gap.max())
    jax.config.update("jax_disable_most_optimizations", False)
    wrong = {key: gap for key, gap in worst.items() if not gap <= TOLERANCE}
    assert not wrong, wrong


def expected(config: EncoderConfig, out: Any, real: np.ndarray) -> dict[str, np.ndarray]:
    language = "AutoModelForCausalLM" if config.causal else "AutoModelForMaskedLM"
    names = {**OUTPUT_NAMES, f"{language}/sdpa/logits": "mlm_logits"}
    names["AutoModel/eager/last_hidden_state"] = "last_hidden_state"
    states = {f"AutoModel/sdpa/hidden_states[{i}]": np.asarray(each) for i, each in enumerate(out.hidden_states)}
    return {name: np.asarray(getattr(out, field)) for name, field in names.items()} | states


def test_what_transformers_saves_again_is_read(exports: tuple[Path, list[EncoderConfig]]) -> None:
    folder, configs = exports
    for index in range(2):
        name, config = f"{index:02d}", dataclasses.replace(configs[index], padded_vocab_size=None)
        values = json.loads((folder.parent / f"again-{name}" / "config.json").read_text())
        assert values["auto_map"]["AutoModelForTokenClassification"].endswith("BertjaxForTokenClassification")
        files = {path.name for path in (folder.parent / f"again-{name}").iterdir()}
        assert files >= native_format.code_files().keys()
        again, bare, five = (load_pretrained(folder.parent / f"{kind}-{name}") for kind in ("again", "bare", "five"))
        assert again.config == config and again.heads == HEADS[:5]
        assert bare.config == config and bare.heads == ("pooler",)
        assert five.config.num_labels == 5 and "sequence_classification" in five.heads
