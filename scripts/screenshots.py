"""Takes the pictures of docs/report.md in headless Chromium (`apt-get install chromium`).

    python scripts/screenshots.py --report runs/quickstart/report.html --compare runs/shoot_out/compare.html

docs/report.md has the commands that make the runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from chromium import Tab, chromium

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 1180
MOST_BYTES = 400_000


def part(tab: Tab, page: Path, first: str, last: str, out: Path) -> None:
    """Captures the page from the top of one element to the bottom of another."""
    tab.call("Emulation.setScrollbarsHidden", hidden=True)
    tab.open(page, WIDTH, height=1000)
    # What sticks to the top of a window would lie across the picture.
    tab.run(
        "document.head.append(Object.assign(document.createElement('style'), {textContent: 'nav {display: none}'}))"
    )
    top = tab.run(f"document.querySelector('{first}').getBoundingClientRect().top + scrollY")
    bottom = tab.run(f"document.querySelector('{last}').getBoundingClientRect().bottom + scrollY")
    tab.picture(out, top=max(top - 16, 0), height=bottom - top + 32)
    size = out.stat().st_size
    print(f"{out}: {size / 1000:.0f} kB" + (f", more than {MOST_BYTES / 1000:.0f}" if size > MOST_BYTES else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, required=True, help="report.html of a run")
    parser.add_argument("--compare", type=Path, required=True, help="a page of bertjax compare")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the pictures (default: docs)")
    options = parser.parse_args()
    with chromium() as tab:
        part(tab, options.report, "header", "#fillings .card:nth-of-type(2)", options.out / "report.png")
        part(tab, options.report, "#attention", "#attention", options.out / "attention.png")
        part(tab, options.compare, "header", "#group-A", options.out / "compare.png")


if __name__ == "__main__":
    main()
