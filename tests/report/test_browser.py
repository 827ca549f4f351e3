"""Report pages in headless Chromium: an empty console, no element wider than a phone, interactive charts and heads.

Skipped with a warning if there is no Chromium: `apt-get install chromium`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from workdirs import EVIL, attention, config, task_probes, usual_lines, usual_probes, write_workdir

from bertjax.report.comparability import read_compared_run
from bertjax.report.compare import compare
from bertjax.report.render import render

SCRIPT = Path(__file__).parents[2] / "scripts" / "chromium.py"
WIDTHS = (390, 1200, 1600)
WINDOWS = [(390, True), (1280, False)]


def driver() -> ModuleType:
    specification = importlib.util.spec_from_file_location("chromium", SCRIPT)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    module = driver()
    if module.find_chromium() is None:
        not_tested("there is no Chromium (apt-get install chromium)")
    with contextlib.ExitStack() as stack:
        try:
            browser = stack.enter_context(module.chromium())
        except (OSError, RuntimeError, TimeoutError) as error:  # for example, a sandbox that it cannot make
            not_tested(f"Chromium does not start ({error})")
        yield browser


def not_tested(why: str) -> NoReturn:
    message = f"THE REPORT WAS NOT TESTED IN A BROWSER: {why}"
    warnings.warn(message, stacklevel=1)
    pytest.skip(message)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a page with everything, long words and hostile text."""
    long = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 2
    probes = [*usual_probes(f"{long} [MASK] {EVIL}"), *task_probes(), attention(["[CLS]", long, "b"], 12, 12, step=99)]
    settings = config(data__sources=[f"text:{long}"])
    settings["train"]["num_steps"] = 200
    return render(write_workdir(tmp_path_factory.mktemp("page") / long[:80], usual_lines(), probes, settings))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run that has no metrics yet."""
    return render(write_workdir(tmp_path_factory.mktemp("started") / "run"))


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    facts = {"step": 0, "kind": "run", "phases": [{"start": 0, "slots": 256, "flops": 1e6}]}
    runs = []
    for seed, name in enumerate(["mlm-0", "mlm-1", "rtd-0"]):
        settings = config(seed=seed, objective__name=name[:3])
        facts |= {"objective": f"{name} (generator: masked language modeling)", "parameters": {"model": 10**8}}
        lines = [line | {f"eval/{other}_loss": 0.5 for other in ("next_sentence", "rtd")} for line in usual_lines()]
        workdir = write_workdir(folder / f"learning_rate=1e-5,batch_size=16,{name}", lines, [facts], settings)
        (workdir / "probe.json").write_text(json.dumps({"scores": {"tags": 0.4 + seed / 10}}))
        runs.append(read_compared_run(workdir, name))
    compare(runs, folder / "compare.html")
    return folder / "compare.html"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["report", "side_by_side", "started"])
def test_a_page_has_no_defect(tab: Any, request: pytest.FixtureRequest, page: str, width: int, dark: bool) -> None:
    tab.media(dark=dark)
    tab.open(request.getfixturevalue(page), width, phone=width < 500)
    assert tab.defects() == []
    assert tab.run("innerWidth") == width
    assert tab.run("document.images.length") == 0 and "undefined" not in tab.run("document.body.innerText")


def test_defects_are_noticed(tab: Any, tmp_path: Path) -> None:
    body = """<style>body { background: #fff }</style><p style="color: #888">pale</p><p style="width: 2000px">wide</p>
    <div style="overflow: auto; width: 200px"><p style="width: 2000px">scrolls</p></div><button style="font-size: 5px">
    small</button><p style="opacity: 0; color: #fff">none</p><script>console.error("bad")</script>"""
    (tmp_path / "a.html").write_text(body)
    tab.open(tmp_path / "a.html", 1200)
    result = "\n".join(tab.defects())
    for defect in ("bad", "“pale” has a contrast of 3.5", "“wide” ends right", "in a window of 1200"):
        assert defect in result, defect
    assert "scrolls" not in result and "none" not in result


def test_paper_is_white_and_has_no_buttons(tab: Any, report: Path) -> None:
    tab.media(dark=True, kind="print")
    tab.open(report, 800)
    assert tab.run("getComputedStyle(document.documentElement).getPropertyValue('--card').trim()") == "#ffffff"
    assert tab.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
    tab.media()


def test_the_table_of_runs_fits_a_window(tab: Any, side_by_side: Path) -> None:
    tab.open(side_by_side, 1200)
    assert (
        tab.run(
            "(() => { const t = document.querySelector('.runs .scroll'); return t.scrollWidth - t.clientWidth; })()"
        )
        <= 0
    )


@pytest.mark.parametrize("width,phone", WINDOWS)
def test_a_pointer_reads_values(tab: Any, report: Path, width: int, phone: bool) -> None:
    tab.open(report, width, phone=phone)
    tab.run("document.querySelector('#chart-mlm_loss').scrollIntoView({block: 'center'})")
    box = tab.run("(() => { const b = document.querySelector('#chart-mlm_loss .plot').getBoundingClientRect();"
                  " return [b.left, b.top, b.width, b.height]; })()")  # fmt: skip
    before = tab.run("document.querySelector('#chart-mlm_loss .legend').innerText")
    tab.point(box[0] + box[2] / 2, box[1] + box[3] / 2)
    values = tab.run("[...document.querySelectorAll('#chart-mlm_loss .legend b')].map((b) => b.textContent)")
    assert tab.run("document.querySelector('#chart-mlm_loss .legend').dataset.at") == "step 50"
    assert values == ["5.573", "6.5", "6.5"]
    assert tab.run("document.querySelector('#chart-mlm_loss .cursor').hidden") is False
    tab.point(1, 1)
    assert tab.run("document.querySelector('#chart-mlm_loss .legend').innerText") == before


def test_keys_read_values_too(tab: Any, report: Path) -> None:
    tab.open(report, 1280)
    tab.run("document.querySelector('#chart-mlm_accuracy .plot').focus()")
    for _ in range(3):
        tab.press("ArrowRight")
    assert tab.run("document.querySelector('#chart-mlm_accuracy .legend').dataset.at") == "step 3"
    tab.press("ArrowLeft")
    assert tab.run("document.querySelector('#chart-mlm_accuracy .legend').dataset.at") == "step 2"


def test_scales_and_smoothing_are_switched(tab: Any, report: Path) -> None:
    tab.open(report, 1280)
    shown = (
        "[...document.querySelectorAll('#chart-grad_norm .view')].filter((v) => !v.hidden).map((v) => v.dataset.log)"
    )
    assert tab.run(shown) == ["0"]
    tab.run("document.querySelector('#chart-grad_norm [data-tool=log]').click()")
    assert tab.run(shown) == ["1"]
    smooth = "getComputedStyle(document.querySelector('#chart-grad_norm .view:not([hidden]) .smooth')).display"
    assert tab.run(smooth) != "none"
    tab.run("document.querySelector('#chart-grad_norm [data-tool=raw]').click()")
    assert tab.run(smooth) == "none"


@pytest.mark.parametrize("width,phone", WINDOWS)
def test_attention_is_explored(tab: Any, report: Path, width: int, phone: bool) -> None:
    tab.open(report, width, phone=phone)
    assert tab.run("document.querySelectorAll('.heads button').length") == 6  # 2 layers of 3 heads, the newest
    assert tab.run("document.querySelectorAll('.chips button').length") == 4
    script = "document.querySelector('.attention-view output').textContent"
    first = tab.run(script)
    tab.run("document.querySelectorAll('.heads button')[5].click()")
    tab.run("document.querySelectorAll('.chips button')[1].click()")
    assert tab.run(script).startswith("layer 1, head 2: “the” looks at") and tab.run(script) != first
    # bytes 17 i + 5 head: token 1 (positions 4 to 7) of head 2 attends to token 3 with 129 of 255
    assert tab.run(script).endswith("“[SEP]” with 50.6\N{NO-BREAK SPACE}%")
    tab.run("document.querySelector('.map canvas').scrollIntoView({block: 'center'})")
    box = tab.run("(() => { const b = document.querySelector('.map canvas').getBoundingClientRect();"
                  " return [b.left, b.top, b.width, b.height]; })()")  # fmt: skip
    tab.point(box[0] + box[2] * 0.1, box[1] + box[3] * 0.9)
    assert "“[SEP]” looks at “[CLS]” with 83.9\N{NO-BREAK SPACE}%" in tab.run(script)
    tab.run("(() => { const s = document.querySelector('.attention-view select'); s.value = '0';"
            " s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert tab.run("document.querySelectorAll('.heads button').length") == 144
    assert tab.complaints() == []


def test_the_axis_below_is_switched(tab: Any, side_by_side: Path) -> None:
    tab.open(side_by_side, 1280)
    shown = (
        "[...document.querySelectorAll('#chart-A-mlm-loss .view')].filter((v) => !v.hidden).map((v) => v.dataset.axis)"
    )
    assert tab.run(shown) == ["step"]
    tab.run("document.querySelector('#chart-A-mlm-loss [data-axis=FLOPs][type=button]').click()")
    assert tab.run(shown) == ["FLOPs"]
    tab.run("document.querySelector('#chart-A-mlm-loss .plot').focus()")
    tab.press("ArrowRight")
    assert tab.run("document.querySelector('#chart-A-mlm-loss .legend').dataset.at") == "FLOPs 25M"


def test_a_running_page_reloads_only_on_request(tab: Any, report: Path) -> None:
    tab.open(report, 1280)
    assert tab.run("document.getElementById('reload').checked") is False
    tab.run("document.getElementById('reload').click()")
    assert tab.run("location.hash") == "#reload"
    tab.run("document.getElementById('reload').click()")
    assert tab.run("location.hash") == "" and tab.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_lines_have_eight_colors(tab: Any, report: Path, dark: bool) -> None:
    tab.media(dark=dark)
    tab.open(report, 1200)
    styles = tab.run(
        "[...Array(8).keys()].map((i) => getComputedStyle(document.documentElement).getPropertyValue('--c' + i).trim())"
    )
    assert len(set(styles)) == 8
    tab.media()
