"""The drawing of the rooms stays true: who may import whom, who may import flax, and what must stay light."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "bertjax").rglob("*.py"))
ROOMS = {path.stem for path in (ROOT / "bertjax").iterdir() if path.is_dir() or path.suffix == ".py"}

BASE = {"errors", "types", "metrics", "io"}
CORE = {*BASE, "config", "models", "data", "checkpoint", "hf", "runtime"}
TOOLS = {"report", "benchmark", "aot", "parity"}

# package -> what it may import; `bertjax` itself is the lazy root
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "metrics": {"types"},
    "io": {"errors"},
    "config": {*BASE},
    "models": {*BASE, "config"},
    "data": {*BASE, "config"},
    "checkpoint": {*BASE, "config"},
    "hf": {*BASE, "config", "models"},
    "runtime": {*BASE, "config", "models"},
    "objectives": {*BASE, "config", "models"},
    "training": {*BASE, "config", "models", "objectives", "runtime", "checkpoint"},
    "finetuning": {*BASE, "config", "models", "data", "objectives", "training"},
    "inference": {*CORE, "training", "finetuning"},
    "experiment": {*CORE, "objectives", "training", "finetuning", "inference"},
    "parity": {*CORE},
    "aot": {*CORE, "objectives", "training", "finetuning", "experiment"},
    "report": {*CORE, "objectives", "training", "finetuning", "inference", "experiment"},
    "benchmark": {*CORE, "objectives", "training", "finetuning", "experiment"},
    "commands": {*CORE, *TOOLS, "objectives", "training", "finetuning", "inference", "experiment"},
}
ARROWS["cli"] = {*ARROWS["commands"], "commands", "bertjax"}
ARROWS["__main__"] = {"cli"}
ARROWS["bertjax"] = {"hf"}

FLAX_ROOMS = {"models", "objectives", "finetuning"}

# importing these, in this order, loads none of the heavy packages
LIGHT = [
    "bertjax",
    "bertjax.types",
    "bertjax.config.defaults",
    "bertjax.config.overrides",
    "bertjax.cli",
    "bertjax.data.sources",
]
LIGHT += [
    "bertjax.config.parse_objective",
    "bertjax.config.parse",
    "bertjax.data.from_config",
    "bertjax.experiment.workdir",
]
HEAVY = ["jax", "flax", "optax", "orbax", "datasets", "pyarrow", "pandas", "tokenizers", "sentencepiece"]
HEAVY += ["safetensors", "tensorboardX", "torch", "transformers", "scipy"]


DISTRIBUTIONS = {"orbax": "orbax_checkpoint", "sklearn": "scikit_learn"}  # import name -> that of pyproject.toml


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """`bertjax.data.sources` -> data; a module beside the rooms is one of its own, and so is the root."""
    return module.split(".")[1] if "." in module else module


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything imported, inside functions and under TYPE_CHECKING too."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:  # `from bertjax import check` imports a room, `__version__` is of the root
                is_room = source == "bertjax" and alias.name in ROOMS
                yield node.lineno, f"bertjax.{alias.name}" if is_room else source


def crossings(path: Path) -> list[str]:
    """Imports of `path` that no arrow allows."""
    room = room_of(module_name(path))
    faults = []
    for line, name in imports_of(path):
        top = name.split(".")[0]
        if top == "bertjax" and room_of(name) not in {*ARROWS.get(room, ()), room}:
            faults.append(f"{path.relative_to(ROOT)}:{line}: {room} must not import {name}")
        if top == "flax" and room not in FLAX_ROOMS:
            faults.append(f"{path.relative_to(ROOT)}:{line}: only {', '.join(sorted(FLAX_ROOMS))} may import flax")
    return faults


def test_every_module_lives_in_a_known_room() -> None:
    unknown = {room_of(module_name(path)) for path in FILES} - set(ARROWS)
    assert not unknown, f"say in ARROWS and in docs/design.md what {unknown} may import"


def test_imports_follow_the_arrows() -> None:
    assert [fault for path in FILES for fault in crossings(path)] == []


def module_graph() -> dict[str, set[str]]:
    """Every module of the package with the modules that it imports, inside functions too."""
    modules = {module_name(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        graph[module] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = resolve_name("." * node.level + (node.module or ""), package)
                below = [f"{source}.{alias.name}" for alias in node.names]
                names = [name if name in modules else source for name in below]
            else:
                continue
            graph[module] |= {name for name in names if name in modules and name != module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that all reach each other, by the transitive closure of the graph."""

    def reached(start: str) -> set[str]:
        found, ahead = set(), [start]
        while ahead:
            ahead += [name for name in graph[ahead.pop()] if name not in found and not found.add(name)]
        return found

    closure = {name: reached(name) for name in graph}
    sets = {frozenset(other for other in closure[name] if name in closure[other]) for name in graph}
    return [set(each) for each in sets if each]


def test_no_module_imports_itself_through_others() -> None:
    assert cycles(module_graph()) == []


def test_a_cycle_would_be_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == [{"a", "b", "c"}]


def test_configs_import_only_what_declares_keys() -> None:
    allowed = {"bertjax.config.defaults", "bertjax.errors"}
    for path in sorted((ROOT / "configs").rglob("*.py")):
        ours = {name for _, name in imports_of(path) if name.split(".")[0] == "bertjax"}
        assert ours <= allowed, f"{path.name} imports {ours - allowed}"


def test_whatever_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[\[<>=]", requirement)[0].replace("-", "_").lower() for requirement in wanted}
    imported = {name.split(".")[0] for path in FILES for _, name in imports_of(path)}
    foreign = imported - sys.stdlib_module_names - {"bertjax", "jaxlib"}
    assert {DISTRIBUTIONS.get(name, name).lower() for name in foreign} <= declared


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "__main__.py"], ids=module_name)
def test_every_module_imports(path: Path) -> None:
    importlib.import_module(module_name(path))


def test_the_front_door_is_light() -> None:
    """Help and errors of the configuration answer at once only while nothing heavy is imported on the way."""
    present = [name for name in LIGHT if name in set(map(module_name, FILES))]
    script = (
        "import sys, json, importlib\n"
        "heavy, modules = json.loads(sys.argv[1])\n"
        "seen, loaded = set(), {}\n"
        "for module in modules:\n"
        "    importlib.import_module(module)\n"
        "    names = heavy + ['numpy', 'ml_collections'] * (module == 'bertjax')\n"
        "    loaded[module] = [name for name in names if name in sys.modules and name not in seen]\n"
        "    seen.update(loaded[module])\n"
        "print(json.dumps(loaded))\n"
    )
    command = [sys.executable, "-c", script, json.dumps([HEAVY, present])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {module: [] for module in present}
