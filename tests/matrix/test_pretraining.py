"""Every family x every objective that it allows: a step, resumed exactly, exported; `transformers` runs the export."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from cells import AUTHORS_CODE, MODELS, OBJECTIVE_FAMILIES, TEXTS, common, corpus_folder, exported_tokenizer
from ml_collections import ConfigDict
from parity.compare import OUTPUT_FIELDS

import bertjax
from bertjax.config.extensions import OBJECTIVES
from bertjax.config.model import encoder_config
from bertjax.config.objectives import objective_class
from bertjax.config.phases import list_phases
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.config import Config, parse, read_objective
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.export_plan import plan_export
from bertjax.hf.model_card import auto_class_of
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models.model import init_params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def pretraining_config(family: str, objective: str) -> ConfigDict:
    """Returns a config of two steps."""
    cfg, folder = common(family), corpus_folder()
    cfg.objective.name = objective
    cfg.data.packing = "none"
    cfg.data.sources = (f"text:{folder}/corpus.txt",)
    cfg.data.cache_dir = str(folder / "cache")
    cfg.data.eval_fraction, cfg.data.seq_len, cfg.data.workers = 0.2, 32, 1
    cfg.train.num_steps, cfg.train.batch_size, cfg.eval.batch_size = 2, 4, 4
    cfg.eval.interval_steps, cfg.eval.num_batches, cfg.checkpoint.interval_steps = 2, 1, 1
    if objective == "contrastive":
        cfg.model.hidden_dropout = 0.1
    if objective_class(objective).uses_teacher:
        cfg.objective[objective].teacher = str(folder / "teacher")
    formats = objective_class(objective).example_formats
    types = encoder_config(cfg).type_vocab_size != 1 and objective_class(objective) is not OBJECTIVES.load("mixture")
    cfg.data.example_format = "nsp_pairs" if types and "nsp_pairs" in formats else formats[0]
    return cfg


def cells() -> Iterator[tuple[str, str]]:
    """Yields every family with every objective that its models allow."""
    names = [name for name in OBJECTIVES.builtin if not objective_class(name).is_finetuning]
    objectives = {name: read_objective(pretraining_config("bert", name)) for name in names}
    for family in MODELS:
        model = dataclasses.replace(encoder_config(common(family)), hidden_dropout=0.1)
        for name, objective in objectives.items():
            with contextlib.suppress(UserError):
                objective.check_model(model)
                yield family, name


@pytest.fixture(autouse=True)
def unevaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluates nothing, which would compile a second program as large as the step."""
    monkeypatch.setattr(build, "make_evaluate", lambda *_: lambda *_: {})


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a resumed run use the programs of the first one."""
    make, made = build.make_experiment, []

    def once(cfg: ConfigDict, *arguments: Any) -> build.Experiment:
        if not made:
            made.append(make(cfg, *arguments))
        config = cfg if isinstance(cfg, Config) else parse(cfg)
        phases = zip(made[0].programs, list_phases(config.cfg), strict=True)
        programs = [dataclasses.replace(program, phase=phase) for program, phase in phases]
        return dataclasses.replace(made[0], config=config, programs=programs, frozen={}, digests={})

    monkeypatch.setattr(build, "make_experiment", once)


def write_teacher(cfg: ConfigDict, folder: Path) -> None:
    tokenizer = load_tokenizer(cfg.data.tokenizer)
    config = encoder_config(cfg, tokenizer.vocabulary())
    params = init_params(dataclasses.replace(config, padded_vocab_size=None), ("mlm",), jax.random.key(7))
    save_pretrained(
        folder,
        params,
        dataclasses.replace(config, padded_vocab_size=None),
        heads=("mlm",),
        tokenizer=tokenizer,
        overwrite=True,
    )


def check_export(export: Path, objective: str) -> None:
    """Compares all outputs of the exported class, and the pipeline that fills masks."""
    ours = load_pretrained(export)
    tokenizer = exported_tokenizer(export)
    inputs = {name: np.asarray(array) for name, array in tokenizer([TEXTS[0]], return_tensors="np").items()}
    architecture = json.loads((export / "config.json").read_text())["architectures"][0]
    if isinstance(ours, PretrainedEncoderDecoder):
        inputs |= {"decoder_input_ids": inputs["input_ids"][:, :5]}
        inputs.pop("token_type_ids", None)
        name = "AutoModelForSeq2SeqLM"
        fields = {"logits": "logits"}
    else:
        name = auto_class_of(plan_export(ours.config, ours.heads))
        fields = None
        if ours.config.enhanced_decoder:  # transformers predicts masked tokens without it, as the export says
            fields, architecture, name = {}, "AutoModel", "AutoModel"
    auto = getattr(transformers, architecture, None) or getattr(transformers, name)
    theirs = auto.from_pretrained(export, trust_remote_code=True).eval()
    if fields is None:  # of the class that was loaded: a folder with code of its own names several
        loaded = type(theirs).__name__
        fields = next(fields for suffix, fields in OUTPUT_FIELDS.items() if loaded.endswith(suffix))
    with torch.no_grad():
        expected = theirs(**{name: torch.from_numpy(np.asarray(array, np.int64)) for name, array in inputs.items()})
    actual = ours(**inputs)
    compared = 0
    fields = {**fields, "replaced_token_logits": "rtd_logits", "last_hidden_state": "last_hidden_state"}
    for their_name, our_name in fields.items():
        array = getattr(actual, our_name, None)
        if expected.get(their_name) is not None and array is not None:
            np.testing.assert_allclose(np.asarray(array), expected[their_name].numpy(), atol=5e-5, err_msg=our_name)
            compared += 1
    assert compared
    fills = name in ("AutoModelForMaskedLM", "AutoModelForPreTraining") and "mlm" in ours.heads
    if fills and objective_class(objective).needs_mask_token and not ours.config.causal:
        check_fill_mask(export, tokenizer)


def check_fill_mask(export: Path, tokenizer: Any) -> None:
    text = f"The cat {tokenizer.mask_token} the dog."
    model = transformers.AutoModelForMaskedLM.from_pretrained(export, trust_remote_code=True)
    pipe = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu", top_k=12)
    ((fillings,),) = bertjax.fill_mask(export, [text])
    # MPNet has two tokens for unknown text, one is its role; CamemBERT has some that are none of its roles
    special = [*tokenizer.all_special_tokens, "<unk>", "<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
    words = [each["score"] for each in pipe(text) if each["token_str"] not in special]
    assert len(words) > 5 and [each.probability for each in fillings] == pytest.approx(words[:5], abs=3e-5)


def check(family: str, objective: str, workdir: Path) -> None:
    cfg, folder = pretraining_config(family, objective), corpus_folder()
    if objective_class(objective).uses_teacher:
        write_teacher(cfg, folder / "teacher")
    run = bertjax.pretrain(cfg, workdir)
    whole = (run.export / "model.safetensors").read_bytes()
    shutil.rmtree(run.export)
    shutil.rmtree(workdir / "checkpoints" / "2")
    assert (
        bertjax.pretrain(pretraining_config(family, objective), workdir).export / "model.safetensors"
    ).read_bytes() == whole
    if family not in AUTHORS_CODE:
        check_export(run.export, objective)


CELLS = list(cells())
LIKE_SPANS = ("infilling",)  # trained, resumed and exported by what span_corruption is


@pytest.mark.parametrize(
    ("objective", "family"),
    [pytest.param(*each, marks=[pytest.mark.long] * (each[0] in LIKE_SPANS)) for each in OBJECTIVE_FAMILIES.items()],
)
def test_each_objective(family: str, objective: str, tmp_path: Path) -> None:
    check(family, objective, tmp_path / "run")


@pytest.mark.matrix
@pytest.mark.parametrize(("family", "objective"), CELLS)
def test_every_cell(family: str, objective: str, tmp_path: Path) -> None:
    check(family, objective, tmp_path / "run")


def test_no_objective_is_left_out() -> None:
    assert {objective for _, objective in CELLS} == OBJECTIVE_FAMILIES.keys()
