"""Runs the commands of the tutorials from an empty directory, as a reader does who copies only the commands.

    python scripts/follow_tutorials.py [--keep FOLDER] [PAGE ...]

prints every block with its output and its time, and a table at the end. The environment sets the variables of a page
(`STEPS=${STEPS:-2000}`). The tests take the blocks of README.md and docs/ from here; CONTRIBUTING.md explains the
comments that say how a block is tested.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ("first-model", "your-language", "continue", "finetune", "many-hosts")
_FENCE = re.compile(r"^(\s*)(`{3,})\s*([\w-]*)")
_PAGE = re.compile(r"^<!-- blocks: (run)(?: after (\S+))? -->$")
_BLOCK = re.compile(r"^<!-- block: (run|check|needs .+) -->$")
_ANY_COMMENT = re.compile(r"^\s*<!-- blocks?:")
_MARK = "\x1e"


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        page: Path of the page from the root of the repository.
        line: Line of its fence, from 1.
        language: The word after the fence; empty if there is none.
        text: What stands between the fences.
        mode: `run`, `check`, or `needs ...` with what is missing here.
    """

    page: str
    line: int
    language: str
    text: str
    mode: str

    @property
    def name(self) -> str:
        """Returns PAGE:LINE."""
        return f"{self.page}:{self.line}"


class Page(NamedTuple):
    """The blocks of a page, and the page whose directory its blocks continue, if there is one."""

    path: str
    blocks: tuple[Block, ...]
    after: str | None = None

    @property
    def to_run(self) -> list[Block]:
        """Returns the blocks that the tests and this script run."""
        return [block for block in self.blocks if block.mode == "run" and block.language in ("bash", "python")]


class Finished(NamedTuple):
    """A block that was run: seconds, output with errors; the last one has the exit status of the shell."""

    block: Block
    seconds: float
    output: str
    status: int = 0


def read_page(path: Path, root: Path = ROOT) -> Page:
    """Reads a page.

    Raises:
        ValueError: A comment is none of the known ones, or stands where no block follows.
    """
    name = path.relative_to(root).as_posix()
    default, after = "check", None
    blocks: list[Block] = []
    mode: str | None = None
    opened: tuple[int, str, str, str] | None = None
    text: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if opened is not None:
            if line.strip() == opened[1]:
                blocks.append(Block(name, opened[0], opened[2], textwrap.dedent("\n".join(text)), opened[3]))
                opened, text = None, []
            else:
                text.append(line)
            continue
        fence = _FENCE.match(line)
        if fence:
            opened = (number, fence[2], fence[3], mode or default)
            mode = None
        elif match := _PAGE.match(line):
            default, after = match[1], match[2]
        elif match := _BLOCK.match(line):
            mode = match[1]
        elif _ANY_COMMENT.match(line):
            raise ValueError(f"{name}:{number}: unknown comment {line.strip()!r}")
        elif mode is not None and line.strip() and not line.startswith("<!--"):
            raise ValueError(f"{name}:{number}: the comment `block: {mode}` stands before no block")
    if opened is not None:
        raise ValueError(f"{name}:{opened[0]}: the block has no end")
    return Page(name, tuple(blocks), after)


def read_pages(root: Path = ROOT) -> dict[str, Page]:
    """Returns all pages with commands or snippets for readers, by path."""
    paths = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    pages = [read_page(path, root) for path in paths]
    return {page.path: page for page in pages}


def shell_script(blocks: Sequence[Block]) -> str:
    """Returns one script of all blocks, which announces each, so that variables last as in one terminal."""
    parts = ["set -euo pipefail"]
    for index, block in enumerate(blocks):
        parts.append(f"printf '{_MARK}%s %s\\n' {index} \"$EPOCHREALTIME\"")
        if block.language == "python":
            parts.append(f"python - <<'END_OF_BLOCK_{index}'\n{block.text}\nEND_OF_BLOCK_{index}")
        else:
            parts.append(block.text)
    parts.append(f"printf '{_MARK}%s %s\\n' end \"$EPOCHREALTIME\"")
    return "\n".join(parts) + "\n"


def run_blocks(
    blocks: Sequence[Block], folder: Path, environment: Mapping[str, str], timeout: float, echo: bool = False
) -> list[Finished]:
    """Runs blocks in order in one shell.

    Args:
        blocks: Blocks of one page.
        folder: Working directory.
        environment: All environment variables.
        timeout: Seconds until the shell and all that it started are killed.
        echo: Print blocks and output while they run.

    Returns:
        The blocks that were started; the last one has the exit status of the shell.
    """
    command = ["timeout", "--kill-after=5", str(timeout), "bash", "-c", shell_script(blocks)]
    shell = subprocess.Popen(
        command, cwd=folder, env=dict(environment), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert shell.stdout is not None
    started: list[tuple[Block, float, list[str]]] = []
    end = None
    for line in shell.stdout:
        before, mark, announced = line.partition(_MARK)
        if started and before:
            started[-1][2].append(before)
            if echo:
                print(before, end="", flush=True)
        if mark:
            index, at = announced.split()
            if index == "end":
                end = float(at)
                continue
            block = blocks[int(index)]
            started.append((block, float(at), []))
            if echo:
                print(f"\n== {block.name}\n" + "".join(f"$ {each}\n" for each in block.text.split("\n")), flush=True)
    status = shell.wait()
    ends = [at for _, at, _ in started[1:]] + [end or time.time()]
    done = [Finished(block, until - at, "".join(out)) for (block, at, out), until in zip(started, ends, strict=True)]
    return [*done[:-1], done[-1]._replace(status=status)]


def reader_environment(bin_folder: Path, home: Path, xla_flags: str = "") -> dict[str, str]:
    """Returns the environment of a reader: `bertjax` and `python` are those of this process, the home is empty.

    Args:
        bin_folder: Empty folder for the two commands.
        home: Home directory.
        xla_flags: Flags that the two commands put before those of a page.
    """
    bin_folder.mkdir(parents=True, exist_ok=True)
    home.mkdir(parents=True, exist_ok=True)
    for name, arguments in {"bertjax": " -m bertjax", "python": ""}.items():
        path = bin_folder / name
        flags = f'export XLA_FLAGS="{xla_flags} $XLA_FLAGS"\n' if xla_flags else ""
        path.write_text(f'#!/bin/sh\n{flags}exec {shlex.quote(sys.executable)}{arguments} "$@"\n')
        path.chmod(0o755)
    environment = os.environ | {"HOME": str(home), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    return environment | {"PYTHONUNBUFFERED": "1"}


def main() -> int:
    """Follows the tutorials that the arguments name, all by default; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=TUTORIALS, metavar="PAGE", help=", ".join(TUTORIALS))
    parser.add_argument(
        "--keep", type=Path, help="folder for the directories of the tutorials; default: a temporary one"
    )
    parser.add_argument("--timeout", type=float, default=3600, help="seconds per tutorial")
    options = parser.parse_args()
    done: list[Finished] = []
    with tempfile.TemporaryDirectory() as temporary:
        top = (options.keep or Path(temporary)).resolve()
        environment = reader_environment(top / ".bin", top / ".home")
        for name in options.pages:
            page = read_page(ROOT / "docs" / "tutorials" / f"{name}.md")
            folder = top / name
            folder.mkdir(parents=True)
            done += run_blocks(page.to_run, folder, environment, options.timeout, echo=True)
    print("\n| block | seconds | exit status | last line of output |\n| --- | ---: | ---: | --- |")
    for each in done:
        lines = each.output.split("\r")[-1].strip().split("\n")
        print(f"| {each.block.name} | {each.seconds:.1f} | {each.status} | {lines[-1][:100]} |")
    return int(any(each.status for each in done))


if __name__ == "__main__":
    sys.exit(main())
