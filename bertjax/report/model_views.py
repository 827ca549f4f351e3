"""Views into the model: mask predictions of fixed sentences, attention maps, nearest tokens in the embedding table."""

from __future__ import annotations

import base64
import binascii
import operator
from collections.abc import Sequence
from html import escape
from typing import Any

from bertjax.report.chart import data_block
from bertjax.report.run_record import Record, RunRecord

MAX_STEPS = 12
"""Maximum number of steps in a table of mask predictions."""
MAX_ATTENTION_CHARS = 600_000
"""Maximum characters of all attention maps in a page; the latest steps are shown."""


def mask_predictions(run: RunRecord) -> str:
    """Returns a table over steps per sentence; tokens that the previous row lacks have a thick frame."""
    by_sentence: dict[str, dict[int, list[tuple[str, float]]]] = {}
    for record in run.of_kind("fill_mask"):
        if isinstance(record.get("sentence"), str):
            by_sentence.setdefault(record["sentence"], {})[record["step"]] = _pairs(record.get("tokens"))
    tables = [_prediction_table(sentence, steps) for sentence, steps in by_sentence.items()]
    if not tables:
        return _notes(run, "fill_mask")
    intro = (
        '<p class="note">The most likely tokens for the first mask of the sentences of <code>eval.fill_mask</code>, '
        "with their probabilities. Thick frames: tokens that the row above lacks.</p>"
    )
    return f'{intro}<div class="grid-of wide">{"".join(tables)}</div>'


def _prediction_table(sentence: str, steps: dict[int, list[tuple[str, float]]]) -> str:
    rows, before = [], None
    for step in select_evenly(sorted(steps), MAX_STEPS):
        tokens = steps[step]
        cells = "".join(_token(token, share, before is not None and token not in before) for token, share in tokens)
        rows.append(f'<tr><td class="n">{step:,}</td><td><ul class="tokens">{cells}</ul></td></tr>')
        before = {token for token, _ in tokens}
    return (
        f'<div class="card"><h3>{_with_mask(sentence)}</h3><table class="fill"><thead><tr><th class="n">step</th>'
        f"<th>most likely</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _token(token: str, share: float, is_new: bool) -> str:
    new = ' class="new"' if is_new else ""
    return f'<li{new} style="--w:{0.7 * share:.2f}">{escape(token)} <small>{share:.2f}</small></li>'


def _with_mask(sentence: str) -> str:
    """Highlights the mask of a sentence, `[MASK]` or `<mask>`."""
    marked = escape(sentence)
    for mask in ("[MASK]", "&lt;mask&gt;"):
        marked = marked.replace(mask, f'<span class="mask">{mask}</span>', 1)
    return marked


def select_evenly(items: Sequence[Any], count: int) -> list[Any]:
    """Returns at most `count` evenly spaced items, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]


def neighbors(run: RunRecord) -> str:
    """Returns the nearest tokens by cosine of their embeddings, at every probed step."""
    records = [record for record in run.of_kind("neighbors") if isinstance(record.get("token"), str)]
    if not records:
        return _notes(run, "neighbors")
    steps = sorted({record["step"] for record in records}, reverse=True)
    tables = []
    for step in steps:
        rows = "".join(_neighbor_row(record) for record in records if record["step"] == step)
        tables.append(
            f"<details{' open' if step == steps[0] else ''}><summary>step {step:,}</summary>"
            f'<table class="fill"><tbody>{rows}</tbody></table></details>'
        )
    intro = "Tokens whose embeddings have the highest cosine similarity (1 = same direction)."
    return f'<p class="note">{intro}</p><div class="card">{"".join(tables)}</div>'


def _neighbor_row(record: Record) -> str:
    near = "".join(
        f'<li style="--w:{max(0.0, 0.7 * cosine):.2f}">{escape(token)} <small>{cosine:.2f}</small></li>'
        for token, cosine in _pairs(record.get("near"))
    )
    return f'<tr><td><b>{escape(record["token"])}</b></td><td><ul class="tokens">{near}</ul></td></tr>'


def _pairs(value: Any) -> list[tuple[str, float]]:
    """Returns the valid (text, number) pairs of a field."""
    if not isinstance(value, list):
        return []
    pairs = [each for each in value if isinstance(each, list) and len(each) == 2]
    return [(text, float(share)) for text, share in pairs if isinstance(text, str) and type(share) in (int, float)]


def attention(run: RunRecord) -> str:
    """Returns the grid of layers and heads, one enlarged map, and the tokens shaded by attention weight."""
    usable = sorted(filter(_is_attention, run.of_kind("attention")), key=operator.itemgetter("step"))
    shown: list[Record] = []
    for record in reversed(usable):
        if shown and sum(_size(each) for each in [*shown, record]) > MAX_ATTENTION_CHARS:
            break
        shown.insert(0, record)
    if not shown:
        return _notes(run, "attention")
    chooser = ""
    if len(shown) > 1:
        options = "".join(
            f'<option value="{index}"{" selected" if index == len(shown) - 1 else ""}>step {record["step"]:,}</option>'
            for index, record in enumerate(shown)
        )
        chooser = f'<label>at <select aria-label="step">{options}</select></label>'
    block = data_block([{"tokens": record["tokens"], "maps": record["maps"]} for record in shown])
    return (
        '<p class="note">Each small square is a head (rows: layers, from 0): its rows are queries, its columns keys; '
        "the color shows the square root of the attention weight. Choose a head, then a token below: the tokens that "
        "it attends to are shaded. Attention weights alone do not explain a prediction.</p>"
        f'<div class="card attention-view">{chooser}{_sentence_without_script(shown[-1])}'
        '<div class="attention"><div><div class="heads" role="group" aria-label="layers and heads"></div></div>'
        '<div><div class="map"><div class="sides keys" aria-hidden="true"></div><div class="sides queries" '
        'aria-hidden="true"></div><canvas width="1" height="1" role="img" aria-label="attention weights of this head">'
        '</canvas></div><p><output class="quiet"></output></p>'
        f'<div class="chips" role="group" aria-label="tokens"></div></div></div>{block}</div>'
    )


def _sentence_without_script(record: Record) -> str:
    text = f"{record['layers']} layers of {record['heads']} heads on: {' '.join(record['tokens'])}"
    return f"<noscript><p>{escape(text)} (the maps are drawn by the script of this page)</p></noscript>"


def _is_attention(record: Record) -> bool:
    """Returns whether every map is present and matches the number of tokens."""
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
    """Returns the notes that explain why a view is missing."""
    texts = [record.get("text") for record in run.newest("note") if record.get("about") == about]
    return "".join(f'<p class="none">{escape(text)}</p>' for text in texts if isinstance(text, str))
