"""Exports with remote code: random mixtures in a process without bertjax, against the same models in jax."""

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
from parity.compare import random_params
from safetensors import safe_open

from bertjax.config.fields import settings_of
from bertjax.config.model import ComputeConfig, EncoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf import save as save_module
from bertjax.hf.forward import check_inputs, run_model
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.hf.sentence_transformers import Pooling, pool, save_sentence_transformers, scale_to_unit_length
from bertjax.models.model import HEADS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAB = Path(__file__).with_name("remote_code_lab.py")
TOLERANCE = 2e-5
VOCAB, BATCH, LENGTH = 41, 4, 11

WORDS = ["[UNK]", "[MASK]", "[PAD]", *"abcdefghijklmnopqrstuvwxyz"]


def tokenizer_files() -> dict[str, bytes]:
    """Returns the files of a tokenizer of letters, without special tokens around a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(WORDS[:3])
    names = {"unk_token": "[UNK]", "mask_token": "[MASK]", "pad_token": "[PAD]", "model_max_length": 16}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}


TOKENIZER_FILES = tokenizer_files()

# Values of the fields that have no choices; those with one value are the same in every mixture.
VALUES: dict[str, tuple[Any, ...]] = {
    "vocab_size": (VOCAB,),
    "hidden_size": (24,),
    "num_layers": (2, 3),
    "num_heads": (2, 4),
    "num_key_value_heads": (None, 1, 2),
    "head_size": (None, 10),
    "intermediate_size": (20,),
    "adapter_size": (None, 6),
    "bottleneck_size": (None, 12),
    "num_feedforward_networks": (1, 3),
    "embedding_ngram": (None, 1, 3),
    "attention_groups": (1, 2),
    "feed_forward_groups": (1, 4),
    "adapter_language": (None, "de_DE"),
    "embedding_size": (None, 14),
    "output_embedding_size": (None, 18),
    "prediction_head_size": (None, 15),
    "max_position_embeddings": (16,),
    "position_offset": (0, 3),
    "type_vocab_size": (0, 2, 3),
    "global_rope_theta": (10_000.0, 50.0),
    "local_rope_theta": (10_000.0, 20.0),
    "rope_factor": (1.0, 3.0),
    "rope_original_length": (7,),
    "rope_slow_turns": (1.0, 0.5),
    "rope_fast_turns": (32.0, 4.0),
    "rope_attention_factor": (1.0, 1.2),
    "rope_short_factors": ((1.0, 2.0, 3.0, 4.0, 5.0),),
    "rope_long_factors": ((1.5, 2.5, 3.5, 4.5, 5.5),),
    "pos_att_type": ((), ("c2p",), ("p2c", "c2p")),
    "position_buckets": (0, 4),
    "max_relative_positions": (None, 9),
    "clamp_len": (-1, 4),
    "relative_attention_num_buckets": (8,),
    "relative_attention_max_distance": (9,),
    "conv_kernel_size": (0, 3),
    "conv_act": ("gelu", "tanh"),
    "attention_gate": (None, "gelu", "silu"),
    "dynamic_conv_kernel_size": (0, 5),
    "pooler_act": ("tanh", "silu", "none"),
    "classifier_act": ("tanh", "relu"),
    "local_attention": (0, 4),
    "global_attn_every_n_layers": (1, 2, 0),
    "first_global_layer": (0, 1),
    "attention_scale_size": (None, 7),
    "attention_soft_cap": (None, 0.6),
    "logit_soft_cap": (None, 0.8),
    "residual_depth": (None, 5),
    "layer_norm_eps": (1e-12, 1e-3),
    "num_groups": (None, 1, 2),
    "inner_layers": (1, 2),
    "pad_token_id": (2,),
    "mask_token_id": (5,),
    "eos_token_id": (3,),
    "question_token_id": (4,),
    "decoder_layers": (None, 1),
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
    "adapter_language": "a name in other exports",
}
NEVER_READ = {("global_attn_every_n_layers", 1)}
UNDRAWN = {*UNREAD, "cross_attention_hidden_size", "family", "initializer_range"}
UNDRAWN |= {*(name for name, each in settings_of(EncoderConfig).items() if "dropout" in name and each.kind is not bool)}
PRIVATE = {"attention_class", "attention_settings"}  # of another package: such a folder has no code
FIELDS = {name: each for name, each in settings_of(EncoderConfig).items() if name not in settings_of(ComputeConfig)}
FIELDS = {name: each for name, each in FIELDS.items() if name not in PRIVATE}


def values_of(name: str) -> tuple[Any, ...]:
    field = FIELDS[name]
    return VALUES.get(name) or ((False, True) if field.kind is bool else tuple(field.choices))


def draw_config(seed: int) -> EncoderConfig | None:
    """Returns a random mixture; None if the draw cannot be built."""
    draw = random.Random(seed)
    values = {name: draw.choice(values_of(name)) for name in FIELDS if name not in UNDRAWN}
    position = values["attention_position"]
    if values["norm_placement"] != "post" or values["adapter_size"] is not None:
        values |= {"bottleneck_size": None, "num_feedforward_networks": 1}
    if values["norm_placement"] == "post":
        values["first_attention_norm"] = True
    if values["rope_type"] in ("dynamic", "longrope"):
        values["causal"] = False
    if values["causal"] or values["enhanced_decoder"] or values["token_dropout"]:
        values["decoder_layers"] = None
    if position in ("disentangled", "relative"):
        values["bottleneck_size"] = None
    if values["bottleneck_size"] is not None:
        values |= {"attention_gate": None, "dynamic_conv_kernel_size": 0}
    if values["causal"] or position == "relative":
        values |= {"embedding_ngram": None, "dynamic_conv_kernel_size": 0, "conv_kernel_size": 0}
    if values["norm_placement"] in ("post", "parallel") or position == "relative" or values["conv_kernel_size"]:
        values["depth_weighted_average"] = False
    if values["embedding_size"] is None or values["embedding_norm"] not in ("after", "none"):
        values["embedding_ngram"] = None
    for name in ("rope_short_factors", "rope_long_factors"):  # one for every pair of a head
        values[name] = (*values[name], 6.0)[
            : (values["head_size"] or (values["bottleneck_size"] or values["hidden_size"]) // values["num_heads"]) // 2
        ]
    drawn = types.SimpleNamespace(**values)
    unread = [name for name in values if (read_if := FIELDS[name].read_if) is not None and not read_if(drawn)]
    values |= {name: FIELDS[name].default for name in unread}
    if position in ("disentangled", "relative"):  # whose scores are sums
        values |= {"attention_scale": True, "attention_scale_size": None}
    if position not in ("none", "rotary"):
        values["attention_soft_cap"] = None
    if position == "relative":  # which has biases of its own
        values["attention_bias"] = "none"
    if values["mlm_head"] not in ("transform", "two_layers"):
        values |= {"embedding_size": None, "embedding_ngram": None}
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
    assert theirs == {**ours, "heads": ()}
    code = b"".join(native_format.code_files().values()).decode()
    read = set(re.findall(r"config\.(\w+)", code)) | set(re.findall(r'rate\("(\w+)"\)', code))
    read |= set(re.findall(r"self\.(\w+)", native_format.code_files()["configuration_bertjax.py"].decode()))
    assert ours.keys() - read == {*UNREAD} & ours.keys()


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
    assert len(configs) >= 6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save_module, "verify_export", lambda *_, **__: None)
        for index, config in enumerate(configs):
            params = random_params(config, HEADS, index)
            save_pretrained(folder / f"{index:02d}", params, config, heads=HEADS, tokenizer=TOKENIZER_FILES)
            np.savez(folder / f"{index:02d}" / "inputs.npz", **make_batch(config, index))
    run_lab(folder)
    yield folder, configs


def run_lab(*arguments: str | Path) -> None:
    """Runs `remote_code_lab.py`, whose caches are next to the folder."""
    home = str(Path(arguments[0]).parent / "home")
    environment = {**os.environ, "HF_HOME": home, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.environ.get("LAB_PATH", "")}
    command = [sys.executable, "-P", str(LAB), *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("index", [0, 1])
def test_the_two_mixtures_of_most_values(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = mixtures()[index]
    monkeypatch.setattr(save_module, "verify_export", lambda *_, **__: None)
    params, batch = random_params(config, HEADS[:5], index), make_batch(config, index)
    save_pretrained(tmp_path, params, config, heads=HEADS[:5])
    model, real = load_pretrained(tmp_path), batch["attention_mask"] > 0
    inputs = check_inputs(config, HEADS[:5], batch["input_ids"], batch["attention_mask"])
    ours = run_model(model.config, HEADS[:5], model.params, inputs)
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path, trust_remote_code=True).eval()
    with torch.no_grad():
        out = theirs(**{name: torch.tensor(batch[name]) for name in ("input_ids", "attention_mask")})
    gap = np.abs(np.asarray(ours.mlm_logits) - out.prediction_logits.numpy())[real]
    assert gap.max() <= TOLERANCE


@pytest.mark.weekly
def test_mixtures_in_a_process_without_bertjax(exports: tuple[Path, list[EncoderConfig]]) -> None:
    folder, configs = exports
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
                    if "/eager/" in name and index >= 3:
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


def parts(config: EncoderConfig) -> set[str]:
    """Returns the heads that have parameters."""
    paths = native_format.param_shapes(config, HEADS[:5])
    return {native_format.HEAD_BY_MODULE.get(path.split("/")[0], "") for path in paths}


@pytest.mark.long
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
        bare_heads = ("pooler",) if "mlm" in parts(config) else ("pooler", "mlm")  # one without parameters is declared
        assert bare.config == config and bare.heads == bare_heads
        assert five.config.num_labels == 5 and "sequence_classification" in five.heads


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["bertjax", pytest.param("bert", marks=pytest.mark.long)])
def test_weights_in_two_bytes(tmp_path: Path, dtype: str, family: str) -> None:
    config = EncoderConfig(vocab_size=VOCAB, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=9)
    config, params = config.replace(family=family), random_params(config, ("mlm",))
    save_pretrained(tmp_path / "out", params, config, heads=("mlm",), dtype=dtype, max_shard_bytes=900)
    shards = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(shards) > 1
    with safe_open(shards[0], "numpy") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds == {"BF16" if dtype == "bfloat16" else "F16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype
    expected = jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype).astype(np.float32), params)
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(tmp_path / "out").params, expected)
    if family == "bert":  # another process reads the other's code
        model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", trust_remote_code=False)
        assert str(model.dtype) == f"torch.{dtype}"
    with pytest.raises(UserError, match="beyond the range of float16; take bfloat16"):
        save_pretrained(
            tmp_path / "no", jax.tree.map(lambda x: x * 1e6, params), config, heads=("mlm",), dtype="float16"
        )


@pytest.mark.long
def test_sentence_transformers_reads_a_mixture(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    config = next(config for config in mixtures() if config.attention_position == "disentangled")
    config = config.replace(pooling="mean", max_position_embeddings=16)
    model = PretrainedModel(config, random_params(config, ("pooler",)), ("pooler",), TOKENIZER_FILES)
    save_sentence_transformers(tmp_path / "out", model, Pooling("mean"))
    assert 'SentenceTransformer("PATH_OR_NAME", trust_remote_code=True)' in (tmp_path / "out/README.md").read_text()
    run_lab(tmp_path / "out", "encode")
    vectors = np.load(tmp_path / "vectors.npy")
    for text, vector in zip(["a b c", "d", "e f g h i j k"], vectors, strict=True):
        ids = np.array([[WORDS.index(word) for word in text.split()]])
        hidden = load_pretrained(tmp_path / "out")(ids).last_hidden_state
        ours = scale_to_unit_length(np.asarray(pool(hidden, np.ones_like(ids), "mean")))[0]
        np.testing.assert_allclose(vector, ours, atol=TOLERANCE)
