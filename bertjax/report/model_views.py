"""What was seen inside the model: fillings of fixed sentences, attention, and neighbours among the word vectors."""

from __future__ import annotations

import base64
import binascii
import operator
from collections.abc import Sequence
from html import escape
from typing import Any

from bertjax.report.chart import data_block
from bertjax.report.probe_log import Record
from bertjax.report.run_record import RunRecord

MOST_STEPS = 12
"""Rows of a table of fillings: more would hide how they change."""
MOST_ATTENTION = 600_000
"""Characters of all attention maps in a page; of several updates, the newest ones stay."""


def fillings(run: RunRecord) -> str:
    """For every sentence a table over the updates; a piece that was not there in the row before has a thick frame."""
    by_sentence: dict[str, dict[int, list[tuple[str, float]]]] = {}
    for record in run.of_kind("fill_mask"):
        if isinstance(record.get("sentence"), str):
            by_sentence.setdefault(record["sentence"], {})[record["step"]] = _pairs(record.get("pieces"))
    tables = [_filling_table(sentence, steps) for sentence, steps in by_sentence.items()]
    if not tables:
        return _notes(run, "fill_mask")
    intro = (
        '<p class="note">The most likely pieces for the first mask of sentences that the config names, with their '
        "probabilities. Thick frames: pieces that the row above did not have.</p>"
    )
    return f'{intro}<div class="grid-of wide">{"".join(tables)}</div>'


def _filling_table(sentence: str, steps: dict[int, list[tuple[str, float]]]) -> str:
    rows, before = [], None
    for step in spread(sorted(steps), MOST_STEPS):
        pieces = steps[step]
        cells = "".join(_piece(piece, share, before is not None and piece not in before) for piece, share in pieces)
        rows.append(f'<tr><td class="n">{step:,}</td><td><ul class="pieces">{cells}</ul></td></tr>')
        before = {piece for piece, _ in pieces}
    return (
        f'<div class="card"><h3>{_with_mask(sentence)}</h3><table class="fill"><thead><tr><th class="n">update</th>'
        f"<th>most likely</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _piece(piece: str, share: float, is_new: bool) -> str:
    new = ' class="new"' if is_new else ""
    return f'<li{new} style="--w:{0.7 * share:.2f}">{escape(piece)} <small>{share:.2f}</small></li>'


def _with_mask(sentence: str) -> str:
    """The sentence with its mask, whatever the family calls it, set off."""
    marked = escape(sentence)
    for mask in ("[MASK]", "&lt;mask&gt;"):
        marked = marked.replace(mask, f'<span class="mask">{mask}</span>', 1)
    return marked


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def neighbours(run: RunRecord) -> str:
    """Nearest pieces by cosine in the word table, now and at earlier looks."""
    found = [record for record in run.of_kind("neighbours") if isinstance(record.get("piece"), str)]
    if not found:
        return _notes(run, "neighbours")
    steps = sorted({record["step"] for record in found}, reverse=True)
    tables = []
    for step in steps:
        rows = "".join(_neighbour_row(record) for record in found if record["step"] == step)
        tables.append(
            f"<details{' open' if step == steps[0] else ''}><summary>update {step:,}</summary>"
            f'<table class="fill"><tbody>{rows}</tbody></table></details>'
        )
    intro = "Pieces whose vectors in the word table point the same way (cosine; 1 = the same direction)."
    return f'<p class="note">{intro}</p><div class="card">{"".join(tables)}</div>'


def _neighbour_row(record: Record) -> str:
    near = "".join(
        f'<li style="--w:{max(0.0, 0.7 * cosine):.2f}">{escape(piece)} <small>{cosine:.2f}</small></li>'
        for piece, cosine in _pairs(record.get("near"))
    )
    return f'<tr><td><b>{escape(record["piece"])}</b></td><td><ul class="pieces">{near}</ul></td></tr>'


def _pairs(value: Any) -> list[tuple[str, float]]:
    """Text and number, of what a line says; whatever else stands there is left out."""
    if not isinstance(value, list):
        return []
    pairs = [each for each in value if isinstance(each, list) and len(each) == 2]
    return [(text, float(share)) for text, share in pairs if isinstance(text, str) and type(share) in (int, float)]


def attention(run: RunRecord) -> str:
    """The grid of layers and heads, one map large, and the words shaded by how much one of them looks at the others."""
    usable = sorted(filter(_is_attention, run.of_kind("attention")), key=operator.itemgetter("step"))
    kept: list[Record] = []
    for record in reversed(usable):
        if kept and sum(_size(each) for each in [*kept, record]) > MOST_ATTENTION:
            break
        kept.insert(0, record)
    if not kept:
        return _notes(run, "attention")
    chooser = ""
    if len(kept) > 1:
        options = "".join(
            f'<option value="{index}"{" selected" if index == len(kept) - 1 else ""}>update {record["step"]:,}</option>'
            for index, record in enumerate(kept)
        )
        chooser = f'<label>seen at <select aria-label="update">{options}</select></label>'
    block = data_block([{"tokens": record["tokens"], "maps": record["maps"]} for record in kept])
    return (
        '<p class="note">Each small square is a head (rows: layers, from 0): its rows are the tokens that look, its '
        "columns those looked at; the stronger the colour, the more (the square root of the share). Choose a head, "
        "then a word below: the words that it looks at are shaded. How a head looks is not yet why the model says what "
        "it says.</p>"
        f'<div class="card attention-view">{chooser}{_sentence_without_script(kept[-1])}'
        '<div class="attention"><div><div class="heads" role="group" aria-label="layers and heads"></div></div>'
        '<div><div class="map"><div class="sides seen" aria-hidden="true"></div><div class="sides lookers" '
        'aria-hidden="true"></div><canvas width="1" height="1" role="img" aria-label="who looks at whom in this head">'
        '</canvas></div><p><output class="quiet"></output></p>'
        f'<div class="chips" role="group" aria-label="tokens"></div></div></div>{block}</div>'
    )


def _sentence_without_script(record: Record) -> str:
    said = f"{record['layers']} layers of {record['heads']} heads on: {' '.join(record['tokens'])}"
    return f"<noscript><p>{escape(said)} (the maps are drawn by the script of this page)</p></noscript>"


def _is_attention(record: Record) -> bool:
    """Whether every map is there and has the size that its tokens ask for."""
    tokens, maps = record.get("tokens"), record.get("maps")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        return False
    if not isinstance(maps, list) or not maps or not all(isinstance(layer, list) and layer for layer in maps):
        return False
    record.setdefault("layers", len(maps))
    record.setdefault("heads", len(maps[0]))
    return all(
        len(layer) == len(maps[0]) and all(_has_size(each, len(tokens) ** 2) for each in layer) for layer in maps
    )


def _has_size(text: Any, size: int) -> bool:
    try:
        return isinstance(text, str) and len(base64.b64decode(text, validate=True)) == size
    except (binascii.Error, ValueError):
        return False


def _size(record: Record) -> int:
    return sum(len(each) for layer in record["maps"] for each in layer)


def _notes(run: RunRecord, about: str) -> str:
    """Why something is not there, if a line says so."""
    said = [record.get("text") for record in run.newest("note") if record.get("about") == about]
    return "".join(f'<p class="none">{escape(text)}</p>' for text in said if isinstance(text, str))
