"""Embedded corpus: English prose that every CPython contains, so that a first run needs neither network nor download.

It consists of the reference topics of `help()` and of the docstrings and block comments of the standard library.
The library is parsed with `ast` and never imported. Equal Python releases give equal text, others give other text.
"""
# ruff: noqa: SIM905, RUF001 - word lists read better as words, and the topics hold typographic quotes

from __future__ import annotations

import ast
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator

from bertjax.data.readers import CONTROLS
from bertjax.errors import UserError, named

_SKIPPED_FOLDERS = frozenset(
    "site-packages dist-packages __pycache__ test tests idlelib idle_test lib2to3 encodings turtledemo ensurepip "
    "pydoc_data lib-dynload _vendor".split()
)
_COMMENT = re.compile(r"(?:^[ \t]*#(?!!)[^\n]*\n){2,}", re.MULTILINE)
_COMMENT_MARK = re.compile(r"^[ \t]*#+ ?:?", re.MULTILINE)
_RULE = re.compile(r"\W{3,}$|[+|].*[+|]$")  # an underline, or a row of an ASCII table
_BULLET = re.compile(r"\s*(?:[*•+-]|\(?\d{1,2}[.)]|\(?[a-z]\)|:param \w+:|:\w+:|@\w+|[\w.]+(?:\([^)]*\))? --)\s+")
_SIGNATURE = re.compile(r"^[\w.]+\([^)]*\)\s*(?:->\s*[^:]*?)?\s*(?:--?|:)\s+")
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_NOT_LETTER = re.compile(r"[\W\d_]+")
_MARKUP = (
    (re.compile(r":[\w:+.-]+:`~?([^`<]+?)(?: <[^`>]*>)?`"), r"\1"),  # :class:`x`, :ref:`title <x>`
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"`([^`\n]+?)[`']_{0,2}"), r"\1"),
    (re.compile(r"\*\*(\S[^*]*?)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*(\w[^*\n]*?)\*(?![\w*])"), r"\1"),
    (re.compile(r"::(?=\s|$)"), ":"),
    (re.compile(r"\s*\[\d{1,2}\](?=\W|$)"), ""),  # footnote marks of the topics
    (CONTROLS, ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=[a-z])- (?=[a-z])"), "-"),  # a compound that was broken at the end of a line
)
_CODE = re.compile(
    r"::=|\"\"\"|->|=>|[=!]=|\w+ = |\w\(\w*[=,]|\bself\.|\bdef \w+\(|\bimport \w+$|[{}<>\\|]|__\w+__.*__\w+__.*__\w+__"
)
_BOILERPLATE = re.compile(
    r"copyright|licen[cs]ed?\b|warrant|all rights reserved|permission|liable|\bXXX\b|pylint|@", re.I
)
_COMMON = frozenset(
    "a an and are as at be been but by can do does for from has have if in into is it its may more must no not of on "
    "one only or other return returns same should so such than that the their them then there these they this to used "
    "using was we when where whether which will with you your".split()
)

_cache: list[list[str]] = []  # all documents, once a reader of this process has read them


def iter_python_docs() -> Iterator[str]:
    """Yields the documents: one per topic, one per module, paragraphs on lines of their own, no paragraph twice.

    All of them take about 3 s, once per process; a reader of the first ones does not wait for the rest.

    Raises:
        UserError: This Python carries neither topics nor library sources.
    """
    if not _cache:
        documents = []
        for document in _documents():
            documents.append(document)
            yield document
        if not documents:
            raise UserError(
                "builtin:python-docs is empty: this Python carries neither pydoc topics nor library sources; "
                f"give your own text, for example {named('config.data.sources', 'text:FILE')}"
            )
        _cache.append(documents)
    else:
        yield from _cache[0]


def _documents() -> Iterator[str]:
    visited: set[str] = set()
    for texts in itertools.chain(_topics(), _modules(sysconfig.get_paths()["stdlib"])):
        fresh = []
        for paragraph in (paragraph for text in texts for paragraph in clean_paragraphs(text)):
            if paragraph.lower() not in visited:
                visited.add(paragraph.lower())
                fresh.append(paragraph)
        if fresh:
            yield "\n".join(fresh)


def _topics() -> Iterator[list[str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return
    for name in sorted(topics):
        yield [topics[name]]


def _modules(root: str) -> Iterator[list[str]]:
    """The docstrings and block comments of every library module, in source order, modules by path."""
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(f for f in subfolders if f not in _SKIPPED_FOLDERS and not f.startswith("config-"))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                    yield module_texts(file.read())


def module_texts(source: str) -> list[str]:
    """Docstrings and block comments of Python source, in order; nothing is executed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in the library's own strings do not concern the user
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return []
    results: list[tuple[int, str]] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                results.append((node.body[0].lineno, text))
        # definitions stand in statements only, and most nodes of a tree are expressions
        pending.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.excepthandler))
    for comment in _COMMENT.finditer(source):
        line = source.count("\n", 0, comment.start()) + 1
        results.append((line, _COMMENT_MARK.sub("", comment[0])))
    return [text for _, text in sorted(results)]


def clean_paragraphs(text: str) -> list[str]:
    """The prose of a docstring or a topic: one string per paragraph or list item, without code, tables and markup."""
    paragraphs = []
    for lines in _raw_paragraphs(text.expandtabs().split("\n")):
        paragraph = _SIGNATURE.sub("", " ".join(lines).strip())
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        paragraph = paragraph.strip()
        if is_prose(paragraph):
            paragraphs.append(paragraph)
    return paragraphs


def _raw_paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Group lines: a blank line, a list mark, a rule or an outdent ends a paragraph; a doctest swallows its output."""
    current: list[str] = []
    indent, in_doctest = 0, False
    for line in lines:
        stripped = line.strip()
        if not stripped or in_doctest:
            in_doctest = in_doctest and bool(stripped)
            yield from _closed(current)
            current = []
            continue
        in_doctest = stripped.startswith(">>>")
        if in_doctest or _RULE.match(stripped):
            if in_doctest or len(current) > 1 or stripped[0] in "+|":
                yield from _closed(current)
            current = []  # one line above a rule is a heading
            continue
        bullet = _BULLET.match(line)
        start = bullet.end() if bullet else len(line) - len(line.lstrip())
        if current and (bullet or start < indent or (start > indent and current[-1][-1] in ":.?!")):
            yield from _closed(current)
            current = []
        if not current:
            indent = start
        current.append(line[bullet.end() :].strip() if bullet else stripped)
    yield from _closed(current)


def _closed(lines: list[str]) -> Iterator[list[str]]:
    if lines:
        yield lines


def is_prose(paragraph: str) -> bool:
    """Returns whether text reads as English: enough words, mostly letters, common words, no signs of code."""
    words = _WORD.findall(paragraph)
    if len(words) < 4 or len(paragraph) > 4000 or not (paragraph[0].isalnum() or paragraph[0] in "\"'("):
        return False
    if _BOILERPLATE.search(paragraph) or _CODE.search(paragraph):
        return False
    visible = len(paragraph) - paragraph.count(" ")
    letters = len(_NOT_LETTER.sub("", paragraph))
    common = sum(word.lower() in _COMMON for word in words)
    return letters >= 0.85 * visible and common >= max(1, 0.18 * len(words))
