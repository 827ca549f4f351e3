"""Classifiers of BART, mBART and T5, whose decoder reads the text itself: folders, predictions, finetuning."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from ml_collections import ConfigDict
from parity.cases import Case
from parity.compare import random_params, random_transformers_model
from parity.families.classifiers import CASES

import bertjax
import bertjax.hf.save as save_module
from bertjax.config.defaults import base_config
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.experiment.config import parse
from bertjax.experiment.load import load_source_model
from bertjax.experiment.prune import PruningTarget, require_target
from bertjax.experiment.task import with_decoder
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.export_plan import plan_export
from bertjax.hf.forward import run_model
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.model import abstract_params
from bertjax.training.flops import flops_per_token

BART = CASES[0]
BY_CLASS = {name: case for case in reversed(CASES) for name in case.classes}
LABELS = {0: "contradiction", 1: "neutral", 2: "entailment"}
SHALLOW = {"encoder_layers": 1, "decoder_layers": 1}
PAIRS = [("a b c d", "e f"), ("h", "a b c d e f g h a b"), ("c", "d")]


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the comparison of outputs on export, which compiles two more models; tests/parity compares them."""
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def tokenizer_files() -> dict[str, bytes]:
    """Returns the files of a tokenizer of letters that joins texts as BART's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: index for index, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    names |= {"cls_token": "<s>", "sep_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(settings).encode()}


def write(folder: Path, architecture: str, case: Case = BART, **changes: Any) -> Any:
    """Writes a random model of a class with a tokenizer; returns the model."""
    model = random_transformers_model(dataclasses.replace(case, config={**case.config, **changes}), architecture)
    model.save_pretrained(folder)
    for name, content in tokenizer_files().items():
        (folder / name).write_bytes(content)
    return model


def test_predictions_and_bytes_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "theirs", "BartForSequenceClassification", id2label=LABELS, **SHALLOW)
    hypotheses = ["d e", "f"]
    records = bertjax.predict(tmp_path / "theirs", [*PAIRS, *(("a b c", each) for each in hypotheses)])
    model = load_pretrained(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    theirs, ours = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("theirs", "ours"))
    assert theirs == ours and isinstance(model, PretrainedModel)
    compare_texts(tmp_path / "ours", records[:3])
    assert len({round(record["score"], 4) for record in records}) == len(records)
    zero_shot = transformers.pipeline("zero-shot-classification", model=str(tmp_path / "ours"), device="cpu")
    ranked = zero_shot("a b c", candidate_labels=hypotheses, hypothesis_template="{}", multi_label=True)
    for label, score in zip(ranked["labels"], ranked["scores"], strict=True):
        probabilities = records[3 + hypotheses.index(label)]["probabilities"]
        entailed, contradicted = probabilities["entailment"], probabilities["contradiction"]
        assert score == pytest.approx(entailed / (entailed + contradicted), abs=2e-5)


def compare_texts(folder: Path, records: list[dict[str, Any]]) -> None:
    """Compares predictions for `PAIRS` with those of `transformers`."""
    pipe = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    for (text, pair), record in zip(PAIRS, records, strict=True):
        expected = {each["label"]: each["score"] for each in pipe({"text": text, "text_pair": pair}, top_k=None)}
        assert record["probabilities"] == pytest.approx(expected, abs=2e-5)


def paths_of(config: EncoderConfig) -> set[str]:
    return set(flatten_tree(abstract_params(config, ())))


def test_the_base_model_becomes_one_network(tmp_path: Path) -> None:
    write(tmp_path, "BartModel", **SHALLOW)
    both, source = load_pretrained(tmp_path), with_decoder(load_source_model(tmp_path))
    assert isinstance(both, PretrainedEncoderDecoder) and source.decoder is None
    assert (source.config.family, source.config.decoder_layers, source.config.eos_token_id) == ("bart", 1, 2)
    leaves = flatten_tree(source.params)
    assert leaves.keys() == paths_of(source.config) and any("cross_attention" in path for path in leaves)
    theirs = {path.replace("encoder/encoder/", "encoder/", 1): leaf for path, leaf in flatten_tree(both.params).items()}
    theirs |= {path: leaf for path, leaf in flatten_tree(both.params).items() if path.startswith("decoder/")}
    assert all(np.array_equal(leaf, theirs[path]) for path, leaf in leaves.items())
    write(tmp_path / "other", "T5ForConditionalGeneration", BY_CLASS["T5ForQuestionAnswering"])
    encoder = load_source_model(tmp_path / "other")
    assert with_decoder(encoder) is encoder  # T5 has classes of the encoder alone
    t5 = with_decoder(encoder, chosen=True)
    assert t5.config.decoder_layers == 3 and flatten_tree(t5.params).keys() == paths_of(t5.config)


def finetuning(folder: Path, kind: str) -> ConfigDict:
    """Returns a config of one step from the model in `folder`."""
    cfg = base_config()
    cfg.platform, cfg.mesh.data, cfg.report.enabled, cfg.logging.tensorboard = "cpu", 1, False, False
    cfg.objective.name, cfg.task.kind, cfg.init_from = "task", kind, str(folder / "model")
    rows = [f"{text}\t{pair}\t{index % 2}" for index, (text, pair) in enumerate(PAIRS)]
    (folder / "train.tsv").write_text("\n".join(["text\tpair\tlabel", *rows]) + "\n")
    cfg.task.train, cfg.task.pair_column = (f"tsv:{folder}/train.tsv",), "pair"
    cfg.task.batch_size, cfg.task.epochs, cfg.task.max_length = 3, 1.0, 23
    return cfg


@pytest.mark.long
def test_the_base_model_is_finetuned_with_its_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "model", "BartModel")
    both = load_pretrained(tmp_path / "model")
    assert isinstance(both, PretrainedEncoderDecoder)
    run = bertjax.finetune(finetuning(tmp_path, "classification"), tmp_path / "run")
    printed = capsys.readouterr().out
    assert "fresh: sequence_head\n" in printed and "2 layers and 3 of a decoder" in printed
    values = json.loads((run.export / "config.json").read_text())
    assert values["architectures"] == ["BartForSequenceClassification"] and values["decoder_layers"] == 3
    trained = load_pretrained(run.export).params["decoder"]["encoder"]["layers"]["cross_attention"]["query"]["kernel"]
    before = both.params["decoder"]["encoder"]["layers"]["cross_attention"]["query"]["kernel"]
    assert 0.0 < float(np.abs(trained - before).max()) < 1e-2
    compare_texts(run.export, bertjax.predict(run.export, PAIRS))


@pytest.mark.parametrize("start", ["last", "eos"])
def test_examples_of_one_row_do_not_see_each_other(start: str) -> None:
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 8, "vocab_size": 19}
    changes = {"max_position_embeddings": 9, "decoder_layers": 2, "decoder_start": start, "eos_token_id": 3}
    config = EncoderConfig(**sizes, **changes, pooling="eos", classifier_dense="own")
    params = random_params(config, ("question_answering",))
    ids = np.array([[5, 6, 4, 7, 8, 9, 10, 0, 0]])
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0]])

    def starts(begin: int, end: int, segments: np.ndarray) -> np.ndarray:
        inputs = {"input_ids": ids[:, begin:end], "segment_ids": segments[:, begin:end]}
        inputs["position_ids"] = np.array([[0, 1, 2, 0, 1, 2, 3, 0, 0]])[:, begin:end]
        inputs = {name: array.astype(np.int32) for name, array in inputs.items()}
        inputs["token_type_ids"] = np.zeros_like(inputs["input_ids"])
        return np.asarray(run_model(config, ("question_answering",), params, inputs).start_logits)

    packed = starts(0, 9, segments)
    for begin, end in ((0, 3), (3, 7)):
        alone = starts(begin, end, np.ones_like(segments))
        np.testing.assert_allclose(packed[:, begin:end], alone, atol=1e-5)


def test_classes_and_labels_of_exports() -> None:
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 8, "vocab_size": 19}
    bart = FAMILIES["bart"].parse_config({"architectures": ["BartForQuestionAnswering"]})
    assert bart.num_labels == 3 and bart.decoder_layers == 12
    bart = dataclasses.replace(bart, **sizes, labels=("LABEL_0", "LABEL_1"))
    plan = plan_export(bart, ("sequence_classification",))
    assert plan.architecture == "BartForSequenceClassification" and plan.config_json["id2label"]["1"] == "LABEL_1"
    assert plan_export(bart, ("question_answering",)).architecture == "BartForQuestionAnswering"
    tokens = plan_export(bart, ("token_classification",))
    assert tokens.family is None and "no class of the family bart holds it (heads: token_class" in tokens.limitation
    start = dataclasses.replace(bart, decoder_start="last")
    assert plan_export(start, ("question_answering",)).unsupported == ("decoder_start",)
    classes = {"architectures": ["T5ForSequenceClassification"], "decoder_start_token_id": 0}
    t5 = FAMILIES["t5"].parse_config({**classes, "num_decoder_layers": 2})
    assert (t5.decoder_layers, t5.decoder_start, t5.eos_token_id, t5.pooling) == (2, "pad", 1, "eos")
    assert "id2label" not in plan_export(t5, ("sequence_classification",)).config_json
    encoder = dataclasses.replace(t5, decoder_layers=None, pooling="mean")
    assert plan_export(encoder, ()).architecture == "T5EncoderModel"
    decoder = flops_per_token(t5.decoder_config(), 0.0, 9.0)
    assert flops_per_token(t5, 0.0, 9.0) == flops_per_token(encoder, 0.0, 9.0) + decoder


@pytest.mark.parametrize(
    ("name", "classes"), [("bart", "Bart"), ("mbart", "MBart"), ("mvp", "Mvp"), ("plbart", "PLBart")]
)
def test_a_key_that_is_absent_has_the_default_of_the_class(name: str, classes: str) -> None:
    family = FAMILIES[name]
    named = {"architectures": [f"{classes}ForSequenceClassification"]}
    values = json.loads(getattr(transformers, f"{classes}Config")().to_json_string(use_diff=False))
    assert family.parse_config(named) == family.parse_config({**values, **named})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_ffn_dim": 7}, "decoder_ffn_dim = 7 is not supported: the encoder has 4096"),
        ({"decoder_attention_heads": 8}, "decoder_attention_heads = 8 is not supported: the encoder has 16"),
        ({"decoder_start_token_id": 5}, "decoder_start_token_id = 5 is not supported"),
        ({"decoder_layers": 0}, r"decoder_layers must lie in \[1, 10000\], not 0"),
        ({"normalize_before": True}, "normalize_before = True is not supported: norms follow the blocks"),
        ({"eos_token_id": [2]}, "eos_token_id must be a whole number"),
        ({"eos_token_id": -1}, "eos_token_id = -1 must be the id of a token"),
        ({"pad_token_id": None}, "pad_token_id = None must be the id of a token"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False is not supported"),
        ({"use_prompt": True}, "use_prompt = True is not supported: prompts of every layer"),
        ({"is_causal": 1}, "is_causal = 1 is not supported"),
    ],
)
def test_what_a_folder_cannot_say(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"config.json: .*{message}"):
        FAMILIES["bart"].parse_config({"architectures": ["BartForSequenceClassification"], **changes})


def test_where_such_a_decoder_does_not_belong() -> None:
    cfg = base_config()
    cfg.model.decoder_layers = 1
    with pytest.raises(UserError, match="decoder_layers=1 is for tasks that label texts or find answers"):
        parse(cfg)
    config = EncoderConfig(decoder_layers=1)
    with pytest.raises(UserError, match="single encoders can be pruned"):
        require_target(PretrainedModel(config, {}, ()), PruningTarget(layers=1))
    with pytest.raises(UserError, match="a decoder cannot follow an encoder with causal=True"):
        dataclasses.replace(config, causal=True)
