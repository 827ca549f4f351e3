"""The report of a task: confusion matrix, classes and, of several seeds, mean and standard deviation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import NOUNS, Finished, Lab

from bertjax.cli import main
from bertjax.report.run_record import read_run
from bertjax.report.training_callbacks import ReportWriter, write_seed_scores
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.metrics.classification import classification_scores

CONFIG = """
from bertjax.config.defaults import base_config

def get_config():
    config = base_config()
    config.platform = "cpu"
    config.objective.name = "task"
    config.init_from = "{model}"
    config.task.train = ("tsv:{texts}",)
    config.task.eval = ("tsv:{texts}",)
    config.task.kind = "classification"
    config.task.max_length = 16
    config.task.batch_size = 8
    config.task.epochs = 1.0
    config.schedule.warmup_steps = 1
    config.mesh.data = 1
    config.logging.tensorboard = False
    config.data.cache_dir = "{cache}"
    return config
"""


def test_the_report_shows_what_an_evaluation_printed() -> None:
    report = ReportWriter()
    assert report.task_probes() == []
    of = classification_scores([0, 1, 1, 1], [0, 0, 1, 1], ("animal", "thing"))
    report.on_task_scores(EvalResult(of.metrics(), of.per_class, of.labels, of.confusion))
    (confusion, first), (classes, second) = json.loads(json.dumps(report.task_probes()))
    assert (confusion, classes) == ("confusion", "classes")
    assert first == {"labels": ["animal", "thing"], "counts": [[1, 0], [1, 2]]}
    assert second["rows"][1] == {"label": "thing", "precision": 1.0, "recall": 2 / 3, "f1": 0.8, "support": 3}


def test_the_chosen_weights_are_next_to_the_last_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    report = ReportWriter()
    of = classification_scores([0, 1, 1, 1], [0, 0, 1, 1], ("animal", "thing"))
    report.on_task_scores(EvalResult(of.metrics(), of.per_class, of.labels, of.confusion))
    for _ in range(2):  # a finished run is started again
        report.on_best_params(tmp_path, 30, 20)
        named = [
            (record["set"], record["of_step"])
            for kind in ("confusion", "classes")
            for record in read_run(tmp_path).newest(kind)
        ]
        assert named == [("the weights taken", 20)] * 2
    text = (tmp_path / "report.html").read_text()
    assert "Confusion of the weights taken, step 20" in text


def test_every_report_names_all_seeds(tmp_path: Path) -> None:
    folders = {seed: tmp_path / f"seed-{seed}" for seed in (0, 1)}
    for folder in folders.values():
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    write_seed_scores(folders, {seed: {"eval/accuracy": 0.5 + seed / 4} for seed in (0, 1)})
    for folder in folders.values():
        text = (folder / "report.html").read_text()
        assert '<td>mean</td><td class="n">0.6250</td>' in text and '<td>std</td><td class="n">0.1768</td>' in text


@pytest.mark.weekly
def test_a_task_has_its_classes_and_its_seeds(lab: Lab, finished: Finished, tmp_path: Path) -> None:
    texts, config = tmp_path / "texts.tsv", tmp_path / "task.py"
    lines = [f"the {noun} sees it.\t{'animal' if index < 3 else 'thing'}" for index, noun in enumerate(NOUNS)]
    texts.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    config.write_text(CONFIG.format(model=finished.workdir, texts=texts, cache=lab.folder / "cache"))
    assert main(["finetune", "--config", str(config), "--workdir", str(tmp_path / "run"), "--seeds", "0,1"]) == 0
    for seed in (0, 1):
        folder = tmp_path / "run" / f"seed-{seed}"
        records = [json.loads(line) for line in (folder / "probes.jsonl").read_text().splitlines()]
        confusion = [record for record in records if record["kind"] == "confusion"][-1]
        assert confusion["labels"] == ["animal", "thing"]
        assert [sum(row) for row in confusion["counts"]] == [3, len(NOUNS) - 3], "rows are what is right"
        classes = [record for record in records if record["kind"] == "classes"][-1]
        assert [row["support"] for row in classes["rows"]] == [3, len(NOUNS) - 3]
        (seeds,) = [record for record in records if record["kind"] == "seeds"]
        assert [row["seed"] for row in seeds["rows"]] == [0, 1] and "accuracy" in seeds["rows"][0]["scores"]
        text = (folder / "report.html").read_text()
        for output in ("Confusion, step", "2 seeds", "<td>std</td>", 'id="chart-accuracy"'):
            assert output in text, output
