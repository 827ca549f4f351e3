"""Comparison of runs: only losses of the same meaning share a chart; amounts; the probe of frozen features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workdirs import EVIL, Document, config, eval_line, train_line, usual_lines, write_workdir

from bertjax.report.comparability import (
    ComparedRun,
    group_by_seed,
    group_comparable,
    interpolate_metric,
    read_compared_run,
    shared_end,
    unique_names,
)
from bertjax.report.compare import NOT_COMPARABLE, compare

FACTS = {"step": 0, "kind": "run", "parameters": {"model": 1000}, "phases": [{"start": 0, "slots": 256, "flops": 1e6}]}


def run(
    folder: Path, scores: dict[str, float] | None = None, tokenizer: str = "one", last: int = 100, **changes: Any
) -> ComparedRun:
    lines = [line for line in usual_lines() if line["step"] <= last]
    write_workdir(folder, lines, [FACTS], config(**changes))
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "tokenizer" / "vocab.txt").write_text(tokenizer)
    if scores is not None:
        (folder / "probe.json").write_text(json.dumps({"scores": scores}))
    return read_compared_run(folder, folder.name)


def letters(*contenders: ComparedRun) -> str:
    result = {each.name: group.letter for group in group_comparable(contenders) for each in group.members}
    return "".join(result[each.name] for each in contenders)


def test_what_a_loss_means_decides_who_stands_together(tmp_path: Path) -> None:
    base = run(tmp_path / "base")
    same = [
        run(tmp_path / "seed", seed=1),
        run(tmp_path / "wider", model={"preset": "bert-mini"}),
        run(tmp_path / "rate", optimizer__learning_rate=1e-2),
        run(tmp_path / "longer", train__num_steps=500),
    ]
    assert letters(base, *same) == "AAAAA"
    others = [
        run(tmp_path / "objective", objective__name="rtd"),
        run(tmp_path / "masks", objective__mask_rate=0.3),
        run(tmp_path / "tokens", tokenizer="two"),
        run(tmp_path / "rows", data__seq_len=64),
        run(tmp_path / "text", data__eval_sources=["text:b.txt"]),
        run(tmp_path / "fewer", eval__num_batches=1),
    ]
    assert letters(base, *others) == "ABCDEFG"


def test_the_same_held_out_text_and_other_training_text(tmp_path: Path) -> None:
    one = run(tmp_path / "one", data__eval_sources=["text:held.txt"], data__sources=["text:a.txt"])
    other = run(tmp_path / "other", data__eval_sources=["text:held.txt"], data__sources=["text:b.txt"])
    assert letters(one, other) == "AA"


def test_documents_are_held_out_of_the_text_of_all_phases(tmp_path: Path) -> None:
    """The last phases read the same, the first ones do not; the record of a run names what all read."""
    runs = []
    for name in "ab":
        write_workdir(
            tmp_path / name, usual_lines(), [{**FACTS, "sources": {"train": [f"text:{name}.txt", "text:c.txt"]}}]
        )
        runs.append(read_compared_run(tmp_path / name, name))
    assert letters(*runs) == "AB"


def test_tokens_are_real_ones_and_flops_those_of_full_rows(tmp_path: Path) -> None:
    each = run(tmp_path / "a")
    assert each.spent("step") == 100
    assert each.spent("tokens") == pytest.approx(100 * 256 * 0.75)  # a quarter is padding
    assert each.spent("FLOPs") == pytest.approx(100 * 1e6)
    assert each.minutes == pytest.approx(100 * 0.5 / 60)


def test_phases_of_a_run_cost_what_each_costs(tmp_path: Path) -> None:
    phases = [{"start": 0, "slots": 100, "flops": 1.0}, {"start": 40, "slots": 10, "flops": 5.0}]
    lines = [train_line(step, **{"train/padding": 0.0}) for step in range(20, 101, 20)]
    write_workdir(tmp_path, lines, [{**FACTS, "phases": phases}])
    each = read_compared_run(tmp_path, "a")
    assert each.spent("tokens") == 40 * 100 + 60 * 10
    assert each.spent("FLOPs") == 40 * 1.0 + 60 * 5.0
    assert each.at("FLOPs", np.array([20.0, 60.0])).tolist() == [20.0, 140.0]  # type: ignore[union-attr]


def test_what_nobody_knows_is_not_made_up(tmp_path: Path) -> None:
    write_workdir(tmp_path, usual_lines(), settings=config(train__phases=["50%:data.seq_len=16"]))
    each = read_compared_run(tmp_path, "a")
    assert each.spent("FLOPs") is None and each.spent("tokens") is None
    assert shared_end([each], "FLOPs") is None


def test_values_at_equal_amounts_lie_between_evaluations(tmp_path: Path) -> None:
    each, short = run(tmp_path / "a"), run(tmp_path / "b", last=50)
    assert shared_end([each, short], "step") == 50
    assert shared_end([each, short], "tokens") == pytest.approx(50 * 256 * 0.75)
    assert interpolate_metric(each, "mlm_loss", "step", 50) == pytest.approx(6.5)
    assert interpolate_metric(each, "mlm_loss", "step", 60) == pytest.approx(6.4)
    assert interpolate_metric(each, "mlm_loss", "FLOPs", 60e6) == pytest.approx(6.4)
    assert interpolate_metric(each, "mlm_loss", "step", 10) is None, "before the first evaluation nothing is known"
    assert interpolate_metric(each, "nothing_loss", "step", 50) is None


def test_seeds_of_a_config_are_one_entry_of_the_probe(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"mlm-{seed}", {"tags": 0.4 + seed / 100}, seed=seed) for seed in range(3)]
    other = run(tmp_path / "rtd-0", {"tags": 0.3}, objective__name="rtd")
    result = group_by_seed([*runs, other])
    assert {name: len(members) for name, members in result.items()} == {"mlm": 3, "rtd-0": 1}


def test_the_page(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "mlm-0", {"tags": 0.4, EVIL: 0.6}),
        run(tmp_path / "mlm-1", {"tags": 0.42}, seed=1, last=50),
        run(tmp_path / "x<b>", {"tags": 0.3}, objective__name="rtd", objective__masking=EVIL),
    ]
    table = compare(runs, tmp_path / "out" / "compare.html")
    text = (tmp_path / "out" / "compare.html").read_text()
    document = Document(text)
    assert {"chart-A-mlm-loss", "chart-B-mlm-loss", "probe", "runs"} <= set(document.ids)
    assert len(set(document.ids)) == len(document.ids)
    charts = [json.loads(block) for block in document.texts["script"][:-1]]
    by_lines = [len(chart["lines"]) for chart in charts]
    assert by_lines == [2, 2, 1, 1], "a chart holds the runs of its group alone"
    assert set(charts[0]["ends"]) == {"step", "tokens", "FLOPs"}
    assert charts[0]["lines"][1]["x"]["FLOPs"] == [25e6, 50e6]
    assert NOT_COMPARABLE in " ".join(document.texts["p"])
    assert "end of the shortest run" in text and "at 50 steps" in text
    assert not document.of("img") and not document.of("b<")
    assert NOT_COMPARABLE in table
    assert [line.split()[:2] for line in table.splitlines()[2:5]] == [["mlm-0", "A"], ["mlm-1", "A"], ["x<b>", "B"]]


def test_the_table_names_every_loss_and_words_next_to_guessing(tmp_path: Path) -> None:
    lines = [eval_line(10, 6.0, **{"eval/rtd_loss": 0.4, "eval/rtd_accuracy": 0.8, "eval/news/mlm_loss": 5.0})]
    each = read_compared_run(write_workdir(tmp_path / "a", lines), "a")
    assert "mlm 6.000 (unigram 6.500), rtd 0.400" in compare([each], None)


def test_without_a_probe_the_page_says_that_nothing_is_decided(tmp_path: Path) -> None:
    table = compare([run(tmp_path / "a"), run(tmp_path / "b", objective__name="rtd")], tmp_path / "c.html")
    assert "No run has a probe yet" in table and "No run has a probe yet" in (tmp_path / "c.html").read_text()


def test_a_run_that_stopped_early_shortens_no_comparison(tmp_path: Path) -> None:
    runs = [run(tmp_path / name, last=last) for name, last in (("size=1,seed=0", 100), ("b", 75), ("s", 3))]
    compare(runs, tmp_path / "c.html")
    document = Document((tmp_path / "c.html").read_text())
    assert "Without an evaluation: s." in document.texts["p"] and "at 75 steps" in document.texts["th"]
    assert "3 of 100" in document.texts["td"]


def test_names_are_short_in_legends_and_tables_fit_a_terminal(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"size=1,seed={seed}") for seed in (0, 1)]
    table = compare(runs, tmp_path / "c.html", columns=100)
    assert {"seed=0 ", "seed=1 "} <= set(Document((tmp_path / "c.html").read_text()).texts["span"])
    assert max(map(len, table.splitlines())) <= 100 < max(map(len, compare(runs, None).splitlines()))
    assert sum(line.startswith("size=1,seed=0  ") for line in table.splitlines()) == 2, "facts, then results"


def test_tasks_are_compared_by_their_scores(tmp_path: Path) -> None:
    lines = [{"step": 10, "eval/loss": 0.5, "eval/classification_loss": 0.5, "eval/accuracy": 0.8125}]
    changes = {"objective__name": "task", "model__preset": "none"}
    each = read_compared_run(write_workdir(tmp_path / "a", lines, [FACTS], config(**changes)), "a")
    table = compare([each], tmp_path / "c.html")
    assert "classification 0.500, accuracy 0.8125" in table and " custom " in table and " none " not in table
    assert "No run has a probe" not in table + (tmp_path / "c.html").read_text()
    assert "scores on the same held-out examples" in table
    assert "No run has a probe" in compare([each, run(tmp_path / "b")], None)


def test_tasks_with_the_same_held_out_examples_stand_together(tmp_path: Path) -> None:
    lines = [{"step": 10, "eval/loss": 0.5, "eval/accuracy": 0.75}]
    settings = [
        {"kind": "classification", "eval": ["tsv:a.tsv"], "from_scratch": False, "batch_size": 16},
        {"kind": "classification", "eval": ["tsv:a.tsv"], "from_scratch": True, "batch_size": 32},
        {"kind": "classification", "eval": ["tsv:b.tsv"], "from_scratch": True, "batch_size": 32},
    ]
    result = [
        read_compared_run(
            write_workdir(tmp_path / str(n), lines, [FACTS], config(objective__name="task") | {"task": changes}), str(n)
        )
        for n, changes in enumerate(settings)
    ]
    assert letters(*result) == "AAB"


def test_scores_of_earlier_shoot_outs_are_read(tmp_path: Path) -> None:
    folder = write_workdir(tmp_path / "a", usual_lines())
    (folder / "outcome.json").write_text(json.dumps({"objective": "mlm", "tags": 0.5, "sentences": 0.6, "flops": 1e9}))
    assert read_compared_run(folder, "a").scores == {"tags": 0.5, "sentences": 0.6}
    (folder / "probe.json").write_text('{"scores": {"words": 0.7, "bad": "x"}}')
    assert read_compared_run(folder, "a").scores == {"words": 0.7}


def test_runs_without_any_metrics(tmp_path: Path) -> None:
    empty = read_compared_run(write_workdir(tmp_path / "a"), "a")
    bad = read_compared_run(write_workdir(tmp_path / "b", [eval_line(10, float("nan"))]), "b")
    table = compare([empty, bad], tmp_path / "c.html")
    assert [line.split()[:2] for line in table.splitlines()[2:4]] == [["a", "A"], ["b", "A"]]
    Document((tmp_path / "c.html").read_text())


def test_names_tell_folders_apart(tmp_path: Path) -> None:
    folders = [tmp_path / "one" / "mlm", tmp_path / "two" / "mlm"]
    assert unique_names(folders) == ["one/mlm", "two/mlm"]
    assert unique_names(folders[:1]) == ["mlm"]
