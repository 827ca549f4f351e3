"""The embedded corpus: which text counts as prose, how it is extracted, and that it is large, clean and repeatable."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.config.sources import parse_source
from bertjax.data import builtin
from bertjax.data.builtin import clean_paragraphs, is_prose, iter_python_docs, module_texts
from bertjax.data.sources import iter_documents
from bertjax.errors import UserError

DOCSTRING = """Return the *first* item of ``things``, or :class:`None`
if there is none of them.

    >>> first([1, 2])
    1
    the output of the example is not the prose

Options are these:
    - the one that is used by default in the
      first place
    - the other one of the two

Heading of a part
-----------------

    x = compute(y, z=3)
    return x

+------+-----------------------+
| name | what it is used for   |
+------+-----------------------+

first() -- give the item that is at the start
rest() -- give all the others of the list

The last one is a built-
in thing of the language [3].
"""


def test_prose_is_what_remains() -> None:
    assert clean_paragraphs(DOCSTRING) == [
        "Return the first item of things, or None if there is none of them.",
        "the one that is used by default in the first place",
        "the other one of the two",
        "give the item that is at the start",
        "give all the others of the list",
        "The last one is a built-in thing of the language.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("This is a sentence about the matter.", True),
        ("Return True if the file is open.", True),
        ("x = f(a, b) if the other is not in there", False),
        ("if_stmt ::= the rule of the statement", False),
        ("Copyright of the author, all rights are with the owner.", False),
        ("aa bb cc dd ee ff gg", False),
        ("one two", False),
        ("", False),
    ],
)
def test_is_prose(text: str, expected: bool) -> None:
    assert is_prose(text) is expected


def test_modules_are_read_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = f'''"""The module does a thing."""
open({str(mark)!r}, "w")
class A:
    """The class of the things."""
    # a note that goes on
    # over two lines
    def f(self):
        """The method of the class."""
        def g():
            "The inner one."
    x = "# not a comment"  # a single line is not a block
'''
    assert module_texts(source) == [
        "The module does a thing.",
        "The class of the things.",
        "a note that goes on\nover two lines\n",
        "The method of the class.",
        "The inner one.",
    ]
    assert not mark.exists()
    assert module_texts("def broken(:") == []


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_cache", [])


def test_folders_are_walked_in_order_without_tests(tmp_path: Path) -> None:
    for name, text in (
        ("b.py", "second"),
        ("a/z.py", "third"),
        ("a/test/t.py", "never"),
        ("site-packages/p.py", "never"),
        ("c.txt", "never"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'"""{text}"""')
    assert [texts for texts in builtin._modules(str(tmp_path))] == [["second"], ["third"]]


def test_topics_alone_will_do(fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builtin.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "python.zip")})
    assert len(list(iter_python_docs())) > 30
    monkeypatch.setattr(builtin, "_cache", [])
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match="give your own text"):
        list(iter_python_docs())


def test_the_first_documents_do_not_wait_for_the_rest(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(itertools.islice(iter_python_docs(), 5))
    monkeypatch.setattr(builtin, "module_texts", lambda source: pytest.fail("a module was parsed"))
    assert list(itertools.islice(iter_python_docs(), 5)) == expected != []


@pytest.mark.long
def test_the_corpus_is_large_and_clean() -> None:
    documents = list(iter_documents(parse_source("builtin:python-docs")))
    assert documents == list(iter_python_docs())  # the reader changes nothing
    paragraphs = [paragraph for document in documents for paragraph in document.split("\n")]
    assert len(documents) > 200
    assert sum(map(len, paragraphs)) > 1_000_000
    assert len({p.lower() for p in paragraphs}) == len(paragraphs)
    for sign in (">>>", "``", "::=", "+---", "    "):
        assert not any(sign in paragraph for paragraph in paragraphs), sign
    assert not any("all rights reserved" in p.lower() for p in paragraphs)


@pytest.mark.long
def test_another_process_extracts_the_same() -> None:
    code = (
        "import hashlib; from bertjax.data.builtin import iter_python_docs; "
        "print(hashlib.sha256(repr(list(iter_python_docs())).encode()).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == hashlib.sha256(repr(list(iter_python_docs())).encode()).hexdigest()
