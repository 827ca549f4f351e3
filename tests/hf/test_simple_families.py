"""RoBERTa, ALBERT, DistilBERT and ELECTRA: their config.json both ways, refusals, and files of unusual origin."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import PRESETS, preset
from bertjax.errors import UserError
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import load_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NAMES = ("roberta", "albert", "distilbert", "electra")
# Families with the tensors of others -> the other, and the prefix of its classes
LIKE = {
    "xlm-roberta": ("roberta", "XLMRoberta"),
    "camembert": ("roberta", "Camembert"),
    "data2vec-text": ("roberta", "Data2VecText"),
    "xlm-roberta-xl": ("roberta", "XLMRobertaXL"),
    "ernie": ("bert", "Ernie"),
    "megatron-bert": ("bert", "MegatronBert"),
}
CLASSES = [(name, architecture) for name in ("bert", *NAMES, *LIKE) for architecture in FAMILIES[name].architectures]
OF_PRESETS = [name for name, values in PRESETS.items() if values.get("family") in (*NAMES, *LIKE)]
# Every value differs from the default of the config class.
UNUSUAL: dict[str, dict[str, Any]] = {
    "roberta": dict(
        vocab_size=99,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=10,
        max_position_embeddings=31,
        type_vocab_size=1,
        hidden_act="relu",
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.3,
        layer_norm_eps=1e-5,
        initializer_range=0.03,
        pad_token_id=4,
    ),
    "albert": dict(
        vocab_size=99,
        embedding_size=9,
        hidden_size=12,
        num_hidden_layers=5,
        num_hidden_groups=2,
        inner_group_num=3,
        num_attention_heads=3,
        intermediate_size=10,
        max_position_embeddings=31,
        type_vocab_size=3,
        hidden_act="relu",
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.3,
        classifier_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        initializer_range=0.03,
        pad_token_id=4,
    ),
    "distilbert": dict(
        vocab_size=99,
        dim=12,
        n_layers=2,
        n_heads=3,
        hidden_dim=10,
        max_position_embeddings=31,
        activation="relu",
        dropout=0.2,
        attention_dropout=0.0,
        initializer_range=0.03,
        pad_token_id=4,
    ),
    "electra": dict(
        vocab_size=99,
        embedding_size=9,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=10,
        max_position_embeddings=31,
        type_vocab_size=3,
        hidden_act="relu",
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.3,
        layer_norm_eps=1e-5,
        initializer_range=0.03,
        pad_token_id=4,
    ),
}
UNUSUAL["bert"] = {key: value for key, value in UNUSUAL["electra"].items() if key != "embedding_size"}
CONFIGS = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert", "distilbert": "DistilBert", "electra": "Electra"}
for _family, (_like, _classes) in LIKE.items():
    UNUSUAL[_family], CONFIGS[_family] = dict(UNUSUAL[_like]), _classes
del UNUSUAL["megatron-bert"]["classifier_dropout"]


def their_config(name: str, architecture: str, **changes: Any) -> dict[str, Any]:
    """Returns the config.json that transformers writes for a model of this class."""
    config = getattr(transformers, f"{CONFIGS[name]}Config")(**UNUSUAL[name] | changes)
    return json.loads(config.to_json_string(use_diff=False)) | {"architectures": [architecture]}


@pytest.mark.parametrize(("name", "architecture"), CLASSES)
def test_every_value_survives(name: str, architecture: str) -> None:
    heads = {"sequence_classification", "token_classification"} & set(FAMILIES[name].architectures[architecture])
    labels: dict[str, Any] = {"id2label": {0: "x", 1: "y", 2: "z"}, "label2id": {"x": 0, "y": 1, "z": 2}}
    theirs = their_config(name, architecture, **labels if heads else {})
    written = FAMILIES[name].render_config(FAMILIES[name].parse_config(theirs), architecture)
    assert UNUSUAL[name].keys() <= written.keys()
    for key, value in written.items():
        if key not in ("dtype", "is_decoder", "add_cross_attention"):
            assert theirs[key] == value, key
    assert ("id2label" in written) == bool(heads)


def test_rates_before_the_scores_of_distilbert() -> None:
    family, rates = FAMILIES["distilbert"], dict(qa_dropout=0.35, seq_classif_dropout=0.45)
    expected = {"SequenceClassification": 0.45, "TokenClassification": 0.2, "QuestionAnswering": 0.35}
    for task, rate in expected.items():
        config = family.parse_config(their_config("distilbert", f"DistilBertFor{task}", **rates))
        assert config.rate("classifier_dropout") == rate
        assert config.rate("attention_output_dropout") == 0.0 and config.rate("feed_forward_dropout") == 0.2
    answers = family.parse_config(their_config("distilbert", "DistilBertForQuestionAnswering", **rates))
    assert family.render_config(answers, "DistilBertForQuestionAnswering")["qa_dropout"] == 0.35


@pytest.mark.parametrize("name", OF_PRESETS)
def test_an_export_of_a_preset_says_all_that_the_preset_says(name: str) -> None:
    config = EncoderConfig(**preset(name))
    family = FAMILIES[config.family]
    for architecture in family.architectures:
        if architecture in ("DistilBertForTokenClassification", "DistilBertForQuestionAnswering"):
            continue  # whose rates before the scores differ
        back = family.parse_config(family.render_config(config, architecture))
        # The initialization is not written; an open rate is written as its value.
        open_rate = {"classifier_dropout": config.rate("classifier_dropout")} if config.family == "albert" else {}
        assert back == dataclasses.replace(config, vocab_size=back.vocab_size, initializer="normal", **open_rate)


REFUSED = [
    ("roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not support"),
    ("albert", {"position_embedding_type": "relative_key_query"}, "only absolute positions"),
    ("electra", {"position_embedding_type": "relative_key"}, "only absolute positions"),
    ("roberta", {"is_decoder": True}, "only encoders"),
    ("electra", {"add_cross_attention": True}, "only encoders"),
    ("distilbert", {"pruned_heads": {"0": [1]}}, "pruned models"),
    ("albert", {"hidden_act": "mish"}, "hidden_act = 'mish'.*known are gelu"),
    ("distilbert", {"activation": "mish"}, "activation = 'mish'.*known are gelu"),
    ("roberta", {"pad_token_id": 31}, "begin after row pad_token_id = 31, but max_position_embeddings = 31 rows"),
    ("roberta", {"pad_token_id": -1}, "begin after row pad_token_id = -1"),
    ("albert", {"num_hidden_groups": 6}, "num_groups must lie in 1 to num_layers, not 6"),
    ("albert", {"num_hidden_groups": 0}, "num_groups must be at least 1"),
    ("albert", {"inner_group_num": 1.5}, "inner_group_num must be a whole number, not 1.5"),
    ("electra", {"embedding_size": "128"}, "embedding_size must be a whole number"),
    ("electra", {"classifier_dropout": "none"}, "classifier_dropout must be a finite number"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_other_maths_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    values = their_config(name, next(iter(FAMILIES[name].architectures))) | changes
    with pytest.raises(UserError, match=message):
        FAMILIES[name].parse_config(values)


def test_distilbert_reads_the_names_of_the_other_families() -> None:
    values = their_config("distilbert", "DistilBertModel")
    for theirs, alias in (
        ("dim", "hidden_size"),
        ("n_layers", "num_hidden_layers"),
        ("n_heads", "num_attention_heads"),
    ):
        values[alias] = values.pop(theirs)
    config = FAMILIES["distilbert"].parse_config(values)
    assert (config.hidden_size, config.num_layers, config.num_heads) == (12, 2, 3)


def test_groups_of_layers_are_those_of_transformers() -> None:
    """18 layers in 14 groups: a quotient that is an integer only up to rounding."""
    values = UNUSUAL["albert"] | {"num_hidden_layers": 18, "num_hidden_groups": 14, "inner_group_num": 1}
    model = transformers.AlbertModel(transformers.AlbertConfig(**values)).eval()
    called: list[int] = []
    for index, group in enumerate(model.encoder.albert_layer_groups):
        group.register_forward_hook(lambda *_, at=index: called.append(at))
    model(torch.ones((1, 2), dtype=torch.long))
    ours = FAMILIES["albert"].parse_config(their_config("albert", "AlbertModel") | values)
    assert [ours.group_of(layer) for layer in range(18)] == called


def folder_of(model: Any, folder: Path, **extra: np.ndarray) -> Path:
    """Returns a folder written by transformers, with further tensors in the file."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | extra, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def masked_lm(name: str) -> Any:
    config = getattr(transformers, f"{CONFIGS[name]}Config")(**UNUSUAL[name])
    return getattr(transformers, f"{CONFIGS[name]}ForMaskedLM")(config)


@pytest.mark.parametrize("name", NAMES)
def test_older_files_hold_buffers_and_tied_copies(tmp_path: Path, name: str) -> None:
    model = masked_lm(name)
    state = {key: value.detach().numpy().copy() for key, value in model.state_dict().items()}
    copies = {copy: state[copy] for copy in FAMILIES[name].make_keymap(_config(model)).ties}
    assert copies
    buffer = {f"{name}.embeddings.position_ids": np.arange(31)[None]}
    ours = load_pretrained(folder_of(model, tmp_path / "old", **copies, **buffer))
    assert ours.heads == ("mlm",)
    untied = {copy: array + 1.0 for copy, array in copies.items()}
    with pytest.raises(UserError, match=r"differs from .* untied output tables"):
        load_pretrained(folder_of(model, tmp_path / "untied", **untied))


def _config(model: Any) -> EncoderConfig:
    values = json.loads(model.config.to_json_string(use_diff=False))
    return FAMILIES[model.config.model_type].parse_config(values | {"architectures": [type(model).__name__]})


def test_a_pooler_rides_along_in_a_masked_lm(tmp_path: Path) -> None:
    draw = np.random.default_rng(0).standard_normal
    pooler = {"weight": draw((12, 12)).astype(np.float32), "bias": draw(12).astype(np.float32)}
    extra = {f"roberta.pooler.dense.{leaf}": array for leaf, array in pooler.items()}
    ours = load_pretrained(folder_of(masked_lm("roberta"), tmp_path / "theirs", **extra))
    assert ours.heads == ("pooler", "mlm")
    ours.save_pretrained(tmp_path / "ours")
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert all(np.array_equal(written[key], array) for key, array in extra.items())


MULTIPLE_CHOICE = [("roberta", "classifier.weight"), ("distilbert", "pre_classifier.weight"), ("electra", "summary")]


@pytest.mark.parametrize(("name", "head"), MULTIPLE_CHOICE)
def test_a_class_that_is_not_ours_is_read_without_its_head(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, head: str
) -> None:
    config = getattr(transformers, f"{CONFIGS[name]}Config")(**UNUSUAL[name])
    model = getattr(transformers, f"{CONFIGS[name]}ForMultipleChoice")(config)
    folder = folder_of(model, tmp_path)
    path = folder / "config.json"
    path.write_text(path.read_text().replace("ForMultipleChoice", "ForSomethingElse"))
    ours = load_pretrained(folder)
    assert not {"sequence_classification", "token_classification", "multiple_choice"} & {*ours.heads}
    assert head in caplog.text and "ForSomethingElse" in caplog.text


def test_labels_do_not_size_the_heads_that_have_two_scores() -> None:
    """transformers gives AlbertForPreTraining a pair head, and every answer class, as many scores as labels."""
    config = dataclasses.replace(EncoderConfig(**preset("albert-base-v2")), labels=("a", "b", "c"))
    for architecture in ("AlbertForPreTraining", "AlbertForQuestionAnswering"):
        written = FAMILIES["albert"].render_config(config, architecture)
        assert transformers.AlbertConfig(**written).num_labels == 2
    written = FAMILIES["albert"].render_config(config, "AlbertForTokenClassification")
    assert transformers.AlbertConfig(**written).num_labels == 3


NOT_HELD = [
    ("albert-base-v2", {"embedding_size": None}, "embedding_size"),
    ("albert-base-v2", {"num_groups": None}, "num_groups"),
    ("electra-small", {"embedding_size": 256}, "embedding_size"),
    ("roberta-base", {"position_offset": 0}, "position_offset"),
    ("roberta-base", {"mlm_act": "relu"}, "mlm_act"),
    ("distilbert", {"layer_norm_eps": 1e-5}, "layer_norm_eps"),
    ("distilbert", {"position_embedding": "sinusoidal"}, "position_embedding"),
    ("distilbert", {"type_vocab_size": 2}, "type_vocab_size"),
]


@pytest.mark.parametrize(("name", "changes", "field"), NOT_HELD)
def test_what_a_class_cannot_hold_is_not_written_as_that_class(name: str, changes: dict[str, Any], field: str) -> None:
    assert plan_export(EncoderConfig(**preset(name)), ("mlm",)).family is FAMILIES[preset(name)["family"]]
    plan = plan_export(EncoderConfig(**preset(name) | changes), ("mlm",))
    assert plan.family is None and field in " ".join(plan.unsupported)


@pytest.mark.parametrize("name", OF_PRESETS)
def test_every_preset_is_held_by_every_class_of_its_family(name: str) -> None:
    config = EncoderConfig(**preset(name))
    for architecture, heads in FAMILIES[config.family].architectures.items():
        plan = plan_export(config, heads)
        assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())


def test_a_folder_of_the_code_of_nomic_is_read_without_that_code(tmp_path: Path) -> None:
    sizes = dict(vocab_size=60, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=14)
    model = transformers.NomicBertForMaskedLM(
        transformers.NomicBertConfig(**sizes, rope_parameters={"rope_theta": 77.0})
    )
    model.save_pretrained(tmp_path / "new")
    expected = load_pretrained(tmp_path / "new")
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    assert any("Wqkv" in name for name in tensors)  # transformers 5 keeps the names of the authors
    (tmp_path / "old").mkdir()
    renamed = {name.replace("nomic_bert.", "bert."): array for name, array in tensors.items()}
    save_file(renamed, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    values = {"model_type": "nomic_bert", "architectures": ["NomicBertForPreTraining"], "vocab_size": 60, "n_embd": 12}
    values |= {"n_layer": 2, "n_head": 3, "n_inner": 14, "n_positions": 2048, "layer_norm_epsilon": 1e-12}
    values |= {"auto_map": {"AutoModel": "code.py--x"}, "activation_function": "swiglu", "rotary_emb_base": 77}
    values |= {"rotary_emb_fraction": 1.0, "qkv_proj_bias": False, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    (tmp_path / "old" / "config.json").write_text(json.dumps(values))
    old = load_pretrained(tmp_path / "old")
    assert (old.config, old.heads) == (expected.config, ("mlm",))
    assert jax.tree.all(jax.tree.map(np.array_equal, old.params, expected.params))
    (tmp_path / "old" / "config.json").write_text(json.dumps(values | {"prenorm": True}))
    with pytest.raises(UserError, match="prenorm = True is not supported: norms follow the blocks"):
        load_pretrained(tmp_path / "old")
