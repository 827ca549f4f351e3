"""README.md of an exported model: what it is, how it was trained, how well, how to load it, what it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bertjax.models.config import EncoderConfig

MARKER = "<!-- written by bertjax: an export with this line may be overwritten by another -->"

# Facts that a run can give, in the order in which the card tells them; those absent are left out.
FACTS = {
    "data": "Data",
    "objective": "Objective",
    "steps": "Steps",
    "batch_size": "Rows per batch",
    "seq_len": "Tokens per row",
    "tokens_seen": "Tokens seen",
    "tokenizer": "Tokenizer",
    "seed": "Seed",
}
_SAMPLES = {"mlm": "fill-mask"}


def model_card(
    config: EncoderConfig,
    heads: tuple[str, ...],
    model_type: str,
    architecture: str,
    num_params: int,
    card: Mapping[str, Any] | None,
) -> str:
    """The text of README.md.

    card  facts of the run: the keys of `FACTS`, `eval` {name: number}, `language` and `license` (front matter),
          `name`; every key is optional, unknown ones are an error (ValueError), for they would vanish unseen
    """
    card = dict(card or {})
    unknown = set(card) - set(FACTS) - {"eval", "language", "license", "name"}
    if unknown:
        raise ValueError(f"unknown model card keys {sorted(unknown)}")
    parts = [
        _front_matter(heads, model_type, card),
        MARKER,
        f"# {_line(card.get('name') or architecture)}",
        _introduction(config, architecture, num_params),
        _training(card),
        _evaluation(card.get("eval") or {}),
        _usage(heads, architecture),
        _limits(config, heads, card.get("seq_len")),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(heads: tuple[str, ...], model_type: str, card: Mapping[str, Any]) -> str:
    lines = ["---"]
    lines += [f"{key}: {json.dumps(card[key])}" for key in ("language", "license") if card.get(key)]
    lines += ["library_name: transformers"]
    lines += [f"pipeline_tag: {_SAMPLES[head]}" for head in heads if head in _SAMPLES]
    lines += ["tags:", f"- {model_type}", "- bertjax", "- pretraining", "---"]
    return "\n".join(lines)


def _introduction(config: EncoderConfig, architecture: str, num_params: int) -> str:
    activation = {"gelu": "GELU (erf)", "gelu_new": "GELU (tanh)"}.get(config.hidden_act, config.hidden_act)
    rows = [
        ("Parameters", f"{num_params:,}"),
        ("Layers", config.num_layers),
        ("Hidden size", config.hidden_size),
        ("Attention heads", config.num_heads),
        ("Feed-forward size", config.intermediate_size),
        ("Vocabulary", f"{config.vocab_size:,}"),
        ("Positions", config.max_position_embeddings),
        ("Activation", activation),
    ]
    return f"An encoder of class `{architecture}`, pretrained with bertjax (JAX).\n\n" + _table("Size", rows)


def _training(card: Mapping[str, Any]) -> str:
    rows = [(title, _text(card[key])) for key, title in FACTS.items() if card.get(key) is not None]
    return "## Training\n\n" + _table("Fact", rows) if rows else ""


def _evaluation(figures: Mapping[str, Any]) -> str:
    rows = [(name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in sorted(figures.items())]
    return "## Evaluation\n\nOn held-out text:\n\n" + _table("Measure", rows) if rows else ""


def _usage(heads: tuple[str, ...], architecture: str) -> str:
    auto = "AutoModelForMaskedLM" if "mlm" in heads else "AutoModel"
    return (
        "## Use\n\n```python\n"
        f"from transformers import AutoTokenizer, {auto}\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("PATH_OR_NAME")\n'
        f'model = {auto}.from_pretrained("PATH_OR_NAME")\n'
        f"```\n\n`{architecture}` loads all of its weights."
    )


def _limits(config: EncoderConfig, heads: tuple[str, ...], seq_len: int | None) -> str:
    points = [
        f"Rows of more than {config.max_position_embeddings} tokens are not supported.",
        "It repeats what its training text says, with that text's errors and biases; nothing was filtered or aligned.",
        "It is a pretrained encoder: most tasks need fine-tuning.",
    ]
    if seq_len is not None and seq_len < config.max_position_embeddings:
        points.insert(1, f"It saw rows of {seq_len} tokens: the embeddings of later positions are as they were drawn.")
    if "pooler" not in heads:
        points.append("It has no pooler: `AutoModel` draws a random one, so do not use `pooler_output` untrained.")
    return "## Limits\n\n" + "\n".join(f"- {point}" for point in points)


def _table(title: str, rows: list[tuple[str, Any]]) -> str:
    return "\n".join([f"| {title} | |", "|---|---|", *(f"| {_line(name)} | {_line(value)} |" for name, value in rows)])


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _line(value: Any) -> str:
    """Text that stays in its table cell."""
    return " ".join(str(value).split()).replace("|", "\\|")
