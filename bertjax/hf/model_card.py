"""README.md of an exported model: what it is, how it was trained, how well, how to load it, what it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bertjax.hf.export_plan import ExportPlan
from bertjax.hf.inputs import max_input_length
from bertjax.hf.safe_files import auto_class

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
_PIPELINES = {
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
}


def render_model_card(
    plan: ExportPlan,
    num_params: int,
    card: Mapping[str, Any] | None,
) -> str:
    """The text of README.md.

    card  facts of the run: the keys of `FACTS`, `eval` {name: number}, `language` and `license` (front matter),
          `name`, `sentence_vectors` (of a folder for sentence-transformers: how they are made); every key is
          optional, unknown ones are an error (ValueError), for they would vanish unseen
    """
    card = dict(card or {})
    unknown = set(card) - set(FACTS) - {"eval", "language", "license", "name", "sentence_vectors"}
    if unknown:
        raise ValueError(f"unknown model card keys {sorted(unknown)}")
    parts = [
        _front_matter(plan, card),
        MARKER,
        f"# {_line(card.get('name') or plan.architecture)}",
        _introduction(plan, num_params),
        _training(card),
        _evaluation(card.get("eval") or {}),
        _usage(plan),
        _sentence_usage(card.get("sentence_vectors")),
        _beside(plan),
        _limits(plan, card.get("seq_len")),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(plan: ExportPlan, card: Mapping[str, Any]) -> str:
    lines = ["---"]
    lines += [f"{key}: {json.dumps(card[key])}" for key in ("language", "license") if card.get(key)]
    if card.get("sentence_vectors") and plan.family is not None:
        lines += ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
        lines += ["tags:", "- sentence-transformers", f"- {plan.family.model_type}", "- bertjax", "---"]
        return "\n".join(lines)
    lines += [f"library_name: {'bertjax' if plan.family is None else 'transformers'}"]
    if plan.family is not None:
        auto = auto_class_of(plan)
        lines += [f"pipeline_tag: {_PIPELINES[auto]}"] if auto in _PIPELINES else []
        lines += ["tags:", f"- {plan.family.model_type}", "- bertjax", "- pretraining", "---"]
    else:
        lines += ["tags:", "- bertjax", "- pretraining", "---"]
    return "\n".join(lines)


def auto_class_of(plan: ExportPlan) -> str:
    """The class of `transformers` that loads an export with its weights; empty for our own format."""
    if plan.family is None:
        return ""
    pairs_of_words = plan.architecture.endswith("ForPreTraining") and "mlm" in plan.stored_heads
    return auto_class("ForMaskedLM" if pairs_of_words else plan.architecture)


def _introduction(plan: ExportPlan, num_params: int) -> str:
    config = plan.config
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
    return f"An encoder of class `{plan.architecture}`, pretrained with bertjax (JAX).\n\n" + _table("Size", rows)


def _training(card: Mapping[str, Any]) -> str:
    rows = [(title, _text(card[key])) for key, title in FACTS.items() if card.get(key) is not None]
    return "## Training\n\n" + _table("Fact", rows) if rows else ""


def _evaluation(figures: Mapping[str, Any]) -> str:
    rows = [(name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in sorted(figures.items())]
    return "## Evaluation\n\nOn held-out text:\n\n" + _table("Measure", rows) if rows else ""


def _usage(plan: ExportPlan) -> str:
    if plan.family is None:
        reasons = ", ".join(map(_line, plan.unsupported)) or "its parts"
        return (
            '## Use\n\n```python\nimport bertjax\n\nmodel = bertjax.load_pretrained("PATH")\n```\n\n'
            f"`transformers` has no class for it; in the way: {reasons}."
        )
    auto = auto_class_of(plan)
    return (
        "## Use\n\n```python\n"
        f"from transformers import AutoTokenizer, {auto}\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("PATH_OR_NAME")\n'
        f'model = {auto}.from_pretrained("PATH_OR_NAME")\n'
        f"```\n\n`{plan.architecture}` loads all of its weights{' but those named below' * bool(plan.sidecar_paths)}."
    )


def _sentence_usage(pooled: str | None) -> str:
    if not pooled:
        return ""
    return (
        "## Sentence vectors\n\n```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        'vectors = SentenceTransformer("PATH_OR_NAME").encode(["A sentence.", "Another one."])\n'
        f"```\n\nA vector is {pooled}. It is as good as the pretraining objective makes it: nothing was trained to "
        "bring sentences of one meaning together."
    )


_PARTS = {
    "span_head": "the span-boundary head",
    "decoder_positions": "the absolute positions of the enhanced decoder of masked words",
    "rtd_head": "the head that tells replaced tokens",
    "pair_head": "the head that judges pairs of sentences",
}


def _beside(plan: ExportPlan) -> str:
    """What lies in the side files, of which `transformers` knows nothing."""
    if not plan.has_sidecar:
        return ""
    parts = dict.fromkeys(_PARTS.get(path.split("/")[0], f"`{path.split('/')[0]}`") for path in plan.sidecar_paths)
    text = (
        "## Beside the weights\n\n`transformers` ignores `bertjax.json` and `bertjax.safetensors`, and runs the model "
        'without them; `bertjax.load_pretrained("PATH")` reads them.'
    )
    if parts:
        text += f" They hold {', '.join(parts)}."
    if plan.sidecar_fields:
        text += f" Settings that only they hold: {', '.join(plan.sidecar_fields)}."
    return text


def _limits(plan: ExportPlan, seq_len: int | None) -> str:
    longest = max_input_length(plan.config, plan.heads)
    points = [
        "It repeats what its training text says, with that text's errors and biases; nothing was filtered or aligned.",
        "It is a pretrained encoder: most tasks need fine-tuning.",
    ]
    if longest is not None:
        points.insert(0, f"Rows of more than {longest} tokens are not supported.")
    if longest is not None and seq_len is not None and seq_len < longest:
        points.insert(1, f"It saw rows of {seq_len} tokens: the embeddings of later positions are as they were drawn.")
    if plan.lacks_pooler:
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
