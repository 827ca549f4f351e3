"""`bertjax finetune` on sequence to sequence: from scratch and from trained models, to scores, texts and an export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lab import NOUNS, Finished, Lab

from bertjax.cli import main
from bertjax.commands.evaluate import evaluate
from bertjax.experiment import task as task_module
from bertjax.hf.pretrained import load_pretrained
from bertjax.training import loop

CONFIG = """
from bertjax.config.defaults import base_config, make_seq2seq

def get_config():
    config = make_seq2seq(base_config(), "translation-small")
    config.platform = "cpu"
    config.model.num_layers, config.model.hidden_size, config.model.num_heads = 1, 32, 2
    config.model.intermediate_size, config.model.hidden_dropout = 32, 0.1
    config.data.vocab_size = 300
    config.data.cache_dir = "{cache}"
    config.task.train = ("parallel:{folder}/train:en-de",)
    config.task.eval = ("parallel:{folder}/dev:en-de",)
    config.task.max_length = config.task.seq2seq.max_target_length = 24
    config.task.seq2seq.num_generated = 6
    config.task.seq2seq.num_beams = 2
    config.task.batch_size, config.task.epochs = 16, 3.0
    config.export.average_last, config.checkpoint.interval_steps = 2, 4  # of steps 12 and 15
    config.mesh.data = 1
    config.logging.tensorboard = False
    config.report.enabled = False
    return config
"""
Task = Callable[..., int]
QUIET = ("--config.model.hidden_dropout=0.0", "--config.model.attention_dropout=0.0", "--config.export.at_end=false")
PLAIN = ("--config.task.seq2seq.text_metrics=", "--config.export.average_last=1")


def write_pairs(folder: Path, count: int, name: str) -> None:
    """Writes sentences, and the same ones with their words the other way round."""
    draw = np.random.default_rng(count)
    words = [list(draw.choice(NOUNS, draw.integers(1, 5))) for _ in range(count)]
    (folder / f"{name}.en").write_text("".join(f"the {' '.join(each)}.\n" for each in words))
    (folder / f"{name}.de").write_text("".join(f"{' '.join(each[::-1])}!\n" for each in words))


@pytest.fixture(scope="module")
def task(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Task:
    """`task("--workdir", folder, ...)` trains on eighty pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, 80, "train")
    write_pairs(folder, 10, "dev")
    config = folder / "task.py"
    config.write_text(CONFIG.format(folder=folder, cache=lab.folder / "cache"))

    def run(*arguments: object) -> int:
        return main(["finetune", "--config", str(config), *map(str, arguments)])

    run.folder = folder  # type: ignore[attr-defined]
    return run


@pytest.fixture(scope="module")
def whole(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the work directory of a finished run."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    assert task("--workdir", workdir) == 0
    return workdir


def metrics(workdir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_from_two_files_to_scores_and_texts(
    task: Task, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {name for line in metrics(whole) for name in line}
    assert {"eval/seq2seq_nll", "eval/perplexity", "eval/bleu", "eval/chrf", "eval/generated_length"} <= names
    last = [line for line in metrics(whole) if "eval/bleu" in line][-1]
    results = evaluate(whole)
    assert results == pytest.approx({k: v for k, v in last.items() if k.startswith("eval/")}, rel=1e-5)
    assert "bleu: nrefs:1|case:mixed" in str(results)
    dev = f"parallel:{task.folder}/dev:en-de"  # type: ignore[attr-defined]
    outs = []
    for model in (whole, whole / "export"):
        outs.append(tmp_path / f"{model.name}.jsonl")
        assert main(["predict", "--model", str(model), "--in", dev, "--out", str(outs[-1]), "--score"]) == 0
    printed = capsys.readouterr().out
    assert "10 examples, seq2seq" in printed and "chrf" in printed
    texts = [[json.loads(line)["text"] for line in out.read_text().splitlines()] for out in outs]
    assert len(texts[0]) == len(texts[1]) == 10 and all(isinstance(text, str) for text in texts[0])
    generation = json.loads((whole / "export" / "generation_config.json").read_text())
    assert (generation["num_beams"], generation["max_new_tokens"], generation["length_penalty"]) == (2, 24, 0.6)


class Killed(BaseException):
    pass


@pytest.mark.long
def test_killed_and_resumed_it_is_the_same_run(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ("--config.task.seq2seq.text_metrics=", "--config.task.epochs=2")
    assert task("--workdir", tmp_path / "whole", *plain) == 0
    evaluations, calls = loop.TrainLoop.evaluate, []

    def dies(*arguments: object) -> dict[str, float]:
        calls.append(arguments)
        if len(calls) == 2:
            raise Killed
        return evaluations(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.TrainLoop, "evaluate", dies)
    with pytest.raises(Killed):
        task("--workdir", tmp_path / "run", *plain)
    monkeypatch.undo()
    monkeypatch.setattr(task_module, "train_from_config", lambda *inputs: pytest.fail("it is stored"))
    assert task("--workdir", tmp_path / "run", *plain) == 0
    one, two = ((tmp_path / name / "export" / "model.safetensors").read_bytes() for name in ("run", "whole"))
    assert one == two


@pytest.mark.weekly
def test_packed_grouped_or_a_sequence_each_it_is_the_same_task(task: Task, tmp_path: Path) -> None:
    """The same examples in the same steps: without dropout the losses agree up to rounding."""
    result = {}
    for name in ("packing=true", "packing=false", "num_batch_shapes=2"):
        arguments = (f"--config.task.{name}", *QUIET, *PLAIN, "--config.train.compute_dtype=float32")
        assert task("--workdir", tmp_path / name, *arguments) == 0
        result[name] = [line["train/seq2seq_loss"] for line in metrics(tmp_path / name) if "train/seq2seq_loss" in line]
    first = result.pop("packing=true")
    assert len(first) > 5
    for losses in result.values():
        np.testing.assert_allclose(losses, first, rtol=2e-5)
    grouped = ("--config.task.packing=false", "--config.task.group_by_length=true", "--config.task.num_batch_shapes=2")
    assert task("--workdir", tmp_path / "grouped", *grouped, *QUIET, *PLAIN) == 0
    assert metrics(tmp_path / "grouped")[-1]["eval/seq2seq_loss"] < first[0]


@pytest.mark.long
def test_transformers_generates_the_same_texts(task: Task, whole: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "out.jsonl"
    sources = (task.folder / "dev.en").read_text().splitlines()  # type: ignore[attr-defined]
    (tmp_path / "in.txt").write_text("\n".join(sources))
    assert main(["predict", "--model", str(whole / "export"), "--in", str(tmp_path / "in.txt"), "--out", str(out)]) == 0
    model = transformers.MarianMTModel.from_pretrained(whole / "export").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole / "export")
    tokens = model.generate(**tokenizer(sources, padding=True, return_tensors="pt"))
    expected = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == expected


@pytest.mark.weekly
def test_trained_encoders_and_encoder_decoders_are_continued(
    task: Task, whole: Path, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = [f"--config.model.{name}=preset" for name in ("num_layers", "hidden_size", "num_heads")]
    preset += ["--config.model.intermediate_size=preset", "--config.model.preset=bert-base", *PLAIN]
    start = [*preset, "--config.task.from_scratch=false", "--config.task.epochs=1"]
    assert task("--workdir", tmp_path / "warm", f"--config.init_from={finished.workdir}", *start) == 0
    assert "cross_attention" in capsys.readouterr().out.partition("fresh: ")[2].partition("\n")[0]
    for source in (tmp_path / "warm" / "export", whole):
        run = tmp_path / f"on-{source.name}"
        assert task("--workdir", run, f"--config.init_from={source}", *start) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("weights from"))
        assert "fresh" not in line
    config = load_pretrained(tmp_path / "on-run" / "export").config
    assert config.sharing == "embeddings" and config.decoder.num_layers == 1  # type: ignore[union-attr]


@pytest.mark.weekly
def test_seeds_share_their_shapes(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--config.task.epochs=1", "--config.export.at_end=false", "--config.task.packing=false")
    assert task("--workdir", tmp_path / "run", "--seeds=0,1", *arguments, "--config.task.group_by_length=true") == 0
    assert "bleu" in capsys.readouterr().out
