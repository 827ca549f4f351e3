"""`bertjax suite`: tasks, models and seeds in one table, resumed; what is missing or fails is a line."""

from __future__ import annotations

import gzip
import json
import re
import types
from pathlib import Path
from typing import Any

import pytest
from lab import NOUNS, Finished

import bertjax
from bertjax.cli import main
from bertjax.commands import suite as module
from bertjax.config.suites import SuiteTask

KEYS: tuple[str, ...] = (
    "task.max_length=16",
    "task.batch_size=16",
    "task.epochs=1",
    "task.from_scratch=true",
    "platform=cpu",
)
KEYS += ("mesh.data=1", "logging.tensorboard=false", "report.enabled=false", "optimizer.learning_rate=2e-3")


def run(folder: Path, models: list[Path], *arguments: object) -> int:
    named = [word for model in models for word in ("--model", str(model))]
    overrides = [f"--config.{key}" for key in KEYS]
    return main(["suite", *map(str, arguments), *named, "--workdir", str(folder / "suite"), *overrides])


def write_glue(folder: Path) -> None:
    """Writes CoLA, MRPC, STS-B and QNLI with twenty examples each as the archives have them."""
    rows = [(f"the {NOUNS[index % 12]} sees it.", f"the {NOUNS[index % 5]} runs.", index % 2) for index in range(20)]
    layouts: dict[str, tuple[str, Any, str, Any]] = {
        "CoLA": ("", lambda i, a, b, y: f"gj04\t{y}\t*\t{a}", "index\tsentence", lambda i, a, b: f"{i}\t{a}"),
        "MRPC": (
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            lambda i, a, b, y: f'{y}\t70\t71\t"{a}\t{b}',  # an unpaired quote
            "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
            lambda i, a, b: f"{i}\t70\t71\t{a}\t{b}",
        ),
        "STS-B": (
            "index\tgenre\tsentence1\tsentence2\tscore",
            lambda i, a, b, y: f"{i}\tnews\t{a}\t{b}\t{y * 4.5}",
            "index\tgenre\tsentence1\tsentence2",
            lambda i, a, b: f"{i}\tnews\t{a}\t{b}",
        ),
        "QNLI": (
            "index\tquestion\tsentence\tlabel",
            lambda i, a, b, y: f"{i}\t{a}\t{b}\t{('entailment', 'not_entailment')[y]}",
            "index\tquestion\tsentence",
            lambda i, a, b: f"{i}\t{a}\t{b}",
        ),
    }
    for name, (header, line, test_header, test_line) in layouts.items():
        (folder / name).mkdir(parents=True)
        labeled = [*([header] if header else []), *(line(index, *row) for index, row in enumerate(rows))]
        for split in ("train", "dev"):
            (folder / name / f"{split}.tsv").write_text("\n".join(labeled) + "\n")
        test = [test_header, *(test_line(index, *row[:2]) for index, row in enumerate(rows[:3]))]
        (folder / name / "test.tsv").write_text("\n".join(test) + "\n")


@pytest.mark.long
def test_glue_in_its_layout_with_predictions_to_submit(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_glue(tmp_path / "glue")
    submitted = tmp_path / "submitted"
    assert run(tmp_path, [finished.workdir], "glue", "--data", tmp_path / "glue", "--submit", submitted) == 0
    printed = capsys.readouterr().out
    results = {each["task"]: each for each in json.loads((tmp_path / "suite/suite.json").read_text())["results"]}
    done = [name for name, each in results.items() if each["status"] == "done"]
    assert done == ["cola", "mrpc", "stsb", "qnli"], results
    assert "SST-2/train.tsv" in results["sst2"]["note"] and "gluebenchmark.com" in results["sst2"]["note"]
    assert results["wnli"]["note"].startswith("left out as usual")
    mrpc = results["mrpc"]["scores"]
    assert results["mrpc"]["median"] == pytest.approx((mrpc["f1"][0] + mrpc["accuracy"][0]) / 2)
    assert re.search(r"^cola +matthews ", printed, re.M) and "mean of cola, mrpc, stsb, qnli" in printed
    forms = {"CoLA": "[01]", "MRPC": "[01]", "STS-B": r"[0-5]\.\d{3}", "QNLI": "(not_)?entailment"}
    assert sorted(path.name for path in submitted.iterdir()) == sorted(f"{name}.tsv" for name in forms)
    for name, form in forms.items():
        expected = "index\tprediction\n" + "".join(f"{index}\t{form}\n" for index in range(3))
        assert re.fullmatch(expected, (submitted / f"{name}.tsv").read_text()), name


def test_sources_in_a_store_are_scored_by_their_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[str] = []

    def predict(run: Path, files: list[Any], **_: object) -> types.SimpleNamespace:
        scored.append(f"{files[0]}")
        return types.SimpleNamespace(metrics={"accuracy": 0.5})

    trained = types.SimpleNamespace(workdirs={0: tmp_path}, metrics={0: {"eval/accuracy": 0.75}})
    monkeypatch.setattr(module, "predict", predict)
    monkeypatch.setattr(module, "train_all", lambda *_: [trained])
    runner = module._Runner(tmp_path, [0], {}, {}, None)
    task = SuiteTask("a", train=("tsv:a.tsv",), eval=("tsv:b.tsv",), evals={"mm": ("tsv:s3://bucket/mm.tsv",)})
    result = runner._finetune(task, str(tmp_path), tmp_path)
    assert scored == ["tsv:s3://bucket/mm.tsv"] and result.scores == {"accuracy": [0.75], "mm/accuracy": [0.5]}


def write_superglue(folder: Path) -> None:
    nouns = NOUNS[:10]
    rows = {
        "BoolQ": [{"question": f"is it a {noun}", "passage": "it is.", "idx": 1} for noun in nouns],
        "CB": [{"premise": f"a {noun}.", "hypothesis": "it is.", "idx": 1} for noun in nouns],
        "COPA": [{"premise": f"a {noun}.", "choice1": "it is.", "choice2": f"the {noun}."} for noun in nouns],
        "WiC": [
            {"word": noun, "sentence1": f"a {noun}.", "sentence2": f"the {noun}.", "start1": 2, "end1": 5}
            for noun in nouns
        ],
    }
    labels: dict[str, list[Any]] = {"CB": ["contradiction", "entailment", "neutral"], "COPA": [0, 1]}
    for name, records in rows.items():
        (folder / name).mkdir(parents=True)
        values = labels.get(name, [True, False])
        lines = [json.dumps({**each, "label": values[i % len(values)]}) + "\n" for i, each in enumerate(records)]
        for split in ("train", "val"):
            (folder / name / f"{split}.jsonl").write_text("".join(lines))


@pytest.mark.long
def test_superglue_and_a_killed_suite(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_superglue(tmp_path / "data")
    call = ("superglue", "--data", tmp_path / "data")
    train, calls = module.train_all, []

    def killed(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(module, "train_all", killed)
    with pytest.raises(KeyboardInterrupt):
        bertjax.suite(["superglue"], [str(finished.workdir)], tmp_path / "suite", overrides(), data=call[2])
    assert [each["task"] for each in json.loads((tmp_path / "suite/suite.json").read_text())["results"]] == ["boolq"]
    assert run(tmp_path, [finished.workdir], *call) == 0
    assert len(calls) == 5, "BoolQ is not trained again"
    first = (tmp_path / "suite/suite.md").read_text()
    assert "macro_f1 + accuracy" in first and "multirc: missing: needs answers grouped by question" in first
    assert re.search(r"^\| copa \| accuracy \| [01]\.", first, re.M)
    written = (tmp_path / "suite" / finished.workdir.name / "wic/data/train.jsonl").read_text().splitlines()
    assert json.loads(written[0]) == {"text": "cat: a cat.", "pair": "the cat.", "label": True}
    assert run(tmp_path, [finished.workdir], *call) == 0
    assert len(calls) == 5 and (tmp_path / "suite/suite.md").read_text() == first


def overrides() -> dict[str, Any]:
    return dict(key.split("=", 1) for key in KEYS)


def write_suite(folder: Path, *tasks: dict[str, Any]) -> Path:
    rows = [f"the {NOUNS[index % 12]} sees it.\t{('thing', 'animal')[index % 12 < 3]}\n" for index in range(40)]
    (folder / "train.tsv").write_text("".join(["text\tlabel\n", *rows]))
    (folder / "dev.tsv").write_text("".join(["text\tlabel\n", *rows[:12]]))
    common: dict[str, Any] = {"train": f"tsv:{folder}/train.tsv", "eval": f"tsv:{folder}/dev.tsv", "metric": "accuracy"}
    path = folder / "tasks.json"
    path.write_text(json.dumps({"tasks": [task if "command" in task else {**common, **task} for task in tasks]}))
    return path


@pytest.mark.long
def test_a_grid_is_chosen_on_train_for_every_model_and_a_failure_is_a_line(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.tsv").write_text("text\tlabel\nno label here\n")
    pairs = [{"sentence_good": "the cat sees it.", "sentence_bad": "cat the it sees."}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pairs))
    blimp = {"name": "blimp", "command": "eval-minimal-pairs", "eval": f"{tmp_path}/pairs.jsonl", "metric": "accuracy"}
    tasks = ({"name": "bad", "train": f"tsv:{tmp_path}/bad.tsv"}, {"name": "nouns"}, blimp)
    file, models = write_suite(tmp_path, *tasks), [finished.workdir, finished.workdir / "export"]
    grid = ("--grid", "optimizer.learning_rate=1e-9,3e-3", "--seeds", "0,1")
    assert run(tmp_path, models, file, *grid) == 1, "a task failed"
    printed = capsys.readouterr().out
    names = [finished.workdir.name, "export"]
    results = json.loads((tmp_path / "suite/suite.json").read_text())["results"]
    assert [(each["task"], each["model"]) for each in results] == [
        (t, m) for t in ("bad", "nouns", "blimp") for m in names
    ]
    assert all(each["status"] == "failed" and "bad.tsv:2" in each["note"] for each in results[:2])
    folder = tmp_path / "suite" / names[0] / "nouns"
    held_out, fit = ((folder / "data" / f"{name}.jsonl").read_text().splitlines() for name in ("held-out", "fit"))
    assert (len(held_out), len(fit)) == (4, 36)
    grid_run = json.loads((folder / "grid/learning_rate=3e-3/seed-0/config.json").read_text())
    assert grid_run["task"]["eval"] == [f"jsonl:{folder}/data/held-out.jsonl"]
    final = json.loads((folder / "runs/seed-1/config.json").read_text())
    assert final["task"]["eval"] == [f"tsv:{tmp_path}/dev.tsv"] and final["task"]["train"] == [
        f"tsv:{tmp_path}/train.tsv"
    ]
    assert final["optimizer"]["learning_rate"] == float(results[2]["settings"]["optimizer.learning_rate"])
    assert len(results[2]["scores"]["accuracy"]) == 2 and " +- " in printed and results[4]["status"] == "done"
    page = (tmp_path / "suite/suite.html").read_text()
    assert "chosen with seed 0 on 10% of the training examples" in page and "bad: failed" in page


def test_tasks_without_training_go_on_after_a_missing_and_a_failing_one(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = {"sentence_good": "the cat sees it.", "sentence_bad": "cat the it sees."}
    with gzip.open(tmp_path / "agreement.jsonl.gz", "wt") as packed:
        packed.write(json.dumps(pair) + "\n")
    tasks = (
        {"name": "bad", "train": "tvs:train.tsv"},
        {"name": "absent", "train": "tsv:absent.tsv", "where": "see the paper"},
        {"name": "after", "from": "absent"},
    )
    file = write_suite(tmp_path, *tasks)
    assert run(tmp_path, [finished.workdir], file, "blimp", "--data", tmp_path) == 1
    printed = capsys.readouterr().out
    assert "bad: failed: source" in printed
    assert "absent: missing: absent.tsv is missing; see the paper" in printed
    assert "after: missing: starts from absent, which has no scores" in printed
    assert re.search(r"^blimp +accuracy +[01]\.0000$", printed, re.M)
    assert "| blimp | accuracy | " in (tmp_path / "suite/suite.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gleu",), "the suite must be one of glue, superglue, blimp, not 'gleu'; did you mean 'glue'?"),
        (("glue",), "--data is missing: the folder of the data of glue"),
        (("none.json",), "none.json: no such file; a suite is a .json file"),
        (({},), 'the suite has no task; it looks like {"tasks"'),
        ((None,), "not a JSON file"),
        (([],), "a suite has the keys tasks (a list)"),
        (({"tasks": [{"name": "a", "train": "tsv:x", "eval": "tsv:x"}] * 2},), "two tasks are named 'a'"),
        (({"tasks": [{"name": "a", "trian": "tsv:x"}]},), "task a: a key must be one of"),
        (({"tasks": [{"name": "a", "train": "tsv:x"}]},), "task a: eval is missing"),
        (({"tasks": [{"name": "a", "train": 1}]},), "train must be a text or a list of texts, not 1"),
        (({"tasks": [{"name": "a/b"}]},), "task 1 needs a name"),
        (({"tasks": [{"name": "a", "train": "t", "eval": "t", "from": "b"}]},), "from=b is not an earlier task"),
        (("blimp", "blimp", "--data", "x"), "two tasks are named 'blimp'"),
    ],
)
def test_an_unsuitable_suite_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...], message: str
) -> None:
    words = list(arguments)
    if not isinstance(words[0], str):
        words[0] = str(tmp_path / "suite.json")
        Path(words[0]).write_text("" if arguments[0] is None else json.dumps(arguments[0]))
    assert run(tmp_path, [tmp_path], *words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "suite").exists()
