"""Hook of mkdocs: adds the pages of the repository's root and fills in what `docs/reference/` generates from the code.

A line `<!-- generate: NAME -->` of a page is replaced by the Markdown of `GENERATORS[NAME]`.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # parameters are counted by shapes
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from docs_site.generators import GENERATORS  # noqa: E402

LOGO = ROOT / "bertjax" / "report" / "assets" / "logo.svg"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#]*)(#[^)]*)?\)")
_MARKER = re.compile(r"^<!-- generate: (\w+) -->$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds README, CONTRIBUTING and CHANGELOG as pages of the site, and the logo of the reports."""
    for source, target in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=_LINK.sub(_on_site, text)))
    files.append(File.generated(config, "assets/logo.svg", content=LOGO.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the markers of a page by what their generators return."""
    return _MARKER.sub(lambda match: GENERATORS[match[1]](), markdown)


def _on_site(match: re.Match[str]) -> str:
    """Returns a link of a file in the repository's root as the site has it; one to code becomes its text."""
    image, text, path, anchor = match[1], match[2], match[3], match[4] or ""
    if path in PAGES or path.startswith("docs/"):
        return f"{image}[{text}]({PAGES.get(path, path.removeprefix('docs/'))}{anchor})"
    return text
