"""Config files and overrides: types, references, error messages, and the round trip through config.json."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from bertjax.config.defaults import base_config
from bertjax.config.overrides import (
    apply_overrides,
    check_keys,
    differences,
    flatten,
    from_json,
    load_config,
    set_values,
    to_json,
)
from bertjax.errors import UserError
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.mlm import Mlm


def override(*arguments: str) -> ConfigDict:
    return apply_overrides(base_config(), arguments)


def refusal(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        override(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def config_file(folder: Path, body: str, head: str = "def get_config():") -> str:
    path = folder / "experiment.py"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(f"from bertjax.config.defaults import base_config\n{head}\n    config = base_config()\n{lines}")
    return str(path)


def file_refusal(spec: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(spec)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("argument", "key", "expected"),
    [
        ("train.num_steps=5", "train.num_steps", 5),
        ("train.num_steps=1e3", "train.num_steps", 1000),
        ("mesh.data=-1", "mesh.data", -1),
        ("optimizer.learning_rate=3", "optimizer.learning_rate", 3.0),
        ("optimizer.learning_rate=1e-4", "optimizer.learning_rate", 1e-4),
        ("dry_run=true", "dry_run", True),
        ("dry_run=1", "dry_run", True),
        ("logging.tensorboard=False", "logging.tensorboard", False),
        ("data.tokenizer=tok=v1/", "data.tokenizer", "tok=v1/"),
        ("data.sources=text:a.txt@0.5,hub:x:y#text", "data.sources", ("text:a.txt@0.5", "hub:x:y#text")),
        (r"eval.fill_mask=Yes\, a [MASK].,No.", "eval.fill_mask", ("Yes, a [MASK].", "No.")),
        ("data.sources=", "data.sources", ()),
        ("model.num_layers=2", "model.num_layers", 2),
        ("model.remat=none", "model.remat", "none"),  # a policy of that name, not None
        ("data.tokenizer=None", "data.tokenizer", "None"),  # text, not a placeholder
    ],
)
def test_a_value_is_read_by_its_declared_type(argument: str, key: str, expected: object) -> None:
    value = flatten(override(f"--config.{argument}"))[key]
    expected = list(expected) if isinstance(expected, tuple) else expected
    assert value == expected
    assert type(value) is type(expected)


def test_an_instance_names_its_class_and_sets_its_settings() -> None:
    objective = Mlm(Masking(mask_rate=0.3), masked_next_token=True)
    config = set_values(base_config(), {"objective.name": objective})
    assert config.objective.name == "mlm"
    assert (config.objective.masking.mask_rate, config.objective.mlm.masked_next_token) == (0.3, True)
    assert differences(base_config(), config) == [
        ("objective.masking.mask_rate", 0.15, 0.3),
        ("objective.mlm.masked_next_token", False, True),
    ]


def test_instances_that_are_no_values_are_refused() -> None:
    class Local(Mlm, group="objective.local"):
        pass

    for key, value, message in (
        ("objective.name", Local(Masking()), "objective.name: define Local in a module, by whose name a run finds it"),
        ("seed", Masking(), "seed expects a whole number"),
        ("task.kind", Masking(), "must be a subclass of bertjax.extensions.TaskKind"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            set_values(load_config("bert:tiny"), {key: value})


def test_only_some_keys_take_none() -> None:
    config = override("--config.init_from=there")
    apply_overrides(config, ["--config.init_from=None"])
    assert config.init_from is None
    assert refusal("--config.model.num_layers=None").startswith("model.num_layers expects a whole number or preset")
    assert refusal("--config.train.num_steps=None") == "train.num_steps expects a whole number, not 'None'"


def test_derived_numbers_follow_and_can_be_set_themselves() -> None:
    config = override("--config.train.num_steps=4000")
    assert (config.schedule.warmup_steps, config.eval.interval_steps, config.train.log_interval_steps) == (40, 200, 20)
    apply_overrides(config, ["--config.schedule.warmup_steps=7", "--config.eval.batch_size=3"])
    assert (config.schedule.warmup_steps, config.train.num_steps) == (7, 4000)
    assert (config.eval.batch_size, config.train.batch_size) == (3, 256)


def test_the_last_of_several_counts() -> None:
    assert override("--config.seed=1", "--config.seed=2").seed == 2


def test_nothing_is_set_when_one_is_wrong() -> None:
    config = base_config()
    with pytest.raises(UserError):
        apply_overrides(config, ["--config.seed=1", "--config.sed=2"])
    assert config.seed == 0


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("train.num_step", "train.num_steps"),
        ("trian.batch_size", "train.batch_size"),
        ("learning_rate", "optimizer.learning_rate"),
        ("optimizer.lr", "optimizer.learning_rate"),
        ("train.seq_len", "data.seq_len"),
        ("warmup", "schedule.warmup_steps"),
        ("batch_size", "eval.batch_size or task.batch_size or train.batch_size"),
    ],
)
def test_a_misspelt_key_names_the_one_that_was_meant(key: str, meant: str) -> None:
    assert refusal(f"--config.{key}=1") == f"unknown key {key}; did you mean {meant}?"


@settings(max_examples=20)
@given(st.sampled_from(sorted(flatten(base_config()))), st.data())
def test_one_wrong_letter_is_always_understood(key: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(len(key.rpartition(".")[0]) + 1, len(key) - 1))
    wrong = key[:position] + "Z" + key[position + 1 :]
    if len(key.rpartition(".")[2]) > 3:
        assert key in refusal(f"--config.{wrong}=1")


def test_a_key_like_no_other_lists_what_there_is() -> None:
    assert refusal("--config.mesh.zzz=1") == "unknown key mesh.zzz; there are mesh.data, mesh.fsdp, mesh.tensor"
    assert "there are checkpoint, compile_cache, data" in refusal("--config.zzz.zzz=1")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--config.train.num_steps=1.5", "train.num_steps expects a whole number, not '1.5'"),
        ("--config.train.num_steps=true", "train.num_steps expects a whole number, not 'true'"),
        ("--config.train.num_steps=", "train.num_steps expects a whole number, not ''"),
        ("--config.optimizer.learning_rate=fast", "optimizer.learning_rate expects a number, not 'fast'"),
        ("--config.optimizer.learning_rate=nan", "optimizer.learning_rate expects a number, not 'nan'"),
        ("--config.dry_run=yes", "dry_run expects true or false, not 'yes'"),
        ("--config.model.num_heads=x", "model.num_heads expects a whole number or preset, not 'x'"),
        ("--config.mesh=2", "mesh is a group of keys: set one of mesh.data, mesh.fsdp, mesh.tensor"),
        ("--config.dry_run", "--config.dry_run has no value: write --config.dry_run=VALUE"),
        ("config.seed=3", "config.seed=3: overrides start with two dashes, --config.seed=3"),
        ("-config.seed=3", "-config.seed=3: overrides start with two dashes, --config.seed=3"),
        ("--seed=3", "unknown argument --seed=3; a key of the config is set by --config.KEY=VALUE"),
    ],
)
def test_a_refusal_says_key_value_and_what_was_expected(argument: str, expected: str) -> None:
    assert refusal(argument) == expected


def test_an_empty_item_of_a_tuple_is_refused() -> None:
    assert "data.sources expects items separated by commas" in refusal("--config.data.sources=a,,b")


def test_a_config_file_gets_its_argument(tmp_path: Path) -> None:
    spec = config_file(tmp_path, "config.seed = int(number)\nreturn config", "def get_config(number='1'):")
    assert load_config(spec).seed == 1
    assert load_config(f"{spec}:7").seed == 7


def test_a_config_file_is_read_afresh(tmp_path: Path) -> None:
    assert load_config(config_file(tmp_path, "config.seed = 1\nreturn config")).seed == 1
    assert load_config(config_file(tmp_path, "config.seed = 2\nreturn config")).seed == 2
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.py"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("config.train.num_step = 5", "unknown key train.num_step; did you mean train.num_steps?"),
        ("config.sed = 5", "unknown key sed; did you mean seed?"),
        ("model = config.model\nmodel.hiden_size = 5", "unknown key model.hiden_size; did you mean model.hidden_size?"),
        ("config.seed = config.train.num_step", "unknown key train.num_step; did you mean train.num_steps?"),
        ("config.mesh.data = '5'", "mesh.data expects a whole number, not '5'"),
        ("config.data.sources = ('a', 1)", r"data.sources expects items separated by commas (\, is a comma inside"),
        ("config.mesh.data = True", "mesh.data expects a whole number, not True"),
        ("config.mesh.data = None", "mesh.data expects a whole number, not None"),
        ("config.distributed.cluster = 'slum'", "distributed.cluster must be one of"),
        ("config.distributed.peer_timeout = 0", "distributed.peer_timeout must be at least 1, not 0"),
        ("config.seed = 1 // 0", "ZeroDivisionError: integer division or modulo by zero"),
        ("if:", "SyntaxError: invalid syntax"),
    ],
)
def test_an_error_in_a_config_file_is_one_line_with_its_position(tmp_path: Path, body: str, expected: str) -> None:
    spec = config_file(tmp_path, f"{body}\nreturn config")
    number = 3 + len(body.splitlines())
    assert file_refusal(spec).startswith(f"{spec}:{number}: {expected}")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("config.unlock()\nconfig.train.num_step = 5", "unknown key train.num_step; did you mean train.num_steps?"),
        ("config.mesh = {'data': 1, 'fsdp': 1}", "key mesh.tensor is missing: start the config from base_config()"),
        ("config = {}", "get_config() must return a ConfigDict, not dict"),
    ],
)
def test_what_the_lock_lets_through_is_refused_too(tmp_path: Path, body: str, expected: str) -> None:
    spec = config_file(tmp_path, f"{body}\nreturn config")
    assert file_refusal(spec).startswith(f"{spec}: {expected}")


def test_files_that_are_no_configs(tmp_path: Path) -> None:
    spec = config_file(tmp_path, "return config")
    assert file_refusal(f"{spec}:base") == f"{spec} takes no argument, but was given 'base': leave out :base"
    missing = str(tmp_path / "absent.py")
    assert file_refusal(missing) == f"cannot read config {missing}: No such file or directory; there are {spec}"
    (tmp_path / "config.yaml").touch()
    assert "is not a config: a config is a Python file" in file_refusal(str(tmp_path / "config.yaml"))
    Path(spec).write_text("get_config = 3\n")
    assert file_refusal(spec) == f"{spec} defines no function get_config()"
    Path(spec).write_text("import nothing_of_this_name\n")
    assert file_refusal(spec) == f"{spec}:1: ModuleNotFoundError: No module named 'nothing_of_this_name'"


def test_shipped_configs_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "configs"
    paths = {"bert:tiny": "bert.py:tiny", "quickstart": "quickstart.py", "finetune/qa": "finetune/qa.py"}
    for name, path in paths.items():
        assert to_json(load_config(name)) == to_json(load_config(f"{folder}/{path}"))
    monkeypatch.chdir(tmp_path)
    for spec, near in {
        "bert-base": "bert:base",
        "configs/bert:larg": "bert:large",
        "finetune/clasification": "finetune/classification?",
        "finetune/goemotions": "finetune/multilabel?",
        "ner": "finetune/tokens?",
        "finetune/summarization": "finetune/seq2seq:summarization?",
    }.items():
        assert file_refusal(spec).startswith(f"there is no config {spec}; did you mean {near}")
    assert "; there are finetune/classification, finetune/multilabel, " in file_refusal("finetune/poetry")
    assert file_refusal("configs/bert.py:base").endswith("; bertjax has that of --config bert")
    (tmp_path / "bert.py").write_text("get_config = 3")
    assert file_refusal("bert.py") == "bert.py defines no function get_config()"
    assert load_config("bert").model.preset == "bert-base"
    (tmp_path / "mine.py").touch()
    assert "; did you mean mine.py:small?" in file_refusal("mine:small")


def test_a_config_files_own_refusal_passes_through(tmp_path: Path) -> None:
    spec = config_file(tmp_path, "from bertjax.errors import UserError\nraise UserError('no such size')")
    assert file_refusal(spec) == f"{spec}:5: no such size"


def test_json_there_and_back() -> None:
    config = override(
        "--config.train.num_steps=300",
        "--config.data.sources=lines:é.txt,text:b",
        "--config.model.num_layers=2",
        "--config.optimizer.clip_norm=0",
    )
    again = from_json(to_json(config))
    assert flatten(again) == flatten(config)
    assert to_json(again) == to_json(config)
    assert again.data.sources == ("lines:é.txt", "text:b")
    check_keys(again)
    apply_overrides(again, ["--config.model.num_layers=preset"])


def test_stored_numbers_no_longer_follow_references() -> None:
    stored = from_json(to_json(override("--config.train.num_steps=300")))
    apply_overrides(stored, ["--config.train.num_steps=1000"])
    assert stored.schedule.warmup_steps == 3


def test_stored_configs_of_other_versions(tmp_path: Path) -> None:
    assert from_json('{"seed": 3}').train.num_steps == 1_000_000
    for text, expected in [
        ('{"sed": 3}', "unknown key sed; did you mean seed? (was it written by another version of bertjax?)"),
        ('{"seed": "3"}', "seed expects a whole number, not '3'"),
        ('{"train": 3}', "train is a group of keys"),
        ("[]", "the stored config is not a JSON object"),
        ("{", "the stored config is not JSON"),
    ]:
        with pytest.raises(UserError) as caught:
            from_json(text)
        assert str(caught.value).startswith(expected)


def test_differences_name_what_changed() -> None:
    old = base_config()
    assert differences(old, base_config()) == []
    new = override("--config.seed=3", "--config.data.sources=text:a")
    assert differences(old, new) == [
        ("data.sources", ["builtin:python-docs"], ["text:a"]),
        ("seed", 0, 3),
    ]


ITEM = st.text(st.characters(exclude_characters="\\\0", exclude_categories=("Cs",)), min_size=1)


@given(st.lists(ITEM.map(str.strip).filter(bool), max_size=5))
def test_any_items_can_be_written_on_the_command_line(items: list[str]) -> None:
    text = ",".join(item.replace(",", "\\,") for item in items)
    assert override(f"--config.eval.fill_mask={text}").eval.fill_mask == tuple(items)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(min_value=1e-37, max_value=1e37))
def test_any_number_survives_exactly(whole: int, real: float) -> None:
    config = override(f"--config.seed={whole}", f"--config.optimizer.eps={real!r}")
    assert from_json(to_json(config)).seed == whole
    assert from_json(to_json(config)).optimizer.eps == real
