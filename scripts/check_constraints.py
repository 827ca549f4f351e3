"""Compares `constraints.txt` with what pip resolves today: `python scripts/check_constraints.py`.

A package that a fresh installation needs and the file does not pin is an error (exit status 1); pip itself fails where
the bounds of `pyproject.toml` exclude a pin. Pins that have a newer release, or that nothing needs, are listed only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ".[dev]"


def normalized(name: str) -> str:
    """Returns the name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Returns {name: version} of the lines `name==version`."""
    matches = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {normalized(name): version for name, version in matches}


def resolve(*arguments: str) -> dict[str, str]:
    """Returns {name: version} that pip would install into an empty environment; fails as pip does."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report]
        subprocess.run([*pip, *arguments, EXTRAS], cwd=ROOT, check=True)
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {normalized(each["metadata"]["name"]): each["metadata"]["version"] for each in installed}


def compare(pinned: dict[str, str], constrained: dict[str, str], newest: dict[str, str]) -> tuple[list[str], list[str]]:
    """Returns errors and remarks.

    Args:
        pinned: what the file pins.
        constrained: what pip installs with the file.
        newest: what it installs without.
    """
    errors = [
        f"{name}=={version} is not pinned"
        for name, version in constrained.items()
        if name not in pinned and name != "bertjax"
    ]
    remarks = [f"{name}=={version} is not needed" for name, version in pinned.items() if name not in constrained]
    remarks += [
        f"{name}: {pinned[name]} is pinned, {version} is the newest"
        for name, version in newest.items()
        if name in pinned and pinned[name] != version
    ]
    return errors, remarks


def main() -> int:
    """Prints errors and remarks; returns 1 if there are errors."""
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    errors, remarks = compare(pinned, resolve("-c", "constraints.txt"), resolve())
    for line in (*remarks, *(f"error: {each}" for each in errors)):
        print(line)
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
