"""Large pages: when they are requested, and that the process keeps its id."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.__main__ import TRAINING, huge_page_environment
from bertjax.cli import command_parsers

ON_REQUEST, GLIBC = "always [madvise] never\n", ("glibc", "2.36")


def test_they_are_for_commands_that_exist() -> None:
    assert set(TRAINING) <= set(command_parsers())


def test_they_are_added_to_what_is_there() -> None:
    assert huge_page_environment({"A": "b"}, ON_REQUEST, GLIBC) == {
        "A": "b",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    result = huge_page_environment({"GLIBC_TUNABLES": "glibc.malloc.check=3"}, ON_REQUEST, GLIBC)
    assert result == {"GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.hugetlb=1"}


@pytest.mark.parametrize(
    ("tunables", "offered", "libc"),
    [
        ("glibc.malloc.hugetlb=0", ON_REQUEST, GLIBC),  # the user has decided
        ("glibc.malloc.hugetlb=1", ON_REQUEST, GLIBC),  # the process restarts once, not in a loop
        ("", "[always] madvise never", GLIBC),
        ("", "always madvise [never]", GLIBC),
        ("", ON_REQUEST, ("glibc", "2.31")),
        ("", ON_REQUEST, ("", "")),  # another C library
    ],
)
def test_where_they_are_of_no_use(tunables: str, offered: str, libc: tuple[str, str]) -> None:
    assert huge_page_environment({"GLIBC_TUNABLES": tunables}, offered, libc) is None


PROGRAM = """
import json, os, pathlib, sys
print("begins", flush=True)
from bertjax import __main__ as huge_pages
huge_pages.ACCELERATORS = ()
real = pathlib.Path.read_text
pathlib.Path.read_text = lambda path, *_: "always [madvise] never" if "hugepage" in str(path) else real(path)
huge_pages.platform.libc_ver = lambda: ("glibc", "2.36")
huge_pages.use_huge_pages()
print(json.dumps([os.getpid(), sys.argv[1:], os.environ["GLIBC_TUNABLES"], sys.executable]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="large pages of Linux")
def test_the_process_begins_anew_as_the_same_one() -> None:
    command = [sys.executable, "-c", PROGRAM, "pretrain", "--workdir", "a b"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    *begins, last = process.communicate()[0].splitlines()
    assert begins == ["begins", "begins"] and process.returncode == 0
    pid, arguments, tunables, executable = json.loads(last)
    assert (pid, arguments, executable) == (process.pid, ["pretrain", "--workdir", "a b"], sys.executable)
    assert tunables.endswith("glibc.malloc.hugetlb=1")
