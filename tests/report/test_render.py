"""The page: complete HTML, no external resources, and data that never becomes markup, for any work directory."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workdirs import (
    EVIL,
    Document,
    attention,
    config,
    eval_line,
    task_probes,
    train_line,
    usual_lines,
    usual_probes,
    write_workdir,
)

from bertjax.config.overrides import load_config, to_json
from bertjax.report.page import write_page
from bertjax.report.render import preset_name, render, report_page
from bertjax.report.run_record import RunRecord, columns, read_run


def rendered(folder: Path) -> tuple[str, Document]:
    text = render(folder).read_text(encoding="utf-8")
    return text, Document(text)


@pytest.fixture
def usual(tmp_path: Path) -> Path:
    return write_workdir(tmp_path / "run", usual_lines(), [*usual_probes(), *task_probes()])


def test_everything_that_was_measured_is_there(usual: Path) -> None:
    text, document = rendered(usual)
    sections = ["loss", "task", "scores", "predictions", "attention", "neighbors", "optimization", "speed", "config"]
    assert [each["id"] for each in document.of("section")] == sections
    charts = {"mlm_loss", "mlm_accuracy", "learning_rate", "grad_norm", "tokens_per_second", "padding", "data_wait"}
    assert {f"chart-{name}" for name in [*charts, "memory", "lr_finder", "reliability"]} <= set(document.ids)
    assert len(set(document.ids)) == len(document.ids)
    for phrase in ("unigram baseline", "0.500 better", "123,456", "1 x cpu", "seeds", "95.0 %", "dog", "held out"):
        assert phrase in text, phrase
    assert "Mean difference 6.5 % (expected calibration error, 100 predictions in 2 bins)." in text
    assert "Anomalies: none." in text
    assert "MFU is unknown" in text


def test_the_page_asks_for_nothing(usual: Path) -> None:
    text, document = rendered(usual)
    for attribute in ("src", "href", "action", "data", "poster", "srcset", "xlink:href"):
        for _, attributes in document.elements:
            assert (attributes.get(attribute) or "#").startswith(("#", "data:")), attributes
    assert not re.search(r"https?://|url\(|@import|//cdn", text)
    (policy,) = [each for each in document.of("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in str(policy["content"])


def test_only_our_own_script_may_run(usual: Path) -> None:
    text, document = rendered(usual)
    scripts = [each for each in document.of("script") if each.get("type") != "application/json"]
    assert len(scripts) == 1
    body = text[text.rindex("<script>") + len("<script>") : text.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert not any(name.startswith("on") for _, attributes in document.elements for name in attributes)


def test_text_of_the_data_is_text(tmp_path: Path) -> None:
    settings = config(data__sources=[EVIL], seed=EVIL, objective__masking=EVIL)
    settings[EVIL] = {EVIL: [EVIL]}
    lines = [*usual_lines(), {"step": 100, f"eval/{EVIL}/mlm_loss": 1.0, f"train/{EVIL}": 1.0}]
    probes = [*usual_probes(EVIL), *task_probes(), {"step": 100, "kind": "neighbors", "token": EVIL, "near": []}]
    text, document = rendered(write_workdir(tmp_path / "x&y<b>", lines, probes, settings))
    assert not document.of("img")
    assert len([each for each in document.of("script") if each.get("type") is None]) == 1
    assert text.count("</script><script>") == 0 and "alert('x')" in document.text
    assert "x&y<b>" in document.text
    for block in document.texts["script"][:-1]:
        json.loads(block)


def test_points_for_the_pointer_are_those_that_are_drawn(usual: Path) -> None:
    _, document = rendered(usual)
    blocks = [json.loads(text) for text in document.texts["script"][:-1]]
    loss = next(block for block in blocks if isinstance(block, dict) and len(block["lines"]) == 3)
    train, held_out, baseline = loss["lines"]
    assert train["x"]["step"] == list(range(1, 101)) and held_out["x"]["step"] == [25, 50, 75, 100]
    assert held_out["y"] == [6.75, 6.5, 6.25, 6] and baseline["y"] == [6.5] * 4
    assert loss["ends"]["step"] == [0, 100]


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    text, document = rendered(write_workdir(tmp_path))
    assert "No metrics yet" in text and [each["id"] for each in document.of("section")] == ["config"]
    assert "reload" in document.ids


def test_numbers_that_are_none_are_gaps_and_are_counted(tmp_path: Path) -> None:
    lines = [train_line(step) for step in range(1, 11)]
    lines[4]["train/mlm_loss"] = None
    lines[5]["train/mlm_loss"] = float("inf")
    text, _ = rendered(write_workdir(tmp_path, lines))
    assert "Gaps: 2 non-finite values." in text
    assert "nan" not in text.replace("nansum", "").lower().split("<script>")[0]


def test_nothing_but_gaps(tmp_path: Path) -> None:
    text, _ = rendered(write_workdir(tmp_path, [{"step": 1, "train/mlm_loss": None, "eval/mlm_loss": None}]))
    assert "No values yet." in text


def test_a_line_that_was_not_finished_is_passed_over(usual: Path) -> None:
    for name in ("metrics.jsonl", "probes.jsonl"):
        with (usual / name).open("a") as file:
            file.write('{"step": 101, "train/mlm_loss": 3.')
    text, _ = rendered(usual)
    assert "Step 100 of 100, done" in text


def test_errors_are_reported(tmp_path: Path) -> None:
    lines = [train_line(step, **{"train/skipped": step // 5, "train/rollbacks": 1}) for step in range(1, 21)]
    folder = write_workdir(tmp_path, lines)
    (folder / "anomalies").mkdir()
    jump = {"step": 10, "from_batch": 10, "to_batch": 12, "reason": f"loss is nan {EVIL}"}
    (folder / "anomalies" / "batch_skips.json").write_text(json.dumps([jump]))
    text, document = rendered(folder)
    assert "Anomalies: 4 skipped steps; 1 rollbacks to a checkpoint." in text
    assert "chart-skipped" in document.ids and "chart-spikes" not in document.ids
    assert "loss is nan" in document.text and not document.of("img")


def test_held_out_sets_stand_in_one_chart(tmp_path: Path) -> None:
    more = {"eval/news/mlm_loss": 5.0, "eval/books/mlm_loss": 6.0}
    _, document = rendered(write_workdir(tmp_path, [eval_line(step, 6.0, **more) for step in (10, 20)]))
    assert "chart-sets-mlm_loss" in document.ids
    assert {"news ", "books "} <= set(document.texts["span"])


def test_replaced_tokens_have_their_own_loss_and_their_scores(tmp_path: Path) -> None:
    more = {"eval/rtd_loss": 0.4, "eval/rtd_accuracy": 0.8, "eval/rtd_recall": 0.1, "eval/replaced_share": 0.14}
    _, document = rendered(write_workdir(tmp_path, [eval_line(step, 6.0, **more) for step in (10, 20)]))
    expected = ["mlm_loss", "loss", "rtd_loss", "mlm_accuracy", "rtd_accuracy", "replaced_share", "rtd_recall"]
    assert [name for name in document.ids if name.startswith("chart-")] == [f"chart-{name}" for name in expected]


def test_many_fillings_are_thinned_and_news_is_marked(tmp_path: Path) -> None:
    probes = [
        {"step": step, "kind": "fill_mask", "sentence": "a [MASK].", "tokens": [[f"w{step // 50}", 0.5]]}
        for step in range(1, 101)
    ]
    text, document = rendered(write_workdir(tmp_path, usual_lines(), probes))
    rows = text[text.index('<table class="fill">') :].count("<tr>") - 1
    assert rows == 12
    assert len([each for each in document.of("li") if each.get("class") == "new"]) == 2  # w0, then w1, then w2
    assert '<span class="mask">[MASK]</span>' in text


def test_a_large_confusion_is_a_list_of_errors(tmp_path: Path) -> None:
    labels = [f"label{index}" for index in range(60)]
    counts = [[100 if i == j else (7 if (i, j) == (3, 4) else 0) for j in range(60)] for i in range(60)]
    probe = {"step": 1, "kind": "confusion", "labels": labels, "counts": counts}
    text, _ = rendered(write_workdir(tmp_path, usual_lines(), [probe]))
    assert "most frequent errors" in text
    assert "<tr><td>label3</td><td>label4</td><td" in text and text.count("<td>label") == 2


def test_seeds_have_a_mean_and_the_spread_of_a_sample(tmp_path: Path) -> None:
    text, _ = rendered(write_workdir(tmp_path, usual_lines(), task_probes()))
    assert '<td>mean</td><td class="n">0.8100</td>' in text
    assert '<td>std</td><td class="n">0.0100</td>' in text


def test_generated_texts_stand_next_to_their_targets(tmp_path: Path) -> None:
    rows = [{"source": "a dog", "target": "ein Hund", "output": EVIL}]
    probe = {"step": 10, "kind": "samples", "rows": rows, "signatures": {"bleu": "nrefs:1|tok:13a"}}
    text, document = rendered(write_workdir(tmp_path, usual_lines(), [probe]))
    assert "<td>a dog</td><td>ein Hund</td><td>" in text and EVIL not in text
    assert "Generated texts" in document.text and "bleu: nrefs:1|tok:13a" in document.text


def test_the_top_of_a_task_is_its_scores(tmp_path: Path) -> None:
    lines = [{"step": 10, "eval/loss": 0.5, "eval/accuracy": 0.75, "eval/f1": 0.5, "eval/matthews": -0.1, "eval/z": 1}]
    settings = config(objective__name="task", task={"kind": "classification"})
    _, document = rendered(write_workdir(tmp_path, lines, settings=settings))
    names, values = document.texts["dt"][:3], document.texts["dd"][:3]
    assert (names, values) == (["Accuracy", "F1", "Matthews"], ["75 %", "50 %", "-0.1"])
    assert "classification" in document.text


def test_attention_of_a_wrong_size_is_left_out(tmp_path: Path) -> None:
    broken = attention(["a", "b"])
    broken["tokens"] = ["a"]
    _, document = rendered(write_workdir(tmp_path, usual_lines(), [broken]))
    assert "attention" not in document.ids
    note = {"step": 1, "kind": "note", "about": "attention", "text": f"why not {EVIL}"}
    _, document = rendered(write_workdir(tmp_path, usual_lines(), [note]))
    assert "why not" in document.text and "attention" in document.ids


FIELDS = ("sentence", "tokens", "tokens", "maps", "token", "near", "labels", "counts", "rows", "text", "about")
FIELDS += ("parameters", "phases", "sizes", "host", "set", "devices")


@pytest.mark.long
@settings(max_examples=60)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "step": st.integers(0, 10),
                "kind": st.sampled_from(
                    ["run", "memory", "fill_mask", "attention", "neighbors", "confusion", "classes", "seeds", "note"]
                ),
            },
            optional={
                name: st.recursive(
                    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
                    max_leaves=8,
                )
                for name in FIELDS
            },
        ),
        max_size=6,
    )
)
def test_probes_of_any_shape_make_a_page(probes: list[dict[str, Any]]) -> None:
    Document(report_page(RunRecord("x", config(), columns(usual_lines(8)), probes, [], 0.0)))


def test_the_page_is_replaced_in_one_go(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = render(usual).read_text()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "replace", fails)
        write_page(usual / "report.html", "half")
    assert (usual / "report.html").read_text() == old
    assert not [path for path in usual.iterdir() if path.name.endswith(".tmp")]


def test_ten_thousand_lines_are_drawn_quickly_and_small(tmp_path: Path) -> None:
    folder = write_workdir(tmp_path, [train_line(step) for step in range(1, 10_001)], usual_probes())
    render(folder)
    began = time.process_time()
    path = render(folder)
    seconds = time.process_time() - began
    assert path.stat().st_size < 600_000
    assert seconds < 10, f"{seconds:.2f} s; on an idle core it is 0.2 s"


def test_old_reports_stay_what_they_are_when_nothing_changed(usual: Path) -> None:
    assert render(usual).read_bytes() == render(usual).read_bytes()
    assert read_run(usual).name == "run"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("modernbert:smoke", "modernbert-base, resized"),
        ("modernbert:base", "modernbert-base"),
        ("bert:mini", "bert-mini"),
    ],
)
def test_a_model_of_other_sizes_does_not_have_the_name_of_its_preset(spec: str, name: str) -> None:
    config = json.loads(to_json(load_config(spec)))
    assert preset_name(RunRecord("run", config, {}, [], [], None)) == name
