"""The layout of the package: allowed imports, levels, cycles, light modules.

`python tests/test_imports.py` rewrites the table of packages in `docs/design.md`, which a test compares.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).parents[1]
DESIGN = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- packages: python tests/test_imports.py -->", "<!-- end of packages -->"
TABLE = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)
FILES = sorted((ROOT / "bertjax").rglob("*.py"))
PACKAGES = {path.stem for path in (ROOT / "bertjax").iterdir() if path.is_dir() or path.suffix == ".py"}

BASE = {"compression", "errors", "storage", "types", "metrics", "io"}
CORE = {*BASE, "config", "models", "data", "checkpoint", "hf", "runtime"}
TOOLS = {"report", "tools"}

# package -> what it may import; `bertjax` itself is the lazy root
ARROWS: dict[str, set[str]] = {
    "compression": set(),
    "errors": set(),
    "storage": set(),
    "types": set(),
    "metrics": {"types"},
    "io": {"compression", "errors", "storage"},
    "config": {*BASE},
    "models": {*BASE, "config"},
    "data": {*BASE, "config"},
    "checkpoint": {*BASE, "config"},
    "hf": {*BASE, "config", "models"},
    "runtime": {*BASE, "config", "models"},
    "objectives": {*BASE, "config", "models"},
    "training": {*BASE, "config", "models", "objectives", "runtime", "checkpoint"},
    "tasks": {*BASE, "config", "models", "data", "objectives", "training"},
    "inference": {*CORE, "training", "tasks"},
    "experiment": {*CORE, "objectives", "training", "tasks", "inference"},
    "report": {*CORE, "objectives", "training", "tasks", "inference", "experiment"},
    "tools": {*CORE, "objectives", "training", "tasks", "experiment"},
    "commands": {*CORE, *TOOLS, "objectives", "training", "tasks", "inference", "experiment"},
}
ARROWS["extensions"] = {*BASE, "config", "models", "objectives", "hf", "tasks"}
ARROWS["cli"] = {*ARROWS["commands"], "commands", "bertjax"}
ARROWS["__main__"] = {"cli"}
ARROWS["bertjax"] = {"commands", "config", "data", "errors", "experiment", "hf", "models", "objectives"}

PRIVATE = {
    "process_group.py": "jax has no public name for the client of the coordination service (key-value store, barriers)"
}
"""Files that may import `jax._src`, with the reason."""

FLAX_PACKAGES = {"models", "objectives", "tasks"}

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
    "bertjax.config.model",
    "bertjax.config.inputs",
    "bertjax.data.from_config",
    "bertjax.experiment.workdir",
]
HEAVY = ["jax", "flax", "optax", "orbax", "datasets", "pyarrow", "pandas", "tokenizers", "sentencesection"]
HEAVY += ["safetensors", "tensorboard", "torch", "transformers", "scipy"]


DISTRIBUTIONS = {"orbax": "orbax_checkpoint", "sklearn": "scikit_learn"}  # import name -> that of pyproject.toml


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """Returns `data` for `bertjax.data.sources`; a top-level module counts as a package, and so does the root."""
    return module.split(".")[1] if "." in module else module


@functools.cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Returns the imports of a file, also inside functions and under TYPE_CHECKING."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and absolute name of every import."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
            source = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:  # `from bertjax import check` imports a package, `__version__` is of the root
                is_package = source == "bertjax" and alias.name in PACKAGES
                yield node.lineno, f"bertjax.{alias.name}" if is_package else source


def violations(path: Path) -> list[str]:
    """Returns the imports of a file that `ARROWS` does not allow."""
    package = package_of(module_name(path))
    refused = []
    for line, name in imports_of(path):
        top = name.split(".")[0]
        if top == "bertjax" and package_of(name) not in {*ARROWS.get(package, ()), package}:
            refused.append(f"{path.relative_to(ROOT)}:{line}: {package} must not import {name}")
        if top == "flax" and package not in FLAX_PACKAGES:
            refused.append(f"{path.relative_to(ROOT)}:{line}: only {', '.join(sorted(FLAX_PACKAGES))} may import flax")
        if name.startswith("jax._src") and path.name not in PRIVATE:
            refused.append(f"{path.relative_to(ROOT)}:{line}: {name} is private")
    return refused


def package_imports() -> dict[str, set[str]]:
    """Returns which packages every package really imports."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        package = package_of(module_name(path))
        names = {package_of(name) for _, name in imports_of(path) if name.split(".")[0] == "bertjax"}
        graph.setdefault(package, set()).update(names - {package})
    return graph


def levels() -> dict[str, int]:
    """Returns the level of every package: one more than the highest that it imports. Raises CycleError.

    The root is left out, of which `cli.py` reads the version: it imports what it names only when that is used.
    """
    graph, result = package_imports(), {}
    for package in TopologicalSorter(graph).static_order():
        result[package] = 1 + max((result[each] for each in graph[package] - {"bertjax"}), default=-1)
    return result


def table() -> str:
    """Returns the table of packages for `docs/design.md`."""
    lines = ["| level | package | holds |", "| --- | --- | --- |"]
    for package, level in sorted(levels().items(), key=lambda item: (item[1], item[0])):
        path = ROOT / "bertjax" / package
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file() and package != "__main__":
            holds = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()[0]
            name = f"`{package}/`" if path.is_dir() else f"`{package}.py`"
            lines.append(f"| {level} | {name} | {holds} |")
    return "\n".join(lines)


def test_every_module_lives_in_a_known_package() -> None:
    unknown = {package_of(module_name(path)) for path in FILES} - set(ARROWS)
    assert not unknown, f"say in ARROWS what {unknown} may import"


def test_imports_follow_the_arrows() -> None:
    assert [violation for path in FILES for violation in violations(path)] == []


def test_the_package_has_at_most_ten_levels() -> None:
    """Entry points form one group with what they open: `cli.py` and the root with `commands/`."""
    result = levels()
    entries = ("bertjax", "cli", "__main__")
    assert 1 + max(level for package, level in result.items() if package not in entries) <= 10, result


def test_the_table_of_the_design_page_is_generated() -> None:
    text = DESIGN.read_text(encoding="utf-8")
    assert text == TABLE.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text), "run python tests/test_imports.py"


def module_graph() -> dict[str, set[str]]:
    """Every module of the package with the modules that it imports, inside functions too."""
    modules = {module_name(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        graph[module] = set()
        for node in import_nodes(path):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                source = resolve_name("." * node.level + (node.module or ""), package)
                below = [f"{source}.{alias.name}" for alias in node.names]
                names = [name if name in modules else source for name in below]
            graph[module] |= {name for name in names if name in modules and name != module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that all reach each other, by the transitive closure of the graph."""

    def reached(start: str) -> set[str]:
        result, ahead = set(), [start]
        while ahead:
            ahead += [name for name in graph[ahead.pop()] if name not in result and not result.add(name)]
        return result

    closure = {name: reached(name) for name in graph}
    sets = {frozenset(other for other in closure[name] if name in closure[other]) for name in graph}
    return [set(each) for each in sets if each]


def test_no_module_imports_itself_through_others() -> None:
    assert cycles(module_graph()) == []


def test_a_cycle_would_be_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == [{"a", "b", "c"}]


def test_configs_import_only_what_declares_keys() -> None:
    """Or a function that reads sizes from a folder, where the config is of a model that is continued."""
    allowed = {"bertjax.config.defaults", "bertjax.errors", "bertjax.experiment.continued"}
    for path in sorted((ROOT / "configs").rglob("*.py")):
        ours = {name for _, name in imports_of(path) if name.split(".")[0] == "bertjax"}
        assert ours <= allowed, f"{path.name} imports {ours - allowed}"


def test_whatever_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    expected = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[\[<>=]", requirement)[0].replace("-", "_").lower() for requirement in expected}
    imported = {name.split(".")[0] for path in FILES for _, name in imports_of(path)}
    foreign = imported - sys.stdlib_module_names - {"bertjax", "jaxlib"}
    assert {DISTRIBUTIONS.get(name, name).lower() for name in foreign} <= declared


def test_every_module_imports() -> None:
    for path in FILES:
        if path.name != "__main__.py":
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


if __name__ == "__main__":
    DESIGN.write_text(
        TABLE.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", DESIGN.read_text(encoding="utf-8")), encoding="utf-8"
    )
