"""Plans: the size that is chosen, its values, what is printed and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertjax
from bertjax.commands.plan import config_file, describe_plan, values_of
from bertjax.config.overrides import load_config as read_config_file
from bertjax.config.overrides import values_of as config_values
from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.io.output import format_count
from bertjax.tools import plan as module
from bertjax.tools.loss_law import LossLaw
from bertjax.tools.measured_step import MeasuredStep, TextSize
from bertjax.tools.plan import Plan, batch_size, make_plan

MIB = 2**20


def measured(name: str, cfg: Any, text: TextSize, folder: Path, speed: float = 1.0) -> MeasuredStep:
    """A machine that trains 10^13 FLOPs per second."""
    body = module.body_parameters(cfg)
    parameters = body + cfg.data.vocab_size * cfg.model.hidden_size
    seconds = 6 * parameters / (speed * 1e11)
    per_step = float(cfg.train.batch_size * cfg.data.seq_len)
    return MeasuredStep(name, cfg, parameters, body, 1 / seconds, per_step, 0.25, 7.0, 12 * parameters, MIB, 5.0)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "text.txt").write_text("some text\n")
    return {"data.sources": (f"text:{tmp_path / 'text.txt'}",)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Speed and text of an imaginary machine."""
    facts: dict[str, Any] = {"speed": 1.0, "bytes": 100_000_000, "free": 2**36}
    coefficients = [np.full(50, each) for each in (0.3, 0.2, 0.35, 0.2, 0.35, 60.0, 0.1, 0.01)]
    monkeypatch.setattr(module, "read_law", lambda: LossLaw(*coefficients, (1e6, 1e8), (1e6, 1e7)))
    monkeypatch.setattr(module, "measure_step", lambda *each: measured(*each, speed=facts["speed"]))
    text = lambda *_: TextSize(1000, facts["bytes"], True, Path("sample"), 1000)  # noqa: E731
    monkeypatch.setattr(module, "measure_text", text)
    monkeypatch.setattr(module, "available_bytes", lambda: facts["free"])
    return facts


def plan(sources: dict[str, Any], minutes: float) -> Plan:
    return make_plan(minutes, sources)


def test_more_time_buys_a_larger_model(machine: dict[str, Any], sources: dict[str, Any]) -> None:
    order = {f"bertjax:{size}": number for number, size in enumerate(module.SIZES)}
    chosen = [plan(sources, minutes) for minutes in (1.5, 10, 300, 30_000)]
    ranks = [order[each.name] for each in chosen]
    assert ranks == sorted(ranks) and ranks[0] < ranks[-1]
    losses = [each.best.nats_per_byte for each in chosen]
    assert losses == sorted(losses, reverse=True)
    for each in chosen:
        assert each.tenfold.nats_per_byte < each.best.nats_per_byte <= each.half.nats_per_byte


def test_plan_is_a_config(machine: dict[str, Any], sources: dict[str, Any], tmp_path: Path) -> None:
    planned = plan(sources, 60)
    steps = planned.cfg.train.num_steps
    per_second = planned.best.step.tokens_per_second
    tokens = steps * planned.cfg.train.batch_size * planned.cfg.data.seq_len
    assert tokens / per_second == pytest.approx(0.9 * 3600, rel=0.05)
    assert planned.cfg.schedule.warmup_steps == (steps + 19) // 20 + 200 * steps // (steps + 200)  # of this length
    path = tmp_path / "planned.py"
    path.write_text(config_file(planned, sources["data.sources"]))
    assert config_values(read_config_file(str(path))) == config_values(planned.cfg)
    load_config(str(path))


def test_accelerators_are_measured_at_the_planned_batch(
    machine: dict[str, Any], sources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that needs the same time for a step of any batch of up to 1,024."""
    batches = list[int]()

    def measure(name: str, cfg: Any, text: TextSize, folder: Path) -> MeasuredStep:
        batches.append(cfg.train.batch_size)
        return measured(name, cfg, text, folder, speed=float(min(cfg.train.batch_size, 1024)))

    monkeypatch.setattr(module, "measure_step", measure)
    planned = plan(sources, 300)
    batch, step = planned.cfg.train.batch_size, planned.best.step
    assert batch > 4 * 32 and step.cfg.train.batch_size == 32
    taken = planned.cfg.train.num_steps * batch * 128 / step.tokens_per_second
    at_planned = measured(planned.name, planned.cfg, planned.text, Path(), speed=float(min(batch, 1024)))
    assert step.tokens_per_second >= at_planned.tokens_per_second / 4
    assert taken == pytest.approx(0.9 * 300 * 60, rel=0.05)
    assert planned.changes["train.batch_size"] == batch and len(batches) > len(planned.sizes)


def test_a_batch_that_does_not_fit_is_cut(
    machine: dict[str, Any], sources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is fast with large batches and has memory for 64 sequences."""
    machine["free"] = 500 * MIB
    taken = list[int]()

    def measure(name: str, cfg: Any, text: TextSize, folder: Path) -> MeasuredStep:
        size = cfg.train.batch_size
        step = measured(name, cfg, text, folder, speed=float(min(size, 1024)))
        taken.append(100 * MIB * size // 32 // cfg.train.microbatches)
        return step._replace(step_bytes=taken[-1], state_bytes=MIB)

    monkeypatch.setattr(module, "measure_step", measure)
    planned = plan(sources, 300)
    train = planned.cfg.train
    assert train.microbatches == train.batch_size // 64 > 1 and max(taken) <= 400 * MIB
    assert planned.memory_bytes == pytest.approx(201 * MIB)
    assert planned.changes["train.microbatches"] == train.microbatches
    assert f"tokens in {train.microbatches} microbatches: " in "\n".join(describe_plan(planned))
    halves = plan(sources | {"train.microbatches": 2}, 300)  # a half needs 50 MiB
    assert halves.cfg.train.microbatches == train.microbatches and halves.memory_bytes == planned.memory_bytes
    machine["free"] = 2**40
    assert "train.microbatches" not in plan(sources, 300).changes
    halves = plan(sources | {"train.microbatches": 2}, 300)
    assert "train.microbatches" not in halves.changes and halves.cfg.train.microbatches == 2


def test_little_text_is_read_often_with_strong_decay(machine: dict[str, Any], sources: dict[str, Any]) -> None:
    machine["bytes"] = 2_000_000
    planned = plan(sources, 600)
    assert planned.best.epochs > 10 and planned.limit == "text"
    assert planned.cfg.optimizer.weight_decay == pytest.approx(0.4)
    machine["bytes"] = 10**12
    assert plan(sources, 600).limit == "time"


def test_memory_limits_the_size(machine: dict[str, Any], sources: dict[str, Any]) -> None:
    machine["free"] = 150 * MIB  # mini fits, small does not
    planned = plan(sources, 30_000)
    assert planned.name in ("bertjax:micro", "bertjax:mini")
    assert "memory" in planned.skipped["base"]
    assert planned.limit == "memory"


def test_memory_of_an_accelerator_is_what_its_smallest_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(stats: dict[str, int] | None) -> Any:
        return type("Device", (), {"memory_stats": lambda self: stats})()

    monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    for devices, free in (
        ([{"bytes_limit": 1000}, {"bytes_limit": 500}], 400.0),
        ([None, {"bytes_limit": 1000}], 800.0),
        ([None], float("inf")),
    ):
        monkeypatch.setattr(module.jax, "local_devices", lambda devices=devices: list(map(device, devices)))
        assert module._free_bytes() == free


def test_too_little_text(machine: dict[str, Any], sources: dict[str, Any]) -> None:
    machine["bytes"] = 99_999
    with pytest.raises(UserError, match="text: 99,999 bytes are too little to learn a language from"):
        plan(sources, 60)


def test_too_little_time(machine: dict[str, Any], sources: dict[str, Any]) -> None:
    machine["speed"] = 1e-3
    with pytest.raises(UserError, match=r"minutes=1: 100 steps of bertjax:nano take .* minutes here"):
        plan(sources, 1)


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_time_is_a_positive_number(minutes: float, sources: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be a positive number"):
        plan(sources, minutes)


def test_says_what_it_planned(machine: dict[str, Any], sources: dict[str, Any]) -> None:
    planned = plan(sources, 60)
    text = "\n".join(describe_plan(planned))
    assert planned.name in text and f"{planned.cfg.train.num_steps:,} steps" in text
    assert "half the time" in text and "ten times" in text and "limited by" in text
    values = values_of(planned)
    assert (
        values["config"] == planned.name and values["loss"]["low"] < values["loss"]["median"] < values["loss"]["high"]
    )


def test_a_larger_vocabulary_has_longer_tokens() -> None:
    """Otherwise a size would be refused by the nats per byte that a smaller vocabulary has."""
    nano, micro, mini = (load_config(f"bertjax:{size}") for size in ("nano", "micro", "mini"))
    smaller = MeasuredStep("nano", nano, 1_100_000, 700_000, 1e4, 4096.0, 0.2865, 6.94, 1, 1, 1.0)
    guess = module._guess(smaller, "micro", micro)
    assert guess.nats_per_byte == pytest.approx(1.81, rel=0.05)  # measured
    assert module._guess(guess, "mini", mini).tokens_per_byte == guess.tokens_per_byte


def test_batch_grows_with_the_tokens() -> None:
    assert batch_size(1e5, 128) == 16
    assert batch_size(7.9e6, 128) == 16
    assert batch_size(8e6, 128) == 32
    assert batch_size(3e7, 128) == 32
    assert batch_size(5e7, 128) == 32
    assert batch_size(9e7, 128) == 64
    assert 128 <= batch_size(5e8, 128) <= 256
    assert batch_size(2e10, 128) >= 1024


@pytest.mark.parametrize("batch", [8, 64, 512])
def test_a_batch_of_the_command_line_stays(machine: dict[str, Any], sources: dict[str, Any], batch: int) -> None:
    """With its learning rate, which would otherwise be that of another batch, and as many tokens as fit."""
    planned = make_plan(60, {**sources, "train.batch_size": batch})
    free = make_plan(60, sources)
    assert planned.cfg.train.batch_size == batch and "optimizer.learning_rate" not in planned.changes
    tokens = [each.cfg.train.num_steps * each.cfg.train.batch_size for each in (planned, free)]
    assert tokens[0] == pytest.approx(tokens[1], rel=0.05)


def test_counts_in_words() -> None:
    assert [format_count(each) for each in (400_000, 4.1e6, 12.3e6, 2.5e9)] == ["0.4M", "4.1M", "12M", "2.5B"]


def test_file_must_be_python(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"save=.*must end in \.py"):
        bertjax.plan("builtin:python-docs", 5, save=tmp_path / "plan.json")
