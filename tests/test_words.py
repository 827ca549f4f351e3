"""The package and its tests use the words of the field, verbs or nouns begin docstrings, and `Args` are documented.

`REFUSED` has the word of the field for each. `ALLOWED` names every legitimate use of a refused word with its reason.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import bertjax

ROOT = Path(__file__).parents[1]
CODE = sorted(path for folder in ("bertjax", "configs", "scripts") for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted({*(ROOT / "tests").rglob("*.py")} - {Path(__file__)})
PAGES = sorted({*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")})

_UNIT = "token|line|example|step|epoch|parameter|file|text|batch|device|document|word|sequence|layer|second|process"
REFUSED = {
    r"slopes?": "gradient(s)",
    r"places?": "position(s), slot(s), location, directory",
    r"figures?": "metric(s)",
    r"pieces?": "token(s)",
    r"hid|hides?|hiding|hidden (?:tokens?|words?|positions?)|how hidden": "mask, masked",
    r"behind": "after",
    r"beside": "next to, compared with, in addition to",
    r"anew": "again",
    r"for ever": "always",
    r"work folders?": "work directory",
    r"rooms?|house": "package, layer, architecture",
    r"stages?|legs?|portions?": "phase",
    r"faults?": "error, mismatch, non-finite loss, anomaly",
    r"(?<!there )(?:is|are|was) no (?!longer|more)\w+": "is not a ...",
    r"(?:is|are) told": "receives",
    r"an update|updates": "step(s)",
    rf"(?:bytes?|numbers?|loss(?:es)?|tokens?|seconds?|ms|[KMG]i?B|vectors?) an? (?:{_UNIT})": "per",
    r"\w*(?:(?:neighb|behavi|col|fav)(?:ou)r|labell(?:ed)|modell(?:ing))s?": "the American spelling",
    r"\w*(?:token|initial|normal|optim|summar|recogn)is(?:e|ed|es|ing|ation)s?": "the American spelling",
    r"rows? (?:of|in) (?:a|the|one|each|every) (?:global )?batch(?:es)?": "sequences",
}
PATTERNS = [(re.compile(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])", re.IGNORECASE), use) for word, use in REFUSED.items()]
ANY_PATTERN = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(REFUSED)})(?![A-Za-z])", re.IGNORECASE)

ALLOWED = {
    r"SentencePiece|WordPiece|piece_to_id|id_to_piece|\.pieces?\b|_pieces?\b|Piece\b": "names of sentencepiece",
    r"latency.hiding": "a flag of XLA",
    r"[Pp]age faults": "the counter of the operating system",
    r"in[- ]place|takes? place|placeholder": "idioms of English and of ml_collections",
    r"</?figure|<figcaption|\bfigure\b(?=\.|\[|,)": "an element of HTML",
    r"(?:optax|parameter|weight|the optimizer's) updates?|`updates`": "optax's name of what is added to parameters",
    r"updates (?:the|its|a|every|all|each|it)\b": "the verb",
    r"\b(?:[Tt]he|a) house\b|\"house\"": "a word of the sentences that tests tokenize",
    r"in the\s+first place": "an idiom of docstrings that tests read as prose",
    r"%piece\b": "a name in a compiled program",
    r"_UPDATES\b": "a name of the progress bar",
    r"\w+_modelling|summarisation": "words that a message must recognize",
}
ALLOWED_PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in ALLOWED))

NAMES = {
    *("slope", "slopes", "place", "places", "figure", "figures", "piece", "pieces", "told", "asked", "given", "said"),
    *(
        "wanted",
        "own",
        "kept",
        "seen",
        "found",
        "behind",
        "beside",
        "fault",
        "faults",
        "stage",
        "stages",
        "leg",
        "legs",
    ),
    *("portion", "portions", "room", "house", "judged", "hide", "hid", "tower", "towers"),
}
ALLOWED_NAMES = {"SentencePieceBackend": "a name of the field"}
"""Names that hold a refused word, with the reason."""
SENTENCE_WORDS = {"own", "kept", "seen", "found"}
"""Words that names of test functions may use, since those are sentences."""

PROTOCOL = {"build", "corrupt", "loss", "examples", "apply", "create_repo", "upload_folder", "check_batch_size"}
PROTOCOL |= {"compute_metrics", "make_features", "records"}
"""Methods of protocols and base classes, documented there, and of `huggingface_hub.HfApi`."""

OPENING = re.compile(r"(What|How|Where|Whether|Which|Of|Who|Whose|Why|When|By|Those|The same|As|If|Is|Are)\b")

GENITIVE = re.compile(r"^ *[*a-z_, ]+: (?:Of|of) (?!which)", re.MULTILINE)
"""A description of an argument without its noun: `seed: of the samples`."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of every comment and string of a Python file, or the lines of a page.

    Names of tests in pages are left out.
    """
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for number, line in enumerate(source.splitlines(), 1):
            yield number, re.sub(r"`tests/[^`]*`", "", line)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield token.start[0], token.string


def defined_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def parts_of(name: str) -> set[str]:
    """Returns the words of a snake_case or CamelCase name."""
    return {word.lower() for word in re.split(r"_+|(?<=[a-z0-9])(?=[A-Z])", name)}


def public_functions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (each for each in public_functions(node.body) if each.name not in PROTOCOL)


@functools.cache
def refused_parts(name: str) -> set[str]:
    """Returns the refused words of a name."""
    allowed = SENTENCE_WORDS if name.startswith("test_") else set()
    return set() if name in ALLOWED_NAMES else parts_of(name) & NAMES - allowed


class Definitions(NamedTuple):
    """What the rules ask of a Python file, with lines."""

    names: list[tuple[int, str]]
    docstrings: list[tuple[int, str]]
    classes: list[str]
    public: list[ast.FunctionDef]


@functools.cache
def definitions(path: Path) -> Definitions:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    documented = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)]
    return Definitions(
        [(1, path.stem), *defined_names(nodes)],
        [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in documented],
        [node.name for node in documented if isinstance(node, ast.ClassDef)],
        list(public_functions(tree.body)),
    )


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def refused_words(path: Path) -> Iterator[str]:
    if not ANY_PATTERN.search(path.read_text(encoding="utf-8")):  # most files, which need not be split
        return
    for line, text in texts(path):
        visible = ALLOWED_PATTERN.sub(lambda match: " " * len(match[0]), text)
        for pattern, use in PATTERNS:
            for match in pattern.finditer(visible):
                yield f"{name_of(path)}:{line + text.count(chr(10), 0, match.start())}: {match[0]!r}: {use}"


def test_text_uses_the_words_of_the_field() -> None:
    refused = [each for path in (*CODE, *TESTS, *PAGES) for each in refused_words(path)]
    assert not refused, "\n".join(refused)


def test_no_page_holds_both_sides_of_a_merge() -> None:
    sides = re.compile(r"^(?:<{7}|>{7}) .*", re.MULTILINE)
    assert [f"{name_of(path)}: {match[0]}" for path in PAGES for match in sides.finditer(path.read_text())] == []


def test_names_use_the_words_of_the_field() -> None:
    names = [(path, line, name) for path in (*CODE, *TESTS) for line, name in definitions(path).names]
    refused = [f"{name_of(path)}:{line}: {name}" for path, line, name in names if refused_parts(name)]
    assert not refused, "\n".join(refused)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    docstrings = [(path, line, text) for path in CODE for line, text in definitions(path).docstrings]
    refused = [f"{name_of(path)}:{line}: {text[:60]}" for path, line, text in docstrings if OPENING.match(text)]
    assert not refused, "\n".join(refused)


def test_descriptions_of_arguments_begin_with_a_noun() -> None:
    docstrings = [(path, line, text) for path in CODE for line, text in definitions(path).docstrings]
    refused = [
        f"{name_of(path)}:{line}: {match[0].strip()}"
        for path, line, text in docstrings
        for match in GENITIVE.finditer(text.partition("\nArgs:\n")[2])
    ]
    assert not refused, "\n".join(refused)


def is_public(path: Path) -> bool:
    """Returns whether a file has a name of the Python API, a command, or a protocol that users implement."""
    homes = {f"{module.replace('.', '/')}.py" for module in bertjax._HOMES.values()}
    return name_of(path) in homes or path.parts[-2] == "commands" or "(Protocol" in path.read_text(encoding="utf-8")


def test_public_functions_of_more_than_two_parameters_document_them() -> None:
    missing = []
    for path, function in [
        (each, function) for each in CODE if is_public(each) for function in definitions(each).public
    ]:
        arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        named = [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]
        if len(named) > 2 and "Args:" not in (ast.get_docstring(function) or ""):
            missing.append(f"{name_of(path)}:{function.lineno}: {function.name} documents no Args")
    assert not missing, "\n".join(missing)


def test_no_two_classes_have_one_name() -> None:
    paths: dict[str, list[str]] = {}
    for path in CODE:
        if path.is_relative_to(ROOT / "bertjax"):
            for name in definitions(path).classes:
                paths.setdefault(name, []).append(name_of(path))
    assert {name: each for name, each in paths.items() if len(each) > 1} == {}
