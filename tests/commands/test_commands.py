"""The other commands, and the messages of the command line for bad input."""

from __future__ import annotations

import errno
import io
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from lab import Finished, Lab

from bertjax.cli import command_parsers, main
from bertjax.commands.inspect_data import members
from bertjax.config.inputs import all_sources
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data.tokenizer_from_config import content_digest
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.experiment.load import load_source_model
from bertjax.io.tree_paths import flatten_tree

CONTRACT = {
    "input_ids": np.int32,
    "original_ids": np.int32,
    "segment_ids": np.int32,
    "position_ids": np.int32,
    "token_type_ids": np.int32,
    "masked_positions": np.int32,
    "masked_ids": np.int32,
    "masked_weights": np.float32,
    "example_positions": np.int32,
    "example_weights": np.float32,
    "example_ids": np.uint32,
    "example_epochs": np.uint32,
    "example_draws": np.uint32,
    "pair_labels": np.int32,
}


@pytest.mark.parametrize("name", sorted(command_parsers()))
def test_the_example_of_a_command_is_valid(name: str) -> None:
    parser = command_parsers()[name]
    program, command, *arguments = shlex.split((parser.epilog or "").replace("\\\n", "").removeprefix("example:"))
    options, rest = parser.parse_known_args(arguments)
    assert (program, command) == ("bertjax", name) and all(each.startswith("--config.") for each in rest)
    if hasattr(options, "config"):
        apply_overrides(load_config(options.config), rest)


@pytest.mark.long
def test_inspect_writes_what_the_model_sees(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "batches.npz"
    assert lab.run("inspect-data", "--batches", 2, "--sequences", 1, "--out", out) == 0
    arrays = dict(np.load(out))
    assert {name: array.dtype for name, array in arrays.items()} == CONTRACT
    assert arrays["input_ids"].shape == (16, 32)
    hidden = arrays["masked_weights"] > 0
    rows = np.broadcast_to(np.arange(16)[:, None], hidden.shape)[hidden]
    original = arrays["original_ids"][rows, arrays["masked_positions"][hidden]]
    np.testing.assert_array_equal(original, arrays["masked_ids"][hidden])
    printed = capsys.readouterr().out
    assert "[MASK]]" in printed and "% of the pairs do not follow" in printed


@pytest.mark.long
def test_inspect_shows_the_batches_of_the_run(lab: Lab, tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        assert lab.run("inspect-data", "--out", tmp_path / name, "--sequences", 0) == 0
    assert lab.run("inspect-data", "--out", tmp_path / "c.npz", "--sequences", 0, "--config.seed=1") == 0
    a, b, c = (np.load(tmp_path / name)["input_ids"] for name in ("a.npz", "b.npz", "c.npz"))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


@pytest.mark.long
def test_dry_run_counts_and_writes_nothing(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = tmp_path / "run"
    arguments = ["--config.dry_run=true", f"--config.data.cache_dir={tmp_path / 'cache'}"]
    assert lab.run("pretrain", "--workdir", workdir, *arguments) == 0
    printed = capsys.readouterr().out
    for word in ("parameters", "model FLOPs", "memory", "epochs", "unknown until the corpus is prepared"):
        assert word in printed
    assert not workdir.exists() and not (tmp_path / "cache" / "corpora").exists()


@pytest.mark.long
def test_dry_run_tells_epochs_once_prepared(lab: Lab, finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.run("pretrain", "--config.dry_run=true") == 0
    assert " of " in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("epochs"))


def test_evaluate_repeats_the_last_metrics(lab: Lab, finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.run("evaluate", "--workdir", finished.workdir) == 0
    printed = capsys.readouterr().out.strip()
    shown = next(line for line in finished.printed.splitlines() if line.startswith("eval at step 8"))
    assert printed.removeprefix("step 8: ") == shown.removeprefix("eval at step 8: ")


def test_export_of_an_earlier_step(lab: Lab, finished: Finished, tmp_path: Path) -> None:
    assert lab.run("export", "--workdir", finished.workdir, "--out", tmp_path / "six", "--step", 6) == 0
    six = (tmp_path / "six" / "model.safetensors").read_bytes()
    assert six != (finished.workdir / "export" / "model.safetensors").read_bytes()
    assert lab.run("export", "--workdir", finished.workdir, "--out", tmp_path / "eight") == 0
    eight = (tmp_path / "eight" / "model.safetensors").read_bytes()
    assert eight == (finished.workdir / "export" / "model.safetensors").read_bytes()


def test_tokenizer_command(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.run("tokenizer", "--out", tmp_path / "tokenizer") == 0
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    assert tokenizer.kind == "wordpiece" and tokenizer.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert lab.run("tokenizer", "--out", tmp_path / "tokenizer") == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.long
def test_added_words_begin_as_their_old_tokens(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("catheter\n\nthe\ncatheter\nelectrode\n")
    source = f"--config.data.tokenizer={finished.workdir / 'export'}"
    assert lab.run("tokenizer", source, "--add-words", words, "--out", tmp_path / "tokenizer") == 0
    line = "2 words added as 2 tokens: catheter, electrode; 1 were single tokens: the\n"
    assert line in capsys.readouterr().out
    arguments = [
        f"--config.init_from={finished.workdir}",
        "--config.train.num_steps=1",
        "--config.optimizer.learning_rate=1e-12",
    ]
    arguments += [f"--config.data.tokenizer={tmp_path / 'tokenizer'}", "--config.eval.fill_mask="]
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *arguments) == 0
    assert "2 composed of old ones, 0 fresh" in capsys.readouterr().out
    before, after = (load_source_model(folder) for folder in (finished.workdir / "export", tmp_path / "run" / "export"))
    ids = [np.concatenate(before.tokenizer.encode_batch([word])) for word in ("catheter", "electrode")]
    assert after.tokenizer.tokens[before.tokenizer.size :] == ["catheter", "electrode"]
    for path in ("encoder/embeddings/word_embeddings/embedding", "mlm_head/bias"):
        old, new = flatten_tree(before.params)[path], flatten_tree(after.params)[path]
        np.testing.assert_allclose(new[: len(old)], old, atol=1e-6)
        np.testing.assert_allclose(new[len(old) :], [old[each].mean(axis=0) for each in ids], atol=1e-6)


@pytest.mark.long
def test_a_tokenizer_of_the_config_is_used(lab: Lab, finished: Finished, tmp_path: Path) -> None:
    inputs = finished.workdir / "export" / "vocab.txt"
    arguments = ["--config.train.num_steps=1", f"--config.data.tokenizer={inputs}"]
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *arguments) == 0
    used = load_tokenizer(tmp_path / "run" / "tokenizer")
    assert used.tokens == load_tokenizer(finished.workdir / "tokenizer").tokens


BAD = {
    "unknown key": (["--config.train.num_step=3"], "did you mean train.num_steps?"),
    "no dashes": (["config.train.num_steps=3"], "two dashes"),
    "wrong type": (["--config.train.num_steps=many"], "expects a whole number"),
    "negative steps": (["--config.train.num_steps=-1", "--config.train.log_interval_steps=1"], "at least 1"),
    "missing file": (["--config.data.sources=text:nowhere/*.txt"], "no file matches nowhere/*.txt"),
    "unknown source": (["--config.data.sources=texts:corpus.txt"], "did you mean text:?"),
    "heads": (["--config.model.num_heads=5"], "not divisible by model.num_heads 5"),
    "batch": (["--config.train.batch_size=9", "--config.mesh.data=2"], "train.batch_size=9 is not divisible by 2"),
    "mesh": (["--config.mesh.data=16", "--config.train.batch_size=16"], "needs 16 devices, but there are 8"),
    "tensor axis": (["--config.mesh.tensor=3"], "does not divide model.num_heads=4"),
    "long rows": (["--config.data.seq_len=128"], "longer than the position table"),
    "form": (["--config.data.example_format=stream"], "objective.name=mlm needs data.example_format to be one of"),
    "preset": (["--config.model.preset=bert-huge"], "unknown model preset"),
    "tokenizer": (["--config.data.tokenizer=nowhere.json"], "neither one of"),
    "schedule": (["--config.schedule.warmup_steps=99"], "schedule.warmup_steps must lie in 0..train.num_steps"),
    "rate": (["--config.optimizer.lr_mults=(=2"], "is not REGEX=FACTOR"),
    "objective": (["--config.objective.name=mmlm"], "did you mean 'mlm'?"),
    "shares": (["--config.objective.masking.mask_token_rate=0.95"], "sum to at most 1"),
    "absent device": (["--config.platform=gpu"], "platform=gpu is set, but jax runs on cpu"),
    "no mask": (["--config.eval.fill_mask=Nothing is hidden."], "no [MASK] in 'Nothing is hidden.'"),
    "platform": (["--config.platform=tpus"], "did you mean 'tpu'?"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    name: str, lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = BAD[name]
    workdir = tmp_path / "run"
    assert lab.run("pretrain", "--workdir", workdir, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not (workdir / "checkpoints").exists() and not (workdir / "metrics.jsonl").exists()


def test_bad_text_is_named_and_nothing_is_cached(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, empty, cache = tmp_path / "broken.txt", tmp_path / "empty.txt", tmp_path / "cache"
    broken.write_bytes(b"A good line.\nA bad \xff\xfe line.\n\n" + lab.corpus.read_bytes())
    empty.write_text("\n  \n\n")
    for source, message in ((broken, "broken.txt:2"), (empty, "holds no text")):
        arguments = [f"--config.data.sources=text:{source}", f"--config.data.cache_dir={cache}"]
        assert lab.run("pretrain", "--workdir", tmp_path / "run", *arguments) == 2
        assert message in capsys.readouterr().err
    assert not (cache / "tokenizers").exists() and not (cache / "corpora").exists()
    arguments = [f"--config.data.sources=text:{broken}", "--config.data.encoding_errors=replace"]
    assert lab.run("tokenizer", "--out", tmp_path / "tokenizer", *arguments) == 0


def test_a_tokenizer_brings_its_number_of_tokens(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished.workdir / "tokenizer"
    arguments = [f"--config.data.tokenizer={folder}", "--config.data.vocab_size=20", "--config.dry_run=true"]
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *arguments) == 0
    assert f"vocabulary        {load_tokenizer(folder).size} tokens\n" in capsys.readouterr().out


def test_text_that_gives_few_rows_is_warned_about(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--config.data.cache_dir={tmp_path / 'cache'}", "--config.data.seq_len=16"]
    assert lab.run("prepare", *arguments) == 0
    assert "warning" not in capsys.readouterr().out
    endless = tmp_path / "endless.txt"  # one sentence of hundreds of words: pairs are cut from both ends
    endless.write_text(4 * " ".join(lab.corpus.read_text().split()).replace(".", ","))
    assert lab.run("prepare", f"--config.data.sources=text:{endless},text:{lab.corpus}", *arguments) == 0
    assert "warning: the sequences of an epoch hold only" in capsys.readouterr().out


def test_foreign_folders_are_left_alone(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("do not touch")
    assert lab.run("pretrain", "--workdir", tmp_path) == 2
    assert "holds files but no run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert main(["export", "--workdir", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["pretrain", "--config", "{config}", "--config.train.num_step=3"]])
def test_answers_come_before_anything_heavy_is_imported(arguments: list[str], lab: Lab) -> None:
    filled = [argument.format(config=lab.config) for argument in arguments]
    code = (
        "import sys; from bertjax.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "heavy = {'jax', 'flax', 'datasets', 'tokenizers', 'orbax', 'optax', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code, *filled], check=True, capture_output=True)
    assert time.monotonic() - began < 20  # a bound for a busy machine; an idle one needs 0.2 s


def test_members_of_a_mixture_are_shown_by_themselves() -> None:
    batch = {"mlm/input_ids": np.zeros((3, 2)), "mlm/masked_ids": np.ones(1), "clm/input_ids": np.ones((1, 2))}
    result = members(batch)
    assert {name: sorted(part) for name, part in result.items()} == {
        "mlm": ["input_ids", "masked_ids"],
        "clm": ["input_ids"],
    }
    assert result["clm"]["input_ids"] is batch["clm/input_ids"]
    assert members(result["mlm"]) == {"": result["mlm"]}


WHERE = "/srv/cache/digests"
OF_THE_MACHINE = [
    (
        PermissionError(errno.EACCES, "Permission denied", WHERE),
        f"Permission denied ({WHERE}); grant this user read and write access, or choose another path",
    ),
    (
        FileNotFoundError(errno.ENOENT, "No such file or directory", WHERE),
        f"No such file or directory ({WHERE}); it was there when the command began, or had to be; restore it, or start "
        "the same command again",
    ),
    (OSError(errno.EIO, "I/O error", WHERE), f"I/O error ({WHERE}); check the disk, and start the same command again"),
    (
        MemoryError("8 EiB"),
        "out of memory (8 EiB); take smaller batches, shorter texts or a smaller model, or a machine with more memory",
    ),
    (PermissionError(errno.EACCES, "Permission denied"), None),
]


@pytest.mark.parametrize(("error", "line"), OF_THE_MACHINE)
def test_errors_of_the_machine_are_one_line_where_they_say_enough(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, line: str | None
) -> None:
    def fails(*_: object) -> str:
        raise error

    monkeypatch.setattr("bertjax.data.tokenizer_from_config.content_digest", fails)
    if line is None:
        with pytest.raises(PermissionError):
            lab.run("prepare")
        return
    assert lab.run("prepare") == 2
    assert capsys.readouterr().err == f"bertjax prepare: {line}\n"


def test_a_digest_that_is_none_is_computed_again(lab: Lab, tmp_path: Path) -> None:
    cfg = load_config(str(lab.config))
    cfg.data.cache_dir = str(tmp_path)
    (source,) = all_sources(cfg)
    digest = content_digest(source, cfg)
    (memory,) = (tmp_path / "digests").iterdir()
    for broken in (b"\xff\xfe", b"", digest[:-1].encode()):
        memory.write_bytes(broken)
        assert content_digest(source, cfg) == digest and memory.read_text() == digest


def test_text_that_changed_is_not_evaluated(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = tmp_path / "run", lab.corpus.read_text()
    shutil.copytree(finished.workdir, run)
    try:
        lab.corpus.write_text(text.replace("cat", "cow"))
        assert lab.run("evaluate", "--workdir", run) == 2
    finally:
        lab.corpus.write_text(text)
    assert "the data of this run changed since its checkpoint (eval:" in capsys.readouterr().err


def test_a_log_gets_each_line_when_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", log)
    assert main(["config", "--config", "bert:smoke", "seed"]) == 0
    print("--- the first task")
    assert log.buffer.getvalue().endswith(b"--- the first task\n")  # type: ignore[attr-defined]
