"""The declared keys: complete, faithful to BERT, and every config of the project in line with them."""

from __future__ import annotations

import ast
import itertools
import runpy
import typing
from pathlib import Path

import pytest
from ml_collections import FieldReference

from bertjax.config import defaults as base_config_module
from bertjax.config.defaults import base_config
from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import apply_overrides, load_config, to_json
from bertjax.config.presets import preset

CONFIGS = Path(__file__).parents[2] / "configs"
# set by the tokenizer and by train.compute_dtype
FROM_ELSEWHERE = {"vocab_size", "padded_vocab_size", "pad_token_id", "compute_dtype", "result_dtype"}
SPECS = [
    f"{path}:{size}" if size else str(path)
    for path in sorted(CONFIGS.glob("*.py"))
    for size in runpy.run_path(str(path)).get("SIZES", ("",))
]


def plain(kind: typing.Any) -> type:
    """`int` for `int | None`, `tuple` for `tuple[str, ...]`."""
    if typing.get_origin(kind) is tuple:
        return tuple
    return next(each for each in typing.get_args(kind) or (kind,) if each is not type(None))


def test_model_declares_every_field_of_the_encoder_with_its_type() -> None:
    fields = {name: kind for name, kind in typing.get_type_hints(EncoderConfig).items() if name not in FROM_ELSEWHERE}
    model = dict(base_config().model.items(preserve_field_references=True))
    assert model.pop("preset") == "bert-base"
    assert {name: field.get_type() for name, field in model.items()} == {name: plain(k) for name, k in fields.items()}
    assert all(field.get() is None for field in model.values())


def test_defaults_are_berts_recipe() -> None:
    config = base_config()
    assert (config.train.num_steps, config.train.batch_size, config.schedule.warmup_steps) == (1_000_000, 256, 10_000)
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.b1, optimizer.b2, optimizer.eps) == (1e-4, 0.9, 0.999, 1e-6)
    assert (optimizer.weight_decay, optimizer.clip_norm, optimizer.bias_correction) == (0.01, 1.0, False)
    objective = config.objective
    assert (objective.masking.mask_rate, objective.masking.mask_token_rate, objective.masking.random_token_rate) == (
        0.15,
        0.8,
        0.1,
    )
    assert (config.data.short_seq_prob, config.data.vocab_size, config.schedule.name) == (0.1, 30522, "bert")


SOURCES = sorted(Path(base_config_module.__file__).parent.glob("*.py"))


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if path.stem not in ("debug_size", "finetune_recipes")],
    ids=lambda path: path.stem,
)
def test_every_key_has_a_comment(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    declaring = [
        function
        for function in ast.parse("\n".join(lines)).body
        if isinstance(function, ast.FunctionDef) and ast.unparse(function.returns or ast.Constant("")) == "ConfigDict"
    ]
    assert declaring
    for node in itertools.chain.from_iterable(ast.walk(function) for function in declaring):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            number = node.lineno - 1
            while lines[number - 1].lstrip().startswith(f"{ast.unparse(node.targets[0].value)}."):
                number -= 1  # one comment may cover several keys
            group = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
            assert group or lines[number - 1].lstrip().startswith("#"), f"no comment above line {node.lineno}"


def test_a_base_config_is_new_and_locked_each_time() -> None:
    one, other = base_config(), base_config()
    one.train.num_steps = 3
    assert other.schedule.warmup_steps == 10_000
    with pytest.raises(AttributeError):
        other.model.layers = 3


@pytest.mark.parametrize("num_steps", [1, 2, 99, 100, 101, 1_000_000])
@pytest.mark.parametrize("spec", [str(path) for path in sorted(CONFIGS.glob("*.py"))])
def test_intervals_never_reach_zero(spec: str, num_steps: int) -> None:
    config = apply_overrides(load_config(spec), [f"--config.train.num_steps={num_steps}"])
    for interval in (config.train.log_interval_steps, config.eval.interval_steps, config.checkpoint.interval_steps):
        assert interval >= 1
    assert 0 <= config.schedule.warmup_steps <= num_steps


@pytest.mark.parametrize("spec", SPECS)
def test_every_config_loads_and_its_model_is_published(spec: str) -> None:
    config = load_config(spec)
    sizes = preset(config.model.preset)
    EncoderConfig(vocab_size=config.data.vocab_size, **sizes)
    assert to_json(config) == to_json(load_config(spec))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("tiny", (2, 128, 2, 30522, True)),
        ("base", (12, 768, 12, 30522, True)),
        ("6x512", (6, 512, 8, 30522, True)),
        ("large-cased", (24, 1024, 16, 28996, False)),
    ],
)
def test_bert_sizes(size: str, expected: tuple) -> None:
    config = load_config(f"{CONFIGS}/bert.py:{size}")
    sizes = preset(config.model.preset)
    found = (sizes["num_layers"], sizes["hidden_size"], sizes["num_heads"], config.data.vocab_size)
    assert (*found, config.data.lowercase) == expected


def test_no_two_keys_are_one_reference() -> None:
    """Two names of one reference would be set together: `get_oneway_ref` is what a derived key wants."""
    for spec in SPECS[:2]:
        config = load_config(spec)
        fields = [
            id(field)
            for group in config.values()
            if hasattr(group, "items")
            for _, field in group.items(preserve_field_references=True)
            if isinstance(field, FieldReference)
        ]
        assert len(fields) == len(set(fields))
