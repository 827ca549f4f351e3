"""scripts/memory_table.py: FLOPs with loops counted by their lengths, and the table of a tiny model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest
from lab import Lab, load_script
from ml_collections import ConfigDict


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(Path(__file__).parents[2] / "scripts" / "memory_table.py")


def test_products_in_loops_count_as_often_as_they_run(script: ModuleType) -> None:
    """3 layers of [5, 4] x [4, 4] forward; backward the same again for the weights and for the inputs."""

    def loss(weights: jax.Array, first: jax.Array, remat: bool) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ w), None

        body = jax.checkpoint(layer, prevent_cse=False) if remat else layer
        return jax.lax.scan(body, first, weights)[0].sum()

    shapes = jnp.ones((3, 4, 4)), jnp.ones((5, 4))
    one = 3 * 2 * 5 * 4 * 4
    result = [
        script.products(jax.make_jaxpr(jax.grad(loss), static_argnums=2)(*shapes, remat).jaxpr)
        for remat in (False, True)
    ]
    assert result == [3 * one, 4 * one]


def test_a_line_a_policy_over_the_one_that_recomputes_nothing(
    lab: Lab, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sum of state and step, in GiB; FLOPs relative to the least."""

    def measure(cfg: ConfigDict) -> object:
        full = cfg.model.remat == "full"
        return script.Cell((1 if full else 8) * 2**30 // cfg.train.microbatches, 4e9 if full else 3e9)

    monkeypatch.setattr(script, "measure", measure)
    monkeypatch.setattr(script, "state_bytes", lambda cfg: 2**30 // (2 if "16" in cfg.optimizer.moments_dtype else 1))
    arguments = ["--config", str(lab.config), "--sizes", "", "--microbatches", "1", "2", "--remat", "none", "full"]
    monkeypatch.setattr(sys, "argv", ["memory_table.py", *arguments])
    assert script.main() == 0
    output = capsys.readouterr().out
    assert "state 1.00 GiB (0.50 with" in output and "| 1 microbatch | 2 microbatches |" in output
    assert "| none | 1.00 | 9.0 | 5.0 |" in output and "| full | 1.33 | 2.0 | 1.5 |" in output


@pytest.mark.weekly
def test_the_table_of_a_tiny_model(
    lab: Lab,
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Recomputing everything costs a third more of the layers' products, and memory falls."""
    out = tmp_path / "table.md"
    monkeypatch.setattr(script, "GIB", 2.0**20)  # the model is tiny
    arguments = ["--config", str(lab.config), "--sizes", "", "--rows", "64", "--length", "64", "--out", str(out)]
    arguments += ["--microbatches", "1", "--remat", "none", "full", "--config.model.num_layers=4"]
    monkeypatch.setattr(sys, "argv", ["memory_table.py", *arguments])
    assert script.main() == 0
    text = out.read_text()
    assert text in capsys.readouterr().out and "compiled for cpu" in text
    rows = {
        name: [float(cell) for cell in cells]
        for name, *cells in re.findall(r"^\| (none|full) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    }
    assert rows["none"][0] == 1.0 and 1.15 < rows["full"][0] < 1.34
    assert rows["none"][1] > 1.5 * rows["full"][1]


def test_what_is_wrong_is_one_line(
    lab: Lab, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", str(lab.config), "--sizes", "", "--rows", "9", "--length", "64", "--microbatches", "2"]
    monkeypatch.setattr(sys, "argv", ["memory_table.py", *arguments])
    assert script.main() == 2
    output = capsys.readouterr().err
    assert output.startswith("error: train.batch_size=9 is not divisible by 2") and output.count("\n") == 1
