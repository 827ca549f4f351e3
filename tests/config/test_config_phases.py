"""Phases and ramps: the config of each batch, and which phases are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from ml_collections import ConfigDict

from bertjax.config.defaults import base_config
from bertjax.config.fields import format_value
from bertjax.config.inputs import sources
from bertjax.config.model import encoder_config
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.config.phases import count_sequences_and_tokens, list_phases, source_texts
from bertjax.errors import UserError
from bertjax.experiment.config import parse as check


@pytest.fixture
def cfg() -> ConfigDict:
    config = base_config()
    config.train.num_steps = 1000
    config.train.batch_size = 64
    config.data.seq_len = 512
    return config


def table(cfg: ConfigDict) -> list[tuple[int, int, int]]:
    return [(phase.start, phase.cfg.train.batch_size, phase.cfg.data.seq_len) for phase in list_phases(cfg)]


def test_without_phases_the_config_is_the_only_phase(cfg: ConfigDict) -> None:
    assert table(cfg) == [(0, 64, 512)]
    assert count_sequences_and_tokens(cfg, 10) == (640, 640 * 512)


def test_phases_follow_each_other_and_the_config_comes_last(cfg: ConfigDict) -> None:
    cfg.train.phases = ("80%:data.seq_len=128,objective.masking.max_predictions=20", "100:data.seq_len=256")
    assert table(cfg) == [(0, 64, 128), (800, 64, 256), (900, 64, 512)]
    assert [phase.cfg.objective.masking.max_predictions for phase in list_phases(cfg)] == [20, None, None]
    assert cfg.data.seq_len == 512 and cfg.objective.masking.max_predictions is None
    assert count_sequences_and_tokens(cfg, 850) == (850 * 64, 800 * 64 * 128 + 50 * 64 * 256)
    cfg.train.num_steps = 100
    cfg.train.phases = ("90%:data.seq_len=128",)
    assert table(cfg) == [(0, 64, 128), (90, 64, 512)]  # a share scales with the length of the run


def test_shares_fit_into_runs_of_any_length(cfg: ConfigDict) -> None:
    """Six shares of one run, rounded one by one, would give 6 of 5 steps, or less than one step for a single share."""
    cfg.train.phases = (*(f"14%:data.seq_len={length}" for length in (64, 72, 80, 88, 96)), "20%:data.seq_len=256")
    for steps in (1, 5, 11, 18, 100, 15_625):
        cfg.train.num_steps = steps
        phases = table(cfg)
        ends = [start for start, *_ in phases[1:]] + [steps]
        for (start, _, length), end in zip(phases, ends, strict=True):
            share = {64: (0, 14), 72: (14, 28), 80: (28, 42), 88: (42, 56), 96: (56, 70), 256: (70, 90)}
            low, high = share.get(length, (90, 100))
            assert abs(start - low / 100 * steps) <= 0.5 and abs(end - high / 100 * steps) <= 0.5 and start < end


def test_a_ramp_of_few_steps_leaves_sizes_out(cfg: ConfigDict) -> None:
    cfg.train.initial_batch_size = 16
    for steps, expected in ((0, [(0, 64)]), (1, [(0, 48), (1, 64)]), (2, [(0, 32), (1, 48), (2, 64)])):
        cfg.train.batch_ramp_steps = steps
        assert [(start, size) for start, size, _ in table(cfg)] == expected


def test_a_comma_of_the_command_line_may_part_phases_or_settings(cfg: ConfigDict) -> None:
    cfg.train.phases = ("80%:data.seq_len=128", "objective.masking.max_predictions=20", "100:data.seq_len=256")
    assert table(cfg) == [(0, 64, 128), (800, 64, 256), (900, 64, 512)]
    assert list_phases(cfg)[0].cfg.objective.masking.max_predictions == 20


def test_values_may_hold_commas_and_equals_signs(cfg: ConfigDict) -> None:
    """A phase ends before a length, a setting before KEY=; `\\\\,` is a comma within an item."""
    first = "80%:data.sources=text:a.txt@0.7,lines:k=1,hub:b:data_files=c.txt@1..2,data.seq_len=128"
    second = (
        r"10%:optimizer.lr_mults=encoder/layers/1{2\\,3}/.*=0,.*bias=2,optimizer.weight_decay=0,data.sources=text:d"
    )
    apply_overrides(cfg, [f"--config.train.phases={first},{second}"])
    start, middle, end = (phase.cfg for phase in list_phases(cfg))
    assert start.data.sources == ("text:a.txt@0.7", "lines:k=1", "hub:b:data_files=c.txt@1..2")
    assert (start.data.seq_len, middle.optimizer.weight_decay, end.optimizer.weight_decay) == (128, 0.0, 0.01)
    assert middle.optimizer.lr_mults == ("encoder/layers/1{2,3}/.*=0", ".*bias=2")
    assert end.data.sources == ("builtin:python-docs",)
    assert source_texts(cfg) == [*start.data.sources, "text:d", "builtin:python-docs"]
    again = apply_overrides(base_config(), [f"--config.train.phases={format_value(cfg.train.phases)}"])
    assert again.train.phases == cfg.train.phases


@pytest.mark.parametrize("name", ["mmbert:smoke", "modernbert:base-whole"])
def test_a_folder_has_the_sources_of_three_phases(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of sources are those of the command, not of the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists").mkdir()
    for number in (1, 2, 3):
        lines = [f"text:{language}.txt\n" for language in "abc"[:number]]
        (tmp_path / "lists" / f"phase-{number}.txt").write_text("".join(lines))
        (tmp_path / f"{'abc'[number - 1]}.txt").touch()
    cfg = load_config(f"{name},lists/")
    check(cfg)
    phases = [phase.cfg for phase in list_phases(cfg)]
    each = [phases[0], *[phase for phase in phases[1:] if phase.data.sources != phases[0].data.sources]]
    assert [[source.where for source in sources(phase)] for phase in each] == [
        ["a.txt"],
        ["a.txt", "b.txt"],
        ["a.txt", "b.txt", "c.txt"],
    ]
    assert [encoder_config(phase).global_rope_theta for phase in each] == [10_000, 160_000, 160_000]


def test_phases_that_fill_the_run_leave_nothing_after_them(cfg: ConfigDict) -> None:
    cfg.train.phases = ("500:data.seq_len=128", "500:data.seq_len=256")
    assert table(cfg) == [(0, 64, 128), (500, 64, 256)]


def test_a_ramp_holds_every_size_equally_long(cfg: ConfigDict) -> None:
    cfg.train.initial_batch_size, cfg.train.batch_ramp_steps = 16, 300
    assert table(cfg) == [(0, 16, 512), (100, 32, 512), (200, 48, 512), (300, 64, 512)]
    assert count_sequences_and_tokens(cfg, 400)[0] == 100 * (16 + 32 + 48 + 64)
    cfg.train.batch_ramp_steps = None
    assert [start for start, *_ in table(cfg)] == [0, 33, 66, 100]  # a tenth of the run


def test_ramp_and_phases_cross(cfg: ConfigDict) -> None:
    cfg.train.initial_batch_size, cfg.train.batch_ramp_steps = 32, 300
    cfg.train.phases = ("90%:data.seq_len=128",)
    assert table(cfg) == [(0, 32, 128), (300, 64, 128), (900, 64, 512)]


def test_a_ramp_leads_to_the_rows_of_the_first_phase(cfg: ConfigDict) -> None:
    cfg.train.initial_batch_size, cfg.train.batch_ramp_steps = 32, 200
    cfg.train.phases = ("90%:data.seq_len=128,train.batch_size=96",)
    assert table(cfg) == [(0, 32, 128), (100, 64, 128), (200, 96, 128), (900, 64, 512)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"phases": ("data.seq_len=128",)}, "is not STEPS:KEY=VALUE"),
        ({"phases": ("10:data.eval_sources=x",)}, "data.eval_sources cannot change during a run"),
        ({"phases": ("10:data.seq_len=64,train.num_step=5",)}, "train.phases: unknown key train.num_step; did you"),
        ({"phases": ("10:objective.name=clm",)}, "objective.name cannot change"),
        ({"phases": ("10:data.seq_len=short",)}, "train.phases: .*seq_len"),
        ({"phases": ("1001:data.seq_len=128",)}, "1001 steps, more than train.num_steps=1000"),
        ({"phases": ("0%:data.seq_len=128",)}, "less than one of the 1000 steps"),
        ({"phases": ("0:data.seq_len=128",)}, "less than one of the 1000 steps"),
        ({"phases": ("60%:data.seq_len=128", "40.1%:data.seq_len=64")}, "1001 steps, more than"),
        ({"initial_batch_size": 48}, "must divide train.batch_size=64"),
        ({"initial_batch_size": 1}, "makes 64 batch sizes"),
        ({"initial_batch_size": 16, "batch_ramp_steps": 1001}, "must lie between 0 and train.num_steps=1000"),
        ({"batch_ramp_steps": 10}, "needs train.initial_batch_size"),
        (
            {"initial_batch_size": 16, "phases": ("60:data.seq_len=64", "10:train.batch_size=32")},
            "still grows at step 60",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(cfg: ConfigDict, settings: dict, message: str) -> None:
    for key, value in settings.items():
        cfg.train[key] = value
    with pytest.raises(UserError, match=message):
        list_phases(cfg)
