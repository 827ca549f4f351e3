"""Takes screenshots of reports, comparisons and the documentation site in headless Chromium, and checks the pages.

    python scripts/screenshots.py --report runs/quickstart/report.html --compare compare.html --site site --out shots

Every page is opened at 390, 1,200 and 1,600 pixels in light and dark colors. Nothing may be wider than the window, no
console message may appear, no text may have a contrast below 4.5, no button may be too small to tap; otherwise the
status is 1. `--docs` renews the pictures of docs/report.md, which were made by

    bertjax pretrain --config quickstart --workdir runs/quickstart
    for RATE in 1e-3 2e-3; do
      bertjax pretrain --config quickstart --workdir runs/learning_rate=$RATE --config.train.num_steps=600 \\
          --config.optimizer.learning_rate=$RATE
    done
    bertjax compare runs/learning_rate=* --out compare.html
    mkdocs build --strict

Needs Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from chromium import Tab, chromium

WIDTHS = (390, 1200, 1600)
DOCS = Path(__file__).parents[1] / "docs"
DOCS_WIDTH = 1180
MAX_BYTES = 400_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, nargs="+", default=[], metavar="FILE", help="report.html of runs")
    parser.add_argument("--compare", type=Path, nargs="+", default=[], metavar="FILE", help="pages of bertjax compare")
    parser.add_argument("--site", type=Path, metavar="FOLDER", help="result of mkdocs build")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the pictures (default: checks alone)")
    parser.add_argument("--docs", action="store_true", help="renew docs/*.png from the first report and comparison")
    options = parser.parse_args()
    if options.docs and not (options.report and options.compare):
        parser.error("--docs needs --report and --compare")
    defects = 0
    with chromium() as tab, _served(options.site) as site:
        tab.call("Emulation.setScrollbarsHidden", hidden=True)
        if options.docs:
            _part(tab, options.report[0], "header", "#loss", DOCS / "report.png")
            _part(tab, options.report[0], "#attention", "#attention", DOCS / "attention.png")
            _part(tab, options.compare[0], "header", "#group-A", DOCS / "compare.png")
        pages = {f"{page.parent.name}-{page.stem}": page for page in [*options.report, *options.compare]}
        for name, page in {**pages, **site}.items():
            defects += _check(tab, name, page, options.out)
    print(f"{len(pages) + len(site)} pages, {defects} defects")
    return int(defects > 0)


def _check(tab: Tab, name: str, page: Path | str, out: Path | None) -> int:
    """Opens a page at every width and color scheme; returns the number of defects, which are printed."""
    count = 0
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            tab.media(dark=scheme == "dark")
            tab.open(page, width, phone=width < 500)
            for defect in tab.defects():
                print(f"{name}, {width}, {scheme}: {defect}")
                count += 1
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                tab.picture(out / f"{name}-{width}-{scheme}.png")
    return count


@contextlib.contextmanager
def _served(site: Path | None) -> Iterator[dict[str, str]]:
    """Yields the addresses of the pages of a built site, which needs a server for its search."""
    if site is None:
        yield {}
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        folders = sorted(page.parent.relative_to(site).as_posix() for page in site.rglob("index.html"))
        root = f"http://127.0.0.1:{server.server_port}/"
        yield {"site-" + folder.replace("/", "-").replace(".", "home"): f"{root}{folder}/" for folder in folders}
    finally:
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


def _part(tab: Tab, page: Path, first: str, last: str, out: Path) -> None:
    """Captures the page from the top of one element to the bottom of another."""
    tab.open(page, DOCS_WIDTH, height=1000)
    # What sticks to the top of a window would lie across the picture.
    tab.run(
        "document.head.append(Object.assign(document.createElement('style'), {textContent: 'nav {display: none}'}))"
    )
    top = tab.run(f"document.querySelector('{first}').getBoundingClientRect().top + scrollY")
    bottom = tab.run(f"document.querySelector('{last}').getBoundingClientRect().bottom + scrollY")
    tab.picture(out, top=max(top - 16, 0), height=bottom - top + 32)
    size = out.stat().st_size
    print(f"{out}: {size / 1000:.0f} kB" + (f", more than {MAX_BYTES / 1000:.0f}" if size > MAX_BYTES else ""))


if __name__ == "__main__":
    sys.exit(main())
