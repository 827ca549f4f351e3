"""The package of examples, installed as users install theirs, and a tiny corpus in a SQLite database."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator

import pytest
from extras_lab import EXTRAS, WORDS, Extras


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Extras:
    """Installs the package into a directory of its own; nothing else sees it."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("extras")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(site), str(EXTRAS)], check=True)
    draw = random.Random(0)
    with sqlite3.connect(folder / "corpus.db") as database:
        database.execute("CREATE TABLE docs (id INTEGER PRIMARY KEY, body TEXT)")
        texts = [(" ".join(draw.choices(WORDS, k=draw.randint(20, 40))) + ".",) for _ in range(80)]
        database.executemany("INSERT INTO docs (body) VALUES (?)", texts)
    database.close()
    return Extras(site, folder)


@pytest.fixture
def extras(installed: Extras, monkeypatch: pytest.MonkeyPatch) -> Iterator[Extras]:
    """Puts the installed package on the search path."""
    monkeypatch.syspath_prepend(str(installed.site))
    yield installed
