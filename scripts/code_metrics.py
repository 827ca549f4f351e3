"""Measures the source code of the package: lines, functions, imports, names, and documented parameters.

    python scripts/code_metrics.py                        # this checkout
    python scripts/code_metrics.py --root OLD --packages  # another one, with the lines of every package

Prints a Markdown table. Levels and cycles of imports are computed by the functions of `tests/test_imports.py`.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from graphlib import CycleError
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import test_imports as imports

OBJECTIVES = {"clm", "plm", "distill", "distillation", "contrastive", "mixture", "span_corruption", "infilling"}
OBJECTIVES |= {"tsdae", "retromae", "seq2seq", "kd", "rtd_accuracy"}
"""Names of objectives and of their losses, today's and earlier ones. `mlm` and `rtd` are heads of models as well."""
ENTRIES = ("bertjax", "cli", "__main__")

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def line_kinds(source: str) -> Counter[str]:
    """Returns the number of lines that hold code, docstrings, comments, or nothing."""
    kinds = dict.fromkeys(range(1, source.count("\n") + 1), "blank")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            for line in range(token.start[0], token.end[0] + 1):
                is_comment = token.type == tokenize.COMMENT and kinds[line] == "blank"
                kinds[line] = "comments" if is_comment else "code"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kinds |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), "docstrings")
    return Counter(kinds.values())


def length(function: Definition, is_documented: bool) -> int:
    """Returns the lines of a function from `def` to its end, with or without those of its docstring."""
    lines = function.end_lineno - function.lineno + 1
    if not is_documented and ast.get_docstring(function) is not None:
        lines -= function.body[0].end_lineno - function.body[0].lineno + 1
    return lines


def public_functions(body: Sequence[ast.stmt], owner: str = "") -> Iterator[tuple[str, Definition]]:
    """Yields public functions of a module and public methods of its public classes, with the class or ""."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body, node.name)
        elif isinstance(node, Definition) and not node.name.startswith("_"):
            yield owner, node


def has_many_parameters(function: Definition) -> bool:
    """Returns whether a function has more than two parameters besides `self` or `cls`."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return sum(each.arg not in ("self", "cls") for each in arguments) > 2


def documents_args(owner: str, function: Definition, classes: dict[str, ast.ClassDef]) -> bool:
    """Returns whether the docstring of a function, or that of a method which it overrides, has Args."""
    if "Args:" in (ast.get_docstring(function) or ""):
        return True
    bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in classes[owner].bases} if owner else set()
    inherited = [(base, each) for base in bases & classes.keys() for _, each in public_functions(classes[base].body)]
    here = [(base, each) for base, each in inherited if each.name == function.name]
    above = [(base, function) for base in bases & classes.keys() - {base for base, _ in here}]
    return any(documents_args(*each, classes) for each in (*here, *above) if each != (owner, function))


def compares_objectives(node: ast.AST) -> bool:
    """Returns whether a comparison has the name of an objective or of a loss on a side."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    texts = {str(each.value) for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
    return bool(texts & OBJECTIVES) or any(ast.unparse(side).endswith("objective.name") for side in sides)


def functions_used_once(trees: Sequence[ast.Module]) -> tuple[int, int]:
    """Returns the number of module-level functions whose name occurs once besides imports, and that of all."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    uses = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    uses += Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
    names = [each.name for tree in trees for each in tree.body if isinstance(each, Definition)]
    return sum(uses[name] == 1 for name in names), len(names)


def imports_in_functions(functions: Sequence[Definition]) -> int:
    """Returns the number of import statements inside functions."""
    inside = {node for each in functions for node in ast.walk(each) if isinstance(node, ast.Import | ast.ImportFrom)}
    return len(inside)


def import_metrics(root: Path) -> tuple[str, int]:
    """Returns the number of levels of packages, without entry points, and of cycles between modules."""
    imports.ROOT, imports.FILES = root, sorted((root / "bertjax").rglob("*.py"))
    imports.PACKAGES = {path.stem for path in (root / "bertjax").iterdir() if path.is_dir() or path.suffix == ".py"}
    cycles = len(imports.cycles(imports.module_graph()))
    try:
        return str(1 + max(level for name, level in imports.levels().items() if name not in ENTRIES)), cycles
    except CycleError as error:
        return f"none: {' -> '.join(error.args[1])}", cycles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout to measure")
    parser.add_argument("--packages", action="store_true", help="print the lines of every package, too")
    parser.add_argument("--missing", action="store_true", help="print the public functions without Args, too")
    options = parser.parse_args()
    package = options.root.resolve() / "bertjax"
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    nodes = [(path.relative_to(package), node) for path, tree in trees.items() for node in ast.walk(tree)]
    functions = [node for _, node in nodes if isinstance(node, Definition)]
    kinds = sum((line_kinds(source) for source in sources.values()), Counter())
    classes = Counter(node.name for _, node in nodes if isinstance(node, ast.ClassDef))
    compared = [path for path, node in nodes if "objectives" not in path.parts and compares_objectives(node)]
    by_name = {node.name: node for _, node in nodes if isinstance(node, ast.ClassDef)}
    public = [(path, *each) for path, tree in trees.items() for each in public_functions(tree.body)]
    many = [each for each in public if has_many_parameters(each[2])]
    missing = [each for each in many if not documents_args(*each[1:], by_name)]
    levels, cycles = import_metrics(options.root.resolve())
    rows = {"files": len(sources), "lines": sum(kinds.values())} | {
        f"lines: {kind}": n for kind, n in sorted(kinds.items())
    }
    for title, is_documented in (("lines per function", True), ("without docstring", False)):
        lengths = sorted(length(each, is_documented) for each in functions)
        ninetieth = statistics.quantiles(lengths, n=10, method="inclusive")[-1]
        rows[f"{title}: median, 90th percentile, longest"] = (
            f"{statistics.median(lengths):.0f}, {ninetieth:.0f}, {lengths[-1]}"
        )
    rows |= {"levels of imports": levels, "cycles of modules": cycles}
    once, count = functions_used_once(list(trees.values()))
    rows["module-level functions that are used once"] = f"{once} of {count}"
    rows["imports inside functions"] = imports_in_functions(functions)
    rows["names of several classes"] = sum(n > 1 for n in classes.values())
    rows["comparisons with objectives' names elsewhere"] = f"{len(compared)} in {len(set(compared))} files"
    share = 1 - len(missing) / len(many)
    rows["public functions of > 2 parameters with Args"] = f"{len(many) - len(missing)} of {len(many)} ({share:.1%})"
    if options.packages:
        for path, source in sources.items():
            name = path.relative_to(package).parts[0]
            rows[f"lines of {name}"] = int(rows.get(f"lines of {name}", 0)) + source.count("\n")
    print("| measure | value |\n| --- | --- |", *(f"| {title} | {value} |" for title, value in rows.items()), sep="\n")
    if options.missing:
        print("", *(f"{path.relative_to(package)}:{each.lineno}: {each.name}" for path, _, each in missing), sep="\n")


if __name__ == "__main__":
    main()
