"""The Python API: a call does what the command does, returns Python values, and raises errors in Python's words."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from lab import Finished, Lab, load_script

import bertjax
from bertjax.commands.signatures import command
from bertjax.training.signals import StoppedBySignal

LOOP = Path(__file__).parents[2] / "examples" / "own_loop.py"


@pytest.fixture(scope="module")
def run(lab: Lab) -> bertjax.Run:
    """The finished run of the command line again, as a call in a thread of its own."""
    results: list[bertjax.Run] = []
    config = bertjax.load_config(lab.config, {"report.enabled": False})
    workdir = lab.folder / "called"
    thread = threading.Thread(target=lambda: results.append(bertjax.pretrain(config, workdir)))
    thread.start()
    thread.join()
    return results[0]


def test_a_call_trains_what_the_command_trains(run: bertjax.Run, finished: Finished) -> None:
    weights = [folder / "export" / "model.safetensors" for folder in (run.workdir, finished.workdir)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    stored = bertjax.open_run(finished.workdir)
    assert (run.step, run.metrics, run.curve("train/loss")) == (8, stored.metrics, stored.curve("train/loss"))
    assert run.report is None and stored.report == finished.workdir / "report.html"
    assert "eval/loss" in run.metrics and run.history()[-1].items() >= run.metrics.items()
    assert bertjax.evaluate(run) == pytest.approx(run.metrics, rel=1e-4)


def test_a_run_is_shown_in_a_few_lines(finished: Finished) -> None:
    stored = bertjax.open_run(finished.workdir)
    assert repr(stored).startswith(f"Run('{finished.workdir}', step 8; eval/loss=") and len(repr(stored)) < 400
    assert "<td>8</td>" in stored._repr_html_()
    assert "height:300px" in stored.show_report(height=300)._repr_html_()
    with pytest.raises(bertjax.UserError, match=r"no metric 'loss'; there are .*eval/loss"):
        stored.curve("loss")
    with pytest.raises(dataclasses.FrozenInstanceError):
        stored.step = 3  # type: ignore[misc]


def test_a_model_is_a_run_a_folder_or_loaded(run: bertjax.Run, tmp_path: Path) -> None:
    text = "the cat [MASK] the dog."
    loaded = run.load()
    answers = [bertjax.fill_mask(model, [text], top_k=2) for model in (run, run.workdir, run.export, loaded)]
    assert all(answer == answers[0] for answer in answers) and len(answers[0][0][0]) == 2
    vectors = [bertjax.embed(model, ["a cat", text], normalize=True) for model in (run, loaded)]
    np.testing.assert_array_equal(*vectors)
    np.testing.assert_allclose(np.linalg.norm(vectors[0], axis=1), 1.0, rtol=1e-5)
    unexported = dataclasses.replace(run, export=None).load()
    assert unexported.tokenizer_files.keys() == loaded.tokenizer_files.keys()
    jax.tree.map(np.testing.assert_array_equal, unexported.params, loaded.params)
    folder = bertjax.export(run, tmp_path / "half", dtype="bfloat16", max_shard_size="1GB")
    size = [(each / "model.safetensors").stat().st_size for each in (folder, Path(os.fspath(run)))]
    assert size[0] < 0.6 * size[1]


@pytest.mark.long
def test_encoders_become_an_encoder_decoder(run: bertjax.Run, tmp_path: Path) -> None:
    loaded, ids = run.load(), np.arange(5, 14)[None]
    model = bertjax.from_encoders(run.workdir, loaded, seed=3)
    shown = repr(model)
    assert shown.startswith("PretrainedEncoderDecoder(encoder-decoder: encoder ") and len(shown) < 160
    assert "parameters)" in shown and "\n" not in shown
    model.save_pretrained(tmp_path / "out")
    back = bertjax.load_pretrained(tmp_path / "out")
    assert isinstance(back, bertjax.PretrainedEncoderDecoder) and back.generation == model.generation
    np.testing.assert_array_equal(back(ids, None, ids).logits, model(ids, None, ids).logits)
    with pytest.raises(bertjax.UserError, match="out has an encoder and a decoder already; give a single network"):
        bertjax.from_encoders(tmp_path / "out")
    tokenizer = json.loads(loaded.tokenizer_files["tokenizer.json"])
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        f"{word}y" if index == len(words) - 1 else word: index for word, index in words.items()
    }
    files = dict(loaded.tokenizer_files) | {"tokenizer.json": json.dumps(tokenizer).encode()}
    with pytest.raises(bertjax.UserError, match=r"have other tokens .* with init_embeddings=remap"):
        bertjax.from_encoders(run, dataclasses.replace(loaded, tokenizer_files=files))


def test_errors_name_arguments_and_not_flags(run: bertjax.Run, lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(bertjax.UserError, match=r"did you mean train\.num_steps"):
        bertjax.load_config(lab.config, {"train.num_step": 3})
    for call, message in (
        (
            lambda: bertjax.pretrain(lab.config, run.workdir, overrides={"seed": 1}),
            r"another workdir, .* with init_from$",
        ),
        (lambda: bertjax.pretrain(lab.config, tmp_path, overrides={"dry_run": True}), "dry_run=true trains nothing"),
        (
            lambda: bertjax.sweep(
                "finetune/classification", tmp_path, {"init_from": "x", "task.eval": "tsv:x"}, seeds=[1, 1]
            ),
            "^seeds names a seed twice",
        ),
        (lambda: bertjax.predict(run, ["a"]), "the model has no task"),
        (lambda: bertjax.predict(run, "a"), "give a list of texts"),
        (lambda: bertjax.predict(run, None), "^inputs is nothing: give a list of texts"),
        (lambda: bertjax.embed(run, 3), "^texts is a number: give a list of texts"),
        (lambda: bertjax.embed(run, ["a", None]), r"^texts\[1\]: field 'text' holds nothing where text is expected"),
        (lambda: bertjax.fill_mask(run, ["[MASK]", 3]), r"^texts\[1\]: field 'text' holds a number"),
        (lambda: bertjax.fill_mask(run, ["\ud800"]), r"^texts\[0\]: half a surrogate pair"),
        (lambda: bertjax.embed(run, ["a"], max_length="9"), "^max_length must be at least 1, not '9'"),
        (lambda: bertjax.fill_mask(run, ["no mask"]), r"no \[MASK\] in 'no mask'"),
        (lambda: bertjax.embed(run, ["a"], max_length=500), r"^max_length=500 is beyond the 64 tokens"),
        (lambda: bertjax.export(run, tmp_path / "x", max_shard_size="5"), "max_shard_size must be a size"),
    ):
        with pytest.raises(bertjax.UserError, match=message) as error:
            call()
        assert " --" not in str(error.value).replace("`bertjax pretrain --config.dry_run=true`", "")


@pytest.mark.parametrize(("number", "kind"), [(2, KeyboardInterrupt), (15, SystemExit)])
def test_a_stopped_run_raises_what_python_raises(number: int, kind: type[BaseException]) -> None:
    @command
    def pretrain() -> None:
        raise StoppedBySignal(number, 7)

    with pytest.raises(kind) as raised:
        pretrain()
    assert "saved at step 7, the same call resumes" in str(raised.value) or raised.value.code == 143  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_loop_of_ones_own_learns_on_eight_devices(lab: Lab) -> None:
    losses = load_script(LOOP).train(lab.config, {"train.num_steps": 24}, learning_rate=1e-2)
    assert len(losses) == 24
    assert np.mean(losses[-6:]) < np.mean(losses[:6]) - 0.3


def test_batches_are_those_of_the_cursor(lab: Lab) -> None:
    batches = bertjax.data.batches(lab.config, {"train.num_steps": 3})
    read = list(batches)
    assert len(read) == len(batches) == 3
    for cursor in (2, 0):
        jax.tree.map(np.testing.assert_array_equal, read[cursor], batches[cursor])
    assert read[0]["input_ids"].shape == (8, 32) and batches.vocabulary.size == batches.tokenizer.size
    assert [len(each) for each in batches.held_out.values()] == [2]
    assert repr(batches).startswith("CorpusBatches(3 batches of 8 x 32 tokens, ")


def test_the_public_names_are_there() -> None:
    for name in bertjax.__all__:
        assert getattr(bertjax, name) is not None
        assert name in dir(bertjax)
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        _ = bertjax.pretrian
