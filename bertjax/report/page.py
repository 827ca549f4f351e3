"""The HTML page: one file that makes no network request, whatever its data contain."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from bertjax.io import atomic

_ASSETS = Path(__file__).parent / "assets"


class Section(NamedTuple):
    """A section of a page; it is omitted if its body is empty. `short` is its name in the navigation bar."""

    ident: str
    title: str
    body: str
    short: str = ""


@functools.cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


@functools.cache
def _policy() -> str:
    """Returns the content security policy: only our script runs and nothing is loaded."""
    digest = base64.b64encode(hashlib.sha256(_asset("report.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; base-uri 'none'"
    )


def page(title: str, head: str, sections: Sequence[Section], foot: str) -> str:
    """Returns the whole document.

    Args:
        title: Text of the title and heading.
        head: Markup below the heading.
        sections: Sections in order; those without a body are omitted.
        foot: Markup of the footer.
    """
    shown = [section for section in sections if section.body]
    icon = base64.b64encode(_asset("logo.svg").encode()).decode()
    logo = _asset("logo.svg").replace(' xmlns="http://www.w3.org/2000/svg"', "")  # HTML needs none
    links = "".join(f'<li><a href="#{each.ident}">{escape(each.short or each.title)}</a></li>' for each in shown)
    bodies = "".join(
        f'<section id="{each.ident}"><h2><a href="#{each.ident}">{escape(each.title)}</a></h2>{each.body}</section>'
        for each in shown
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">'
        f"<title>{escape(title)} · bertjax</title><style>{_asset('report.css')}</style></head><body>\n"
        f'<header><p class="brand">{logo} bertjax</p><h1>{escape(title)}</h1>{head}</header>'
        f'<nav aria-label="sections"><ul>{links}</ul></nav>\n'
        f"<main>{bodies}</main>\n<footer>{foot}</footer>\n<script>{_asset('report.js')}</script></body></html>\n"
    )


def facts(entries: Mapping[str, str | tuple[str, str]]) -> str:
    """Returns cards of a name and a value; the second of a pair of values is set smaller below."""
    cards = []
    for name, value in entries.items():
        large, small = (value, "") if isinstance(value, str) else value
        below = f"<small>{escape(small)}</small>" if small else ""
        cards.append(f"<div><dt>{escape(name)}</dt><dd>{escape(large)}{below}</dd></div>")
    return f'<dl class="facts">{"".join(cards)}</dl>' if cards else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int] = (), caption: str = "") -> str:
    """Returns a table of text that scrolls inside itself if it is wide.

    Args:
        heads: Column headings.
        rows: Cells of every row.
        numeric: Indices of right-aligned columns.
        caption: Text above the table.
    """

    def cells(tag: str, texts: Sequence[str]) -> str:
        marked = (' class="n"' if index in numeric else "" for index in range(len(texts)))
        return "".join(
            f"<{tag}{alignment}>{breakable(text)}</{tag}>" for alignment, text in zip(marked, texts, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    named = f'<p class="note">{escape(caption)}</p>' if caption else ""
    return named + scrolling(
        f"<table><thead><tr>{cells('th', heads)}</tr></thead><tbody>{body}</tbody></table>", caption or "table"
    )


def scrolling(markup: str, label: str) -> str:
    """Returns markup that scrolls sideways inside itself, also by keys, where the window is narrower."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label, quote=True)}">{markup}</div>'


def breakable(text: str) -> str:
    """Returns escaped text that may be broken after commas and slashes, as long names of runs are."""
    return re.sub(r"([,/])(?=\S)", r"\1<wbr>", escape(text))


def with_code(text: str) -> str:
    """Returns escaped text, with what backticks enclose as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def write_page(path: Path, text: str) -> None:
    """Writes a page in place of an earlier one; readers see the old one or the new one, never a part."""
    atomic.write_text(path, text, errors="replace")
