"""`bertjax finetune`: from a pretrained run to scores and an export that transformers loads; resumes are bit-exact."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lab import NOUNS, Finished, Lab

from bertjax.cli import main
from bertjax.commands.evaluate import evaluate
from bertjax.config.defaults import base_config
from bertjax.config.task import TaskConfig
from bertjax.experiment import task as task_module
from bertjax.experiment import task_feed
from bertjax.experiment.workdir import read_config
from bertjax.hf.pretrained import load_pretrained
from bertjax.report.run_record import read_run
from bertjax.training import loop

CONFIG = """
from bertjax.config.defaults import base_config

def get_config():
    config = base_config()
    config.platform = "cpu"
    config.objective.name = "task"
    config.init_from = "{model}"
    config.task.train = ("{kind}:{folder}/train.{ending}",)
    config.task.eval = ("{kind}:{folder}/dev.{ending}",)
    config.task.kind = "{task}"
    config.task.max_length = 32
    config.task.batch_size = 16
    config.task.epochs = 3.0
    config.optimizer.learning_rate = 1e-2
    config.schedule.warmup_steps = 2
    config.mesh.data = 1
    config.logging.tensorboard = False
    config.data.cache_dir = "{cache}"
    return config
"""


def write_texts(folder: Path, count: int, name: str) -> None:
    """Writes sentences about animals and about other things."""
    draw = np.random.default_rng(len(name))
    lines = ["text\tlabel"]
    for _ in range(count):
        animal = draw.random() < 0.5
        noun = NOUNS[draw.integers(0, 3)] if animal else NOUNS[draw.integers(3, len(NOUNS))]
        lines.append(f"the {noun} {'sees' if draw.random() < 0.5 else 'likes'} it.\t{'animal' if animal else 'thing'}")
    (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


Task = Callable[..., int]
# The pretrained weights of these tests come from eight steps at a very high rate: they could not learn anything.
LEARN = ("--config.task.from_scratch=true", "--config.task.epochs=32", "--config.task.evals_per_epoch=0.125")
LEARN += ("--config.optimizer.learning_rate=2e-3", "--config.train.compute_dtype=bfloat16")


@pytest.fixture(scope="module")
def task(lab: Lab, finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Task:
    """`task("--workdir", folder, ...)` finetunes on eighty texts."""
    folder = tmp_path_factory.mktemp("task")
    write_texts(folder, 80, "train")
    write_texts(folder, 24, "dev")
    config = folder / "task.py"
    paths = {"folder": folder, "cache": lab.folder / "cache", "model": finished.workdir}
    config.write_text(CONFIG.format(task="classification", kind="tsv", ending="tsv", **paths))

    def run(*arguments: object) -> int:
        return main(["finetune", "--config", str(config), *map(str, arguments)])

    run.config = config  # type: ignore[attr-defined]
    return run


def metrics_by_step(workdir: Path) -> dict[int, dict[str, float]]:
    result: dict[int, dict[str, float]] = {}
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        result.setdefault(record.pop("step"), {}).update(record)
    return result


SPEED = ("per_second", "per_step", "eta", "wait", "mfu", "memory")


def comparable(workdir: Path) -> dict[int, dict[str, float]]:
    return {
        step: {name: value for name, value in record.items() if not any(word in name for word in SPEED)}
        for step, record in metrics_by_step(workdir).items()
    }


@pytest.mark.long
def test_from_a_run_to_an_export(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert task("--workdir", tmp_path / "run", *LEARN) == 0
    out = capsys.readouterr().out
    assert "labels animal, thing" in out and "held out, step 160: loss" in out
    result = metrics_by_step(tmp_path / "run")
    assert [step for step, record in result.items() if "eval/accuracy" in record] == [40, 80, 120, 160]
    assert result[160]["eval/accuracy"] > 0.9 > result[160]["train/classification_loss"]
    exported = load_pretrained(tmp_path / "run" / "export")
    assert exported.config.labels == ("animal", "thing") and "sequence_classification" in exported.heads
    transformers = pytest.importorskip("transformers")
    pipe = transformers.pipeline("text-classification", model=str(tmp_path / "run" / "export"), device="cpu")
    output = pipe(["the dog sees it.", "the window likes it."])
    assert [each["label"] for each in output] == ["animal", "thing"]
    check_evaluation(tmp_path / "run", result[160], capsys)


def check_evaluation(workdir: Path, last: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    """Checks `bertjax evaluate` on the task's own data and on other data, and that the export has the same scores."""
    scored = {name: value for name, value in last.items() if name.startswith("eval/")}
    assert evaluate(workdir) == pytest.approx(scored, abs=1e-6)
    dev = Path(json.loads((workdir / "config.json").read_text())["task"]["eval"][0].removeprefix("tsv:"))
    other = dev.with_name("other.tsv")
    other.write_text("".join(dev.read_text().splitlines(keepends=True)[:5]))
    page = (workdir / "report.html").read_text()
    assert f"tsv:{dev.with_name('train.tsv')}; held out: tsv:{dev}" in page and "Base model" not in page
    card = (workdir / "export" / "README.md").read_text()
    assert "trained from random weights for classification" in card and "| Positions | 64 |" in card
    assert f"| accuracy | {last['eval/accuracy']:.4f} |" in card and "python-docs" not in card
    capsys.readouterr()
    assert main(["evaluate", "--workdir", str(workdir), "--in", f"tsv:{other}"]) == 0
    assert "other.tsv: 4 examples\n" in capsys.readouterr().out
    out = workdir / "predictions.jsonl"
    assert main(["predict", "--model", str(workdir / "export"), "--in", str(dev), "--out", str(out)]) == 0
    gold = [line.split("\t")[1] for line in dev.read_text().splitlines()[1:]]
    records = map(json.loads, out.read_text().splitlines())
    losses = [-np.log(record["probabilities"][label]) for record, label in zip(records, gold, strict=True)]
    assert np.mean(losses) == pytest.approx(last["eval/classification_loss"], abs=2e-5), "trained in bfloat16"


@pytest.mark.long
def test_a_test_split_is_scored_once_and_changes_nothing(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the best weights, which are not the last ones; as `evaluate` scores them, also when it is added afterwards."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_texts(folder, 40, "unseen")
    best = "--config.task.export_checkpoint=best", "--config.checkpoint.best_metric=eval/loss", "--config.task.epochs=2"
    assert task("--workdir", tmp_path / "without", *best) == 0
    tested = f"--config.task.test=tsv:{folder}/unseen.tsv"
    for _ in range(2):
        assert task("--workdir", tmp_path / "run", *best, tested) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("test: ")]
    assert len(printed) == 2 and printed[0] == printed[1]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (scores,) = (each for each in records if "test/loss" in each)
    step = scores.pop("step")
    again = evaluate(tmp_path / "run", step=step, inputs=[f"tsv:{folder}/unseen.tsv"])
    assert scores == {name.replace("eval/", "test/"): pytest.approx(value) for name, value in again.items()}
    assert again["eval/loss"] != pytest.approx(evaluate(tmp_path / "run", step=step)["eval/loss"], abs=1e-6)
    assert "Accuracy, test" in (tmp_path / "run" / "report.html").read_text()
    logged = {
        step: {name: value for name, value in record.items() if not name.startswith("test/")}
        for step, record in comparable(tmp_path / "run").items()
    }
    assert logged == comparable(tmp_path / "without")
    exports = [tmp_path / name / "export" / "model.safetensors" for name in ("run", "without")]
    assert exports[0].read_bytes() == exports[1].read_bytes()
    assert task("--workdir", tmp_path / "without", *best, tested) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("test: ")] == printed[:1]


@pytest.mark.long
def test_a_dry_run_trains_nothing(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert task("--workdir", tmp_path / "run", "--config.dry_run=true") == 0
    out = capsys.readouterr().out
    assert "task: classification, 80 examples" in out and "MiB of activations" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_task_has_no_corpus(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The corpus of the defaults is not prepared."""
    config = task.config  # type: ignore[attr-defined]
    for command in (["prepare"], ["pretrain", "--workdir", str(tmp_path / "run")], ["compile", "--devices", "1"]):
        assert main([*command[:1], "--config", str(config), *command[1:]]) == 2
        assert "use `bertjax finetune`" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_more_tokens_than_the_model_reads(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert task("--workdir", tmp_path / "run", "--config.task.max_length=65") == 2
    assert "task.max_length=65 is beyond the 64 tokens" in capsys.readouterr().err


class Killed(BaseException):
    pass


@pytest.mark.long
def test_killed_and_taken_up_again_it_is_the_same_run(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source folder of its weights may be gone by then, and other lengths of sequences may be chosen."""
    monkeypatch.setattr(task_feed, "choose_packed_length", lambda _features, _size, limit, **_: limit)
    longer = "--config.task.max_length=64"
    assert task("--workdir", tmp_path / "whole", longer) == 0
    evaluate, calls = loop.TrainLoop.evaluate, []

    def dies(*arguments: object) -> dict[str, float]:
        calls.append(arguments)
        if len(calls) == 3:
            raise Killed
        return evaluate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.TrainLoop, "evaluate", dies)
    with pytest.raises(Killed):
        task("--workdir", tmp_path / "killed", longer)
    monkeypatch.undo()
    monkeypatch.setattr(
        task_module, "load_source_model", lambda folder: pytest.fail("weights are those of the checkpoint")
    )
    assert task("--workdir", tmp_path / "killed", longer) == 0
    assert read_config(tmp_path / "killed").data.seq_len == 64
    assert comparable(tmp_path / "killed") == comparable(tmp_path / "whole")
    one, two = ((tmp_path / name / "export" / "model.safetensors").read_bytes() for name in ("killed", "whole"))
    assert one == two


@pytest.mark.long
def test_packed_or_a_row_each_it_is_the_same_task(task: Task, tmp_path: Path) -> None:
    """The same examples in the same steps: without dropout the losses agree up to rounding."""
    quiet = [f"--config.model.{name}_dropout=0.0" for name in ("hidden", "attention")]
    quiet += ["--config.train.compute_dtype=float32", "--config.export.at_end=false", "--config.task.epochs=1"]
    quiet += ["--config.task.max_length=64"]
    more = [f"{'the cat sees it. ' * (row % 5)}the dog sees it.\t{row % 2}" for row in range(80)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *more]) + "\n")
    quiet += [f"--config.task.train=tsv:{tmp_path}/train.tsv", "--config.task.eval="]
    result = {}
    for name in ("packing=true", "packing=false", "num_batch_shapes=3"):
        assert task("--workdir", tmp_path / name, f"--config.task.{name}", *quiet) == 0
        result[name] = [record for record in metrics_by_step(tmp_path / name).values() if "train/loss" in record]
    packed, alone, fewer_rows = (
        np.array([[record[f"train/{metric}"] for metric in ("classification_loss", "padding")] for record in records])
        for records in result.values()
    )
    assert packed.shape == (5, 2)
    lengths = {name: read_config(tmp_path / name).data.seq_len for name in result}
    assert max(lengths.values()) < 64
    np.testing.assert_allclose(packed[:, 0], alone[:, 0], atol=2e-5)
    np.testing.assert_allclose(packed[:, 0], fewer_rows[:, 0], atol=2e-5)
    assert alone[:, 1].mean() > packed[:, 1].mean() > fewer_rows[:, 1].mean() > 0


@pytest.mark.long
def test_the_best_weights_and_an_early_end(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rate destroys the weights after the first epochs: the best ones are restored, and patience ends the run."""
    more = ["--config.optimizer.learning_rate=0.3", "--config.schedule.name=constant", "--config.task.epochs=12"]
    more += ["--config.task.export_checkpoint=best", "--config.eval.patience=2", "--config.checkpoint.keep=1"]
    assert task("--workdir", tmp_path / "run", *more) == 0
    scores = {
        step: record["eval/accuracy"]
        for step, record in metrics_by_step(tmp_path / "run").items()
        if "eval/accuracy" in record
    }
    best = max(scores, key=lambda step: (scores[step], -step))
    out = capsys.readouterr().out
    assert f"held out, step {best}: " in out and f"exported step {best} " in out
    assert max(scores) == best + 10 and "(eval.patience)" in out
    assert task("--workdir", tmp_path / "run", *more) == 0  # the run is finished: no message is repeated
    named = [record.get("set") for record in read_run(tmp_path / "run").newest("confusion")]
    assert named == [None, "the weights taken"]
    assert f"Confusion of the weights taken, step {best}" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.long
def test_from_scratch_and_class_weights(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--config.task.from_scratch=true", "--config.task.class_weights=balanced", "--config.task.epochs=1"]
    assert task("--workdir", tmp_path / "run", *more) == 0
    assert "with fresh weights" in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    weights = [float(each) for each in config["task"]["class_weights"]]
    assert len(weights) == 2 and min(weights) < 1.0 < max(weights)


@pytest.mark.long
def test_gradual_unfreezing_by_epochs(task: Task, tmp_path: Path) -> None:
    """Of two layers, the last one joins the head after an epoch; the first layer and the embeddings stay frozen."""
    more = ["--config.task.unfreeze_epochs=1", "--config.task.epochs=2", "--config.task.export_checkpoint=last"]
    assert task("--workdir", tmp_path / "run", *more) == 0
    before = load_pretrained(tmp_path / "run" / "export").params["encoder"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    source = task_module.load_source_model(config["init_from"]).params["encoder"]
    kernel = [np.asarray(side["layers"]["attention"]["query"]["kernel"]) for side in (before, source)]
    np.testing.assert_array_equal(kernel[0][0], kernel[1][0])
    assert np.abs(kernel[0][1] - kernel[1][1]).max() > 1e-4
    words = [np.asarray(side["embeddings"]["word_embeddings"]["embedding"]) for side in (before, source)]
    np.testing.assert_array_equal(words[0], words[1])


@pytest.mark.parametrize(
    ("epochs", "platform", "together", "num_shapes"),
    [(1, "cpu", 1, 1), (3, "cpu", 1, 2), (3, "cpu", 4, 1), (3, "gpu", 1, 1), (30, "cpu", 1, 3), (30, "gpu", 1, 2)],
)
def test_long_runs_have_several_numbers_of_rows(epochs: int, platform: str, together: int, num_shapes: int) -> None:
    """100 steps per epoch."""
    cfg = base_config()
    cfg.train.steps_per_dispatch = together
    config = TaskConfig("classification", ("tsv:a.tsv",), batch_size=16, epochs=epochs)
    assert task_feed.num_batch_shapes(cfg, config, 1600, platform) == num_shapes
    chosen = dataclasses.replace(config, num_batch_shapes=5)
    assert together > 1 or task_feed.num_batch_shapes(cfg, chosen, 1600, platform) == 5


@pytest.mark.long
def test_seeds_and_a_grid(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--seeds", "3,4", "--grid", "optimizer.learning_rate=1e-6,3e-3", "--config.export.at_end=false"]
    assert task("--workdir", tmp_path, *more, "--config.task.epochs=1") == 0
    points = json.loads((tmp_path / "sweep.json").read_text())
    assert [point["settings"]["optimizer.learning_rate"] for point in points] == ["1e-6", "3e-3"]
    accuracies = [point["seeds"][seed]["eval/accuracy"] for point in points for seed in ("3", "4")]
    lines = capsys.readouterr().out.splitlines()
    assert (
        f"* learning_rate=3e-3: accuracy {np.mean(accuracies[2:]):.4f} +- {np.std(accuracies[2:], ddof=1):.4f}"
        in "".join(lines)
    )
    assert (tmp_path / "learning_rate=1e-6" / "seed-4" / "metrics.jsonl").exists()


@pytest.mark.long
def test_find_rate(task: Task, lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a task and for pretraining; the folder has a picture and no checkpoint."""
    assert lab.run("lr-find", "--workdir", tmp_path / "pretraining", "--steps", 30, "--max-lr", 10) == 0
    out = capsys.readouterr().out
    assert out.startswith(("tokenized", "rate")) or "rate 1.00e-07" in out
    assert "valley" in out and (tmp_path / "pretraining" / "report.html").exists()
    assert not (tmp_path / "pretraining" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config.train.batch_size=8"], "train.batch_size follows from the task: set task.batch_size"),
        (["--config.train.num_steps=8"], "train.num_steps follows from the task: set task.epochs"),
        (["--config.objective.name=mlm"], "objective.name=mlm is pretraining: use `bertjax pretrain`"),
        (["--config.init_from=nowhere"], "nowhere holds no model"),
        (["--config.task.text_column=body"], "body"),
        (["--config.task.class_weights=1,2,3"], "task.class_weights has 3 numbers for 2 labels"),
        (["--config.task.class_weights=much"], "task.class_weights must be one of balanced, sqrt, or a number"),
        (
            ["--config.task.num_batch_shapes=2", "--config.train.steps_per_dispatch=2"],
            "task.num_batch_shapes=2: with train.steps_per_dispatch > 1 all batches have one shape",
        ),
        (
            ["--config.task.export_checkpoint=bets"],
            "task.export_checkpoint must be one of last, best, not 'bets'; did you mean 'best'",
        ),
        (["--config.task.evals_per_epoch=0"], "task.evals_per_epoch must be above 0, not 0"),
        (["--config.checkpoint.best_metric=eval/f2"], "best_metric=eval/f2 is none of the metrics of an evaluation: "),
        (["--seeds", "a"], "--seeds a is not a list of whole numbers"),
        (["--grid", "task.epochs"], "is not KEY=VALUE,VALUE"),
        (["--grid", "seed=1,2"], "--grid 'seed=1,2' is not KEY=VALUE,VALUE"),
        (["--grid", "task.epochs=1", "--grid", "task.epochs=2"], "--grid names a key twice: give all of its values"),
        (["--seeds", "1,1"], "--seeds names a seed twice: 1, 1"),
    ],
)
def test_refused_in_one_line(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert task("--workdir", tmp_path / "run", *more) == 2
    error = capsys.readouterr().err
    assert error.startswith("bertjax finetune: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_changed_data_are_refused(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert task("--workdir", tmp_path / "run", "--config.export.at_end=false") == 0
    other = tmp_path / "other"
    other.mkdir()
    write_texts(other, 40, "training")
    shutil.copy(other / "training.tsv", other / "train.tsv")
    assert task("--workdir", tmp_path / "run", f"--config.task.train=tsv:{other}/train.tsv") == 2
    assert "holds another experiment" in capsys.readouterr().err
