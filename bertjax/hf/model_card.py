"""README.md of an exported model: what it is, how it was trained, its scores, how to load it, its limits."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

from bertjax.hf.export_plan import ExportPlan
from bertjax.hf.forward import max_input_length
from bertjax.hf.safe_files import auto_class

MARKER = "<!-- written by bertjax: an export with this line may be overwritten by another -->"

# Facts of a run in the order of the card; absent ones are left out.
FACTS = {
    "base_model": "Base model",
    "base_revision": "Revision of the base model",
    "continues": "Continues the run",
    "task": "Task",
    "objective": "Objective",
    "data": "Training data",
    "eval_data": "Evaluation data",
    "test_data": "Test data",
    "labels": "Labels",
    "epochs": "Epochs",
    "steps": "Steps",
    "batch_size": "Batch size",
    "seq_len": "Sequence length",
    "max_length": "Maximum example length",
    "tokens_seen": "Tokens seen",
    "tokenizer": "Tokenizer",
    "temperature": "Temperature of the probabilities",
    "seed": "Seed",
}
_OTHER_KEYS = {"eval", "test", "main_metric", "language", "license", "name", "onnx", "sentence_vectors"}
_PIPELINES = {
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
}
_SIDECAR_PARTS = {
    "span_head": "the span-boundary head",
    "decoder_positions": "the position table of the enhanced mask decoder",
    "rtd_head": "the head of replaced token detection",
    "pair_head": "the head that classifies pairs of segments",
    "contact_head": "the head that predicts contacts",
}


def render_model_card(plan: ExportPlan, num_params: int, card: Mapping[str, Any] | None) -> str:
    """Returns the text of README.md.

    Args:
        plan: the export.
        num_params: number of parameters.
        card: facts of the run, all optional: the keys of `FACTS`; `eval` and `test` {metric: number} and `main_metric`,
            the one by which checkpoints are compared; `language` and `license` (front matter); `name`;
            `sentence_vectors`, how a folder for sentence-transformers pools; `onnx`, the graph of a folder that has no
            other weights. A `task` makes it the card of a finetuned model.

    Raises:
        ValueError: a key is unknown, and would be left out silently.
    """
    card = dict(card or {})
    unknown = set(card) - set(FACTS) - _OTHER_KEYS
    if unknown:
        raise ValueError(f"unknown model card keys {sorted(unknown)}")
    parts = [
        _front_matter(plan, card),
        MARKER,
        f"# {_line(card.get('name') or plan.architecture)}",
        _introduction(plan, num_params, card),
        _training(card),
        _evaluation(card),
        *_use(plan, card),
        _limits(plan, card),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_facts(card: Mapping[str, Any]) -> str:
    """Returns the sections on training and evaluation, after the rest of a card; "" without facts."""
    return "".join(f"\n{part}\n" for part in (_training(card), _evaluation(card)) if part)


def auto_class_of(plan: ExportPlan) -> str:
    """Returns the class of `transformers` that loads an export with its weights."""
    has_mlm = plan.architecture.endswith("ForPreTraining") and "mlm" in plan.stored_heads
    return auto_class("ForMaskedLM" if has_mlm else plan.architecture)


def _front_matter(plan: ExportPlan, card: Mapping[str, Any]) -> str:
    lines = [f"{key}: {json.dumps(card[key])}" for key in ("language", "license") if card.get(key)]
    if "/" in (card.get("base_model") or ""):  # the Hub refuses names that are not on it
        lines.append(f"base_model: {json.dumps(card['base_model'])}")
    family = ["custom_code"] if plan.family is None else [plan.family.model_type]
    if card.get("sentence_vectors"):
        lines += ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
        tags = ["sentence-transformers", *family, "bertjax"]
    else:
        lines += ["library_name: transformers"]
        pipeline = _PIPELINES.get(auto_class_of(plan))
        lines += [f"pipeline_tag: {pipeline}"] if pipeline else []
        tags = [*family, "bertjax", "finetuning" if card.get("task") else "pretraining"]
    tags += ["onnx"] * bool(card.get("onnx"))
    if card.get("task") and card.get("eval"):
        lines += ["metrics:", *(f"- {json.dumps(name)}" for name in sorted(card["eval"]))]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _introduction(plan: ExportPlan, num_params: int, card: Mapping[str, Any]) -> str:
    config = plan.config
    activation = {"gelu": "GELU (erf)", "gelu_new": "GELU (tanh)"}.get(config.hidden_act, config.hidden_act)
    rows = [
        ("Parameters", f"{num_params:,}"),
        ("Layers", config.num_layers),
        *([("Layers of the decoder", config.decoder_layers)] if config.decoder_layers is not None else []),
        ("Hidden size", config.hidden_size),
        ("Attention heads", config.num_heads),
        ("Feed-forward size", config.intermediate_size),
        ("Vocabulary", f"{config.vocab_size:,}"),
        ("Positions", max_input_length(config, plan.heads) or "computed, not limited by a table"),
        ("Activation", activation),
    ]
    origin = "pretrained with bertjax (JAX)"
    if card.get("task"):
        base = card.get("base_model")
        origin = f"finetuned from {_code(base)}" if base else "trained from random weights"
        origin += f" for {_line(card['task'])} with bertjax (JAX)"
    network = "encoder" if config.decoder_layers is None else "encoder-decoder"
    return f"An {network} of class `{plan.architecture}`, {origin}.\n\n{_table('Size', rows)}"


def _training(card: Mapping[str, Any]) -> str:
    rows = [(title, _text(card[key])) for key, title in FACTS.items() if card.get(key) not in (None, ())]
    return "## Training\n\n" + _table("Fact", rows) if rows else ""


def _evaluation(card: Mapping[str, Any]) -> str:
    metrics, main = card.get("eval") or {}, card.get("main_metric")
    if not metrics:
        return ""
    data = "the evaluation data" if card.get("task") else "held-out text"
    compared = f"; checkpoints are compared by {_line(main)}" if main in metrics else ""
    text = f"## Evaluation\n\nOn {data}{compared}:\n\n{_table('Metric', _scores(metrics))}"
    if tested := card.get("test"):
        text += f"\n\nOn the test data, by which nothing was chosen:\n\n{_table('Metric', _scores(tested))}"
    return text


def _scores(metrics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in sorted(metrics.items())]


def _use(plan: ExportPlan, card: Mapping[str, Any]) -> list[str]:
    vectors = card.get("sentence_vectors")
    if card.get("onnx"):
        return [_onnx_usage(plan, card["onnx"]), f"A `sentence_embedding` is {vectors}." if vectors else ""]
    return [_usage(plan), _sentence_usage(plan, vectors, "objective" in card), _sidecar(plan)]


def _onnx_usage(plan: ExportPlan, onnx: Mapping[str, Any]) -> str:
    outputs = ", ".join(f"`{name}`" for name in onnx["outputs"])
    side = 'direction="left", ' if plan.config.pooling == "last" and not plan.config.causal else ""
    return (
        "## Use\n\nThe weights are in `model.onnx`, which onnxruntime runs alone, for batches of any shape:\n\n"
        "```python\nimport numpy as np\nimport onnxruntime\nfrom tokenizers import Tokenizer\n\n"
        'tokenizer = Tokenizer.from_file("PATH/tokenizer.json")\n'
        f"tokenizer.enable_padding({side}pad_id={plan.config.pad_token_id})\n"
        'session = onnxruntime.InferenceSession("PATH/model.onnx")\n'
        'encodings = tokenizer.encode_batch(["A text.", "Another, which is longer."])\n'
        'fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}\n'
        "names = [each.name for each in session.get_inputs()]\n"
        "inputs = {name: np.array([getattr(each, fields[name]) for each in encodings]) for name in names}\n"
        f"outputs = session.run(None, inputs)\n```\n\nOutputs: {outputs}.\n\n" + _table("Graph", onnx["rows"])
    )


def _usage(plan: ExportPlan) -> str:
    if plan.is_private:
        code = 'import bertjax\n\nmodel = bertjax.load_pretrained("PATH_OR_NAME")'
        return f"## Use\n\n```python\n{code}\n```\n\nNote: {plan.limitation}."
    auto, code, note = auto_class_of(plan), code_argument(plan), ""
    if plan.family is None:
        parts = ", ".join(map(_line, plan.unsupported)) or "its parts"
        note = f" Its code (PyTorch) is in this folder, since `transformers` has no class for a model with {parts}."
    elif plan.requirement:
        note = f" Note: {plan.requirement}."
    return (
        "## Use\n\n```python\n"
        f"from transformers import AutoTokenizer, {auto}\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("PATH_OR_NAME")\n'
        f'model = {auto}.from_pretrained("PATH_OR_NAME"{code})\n'
        f"```\n\n`{plan.architecture}` loads all weights{' except those named below' * bool(plan.sidecar_paths)}.{note}"
    )


def code_argument(plan: ExportPlan) -> str:
    """Returns the argument by which libraries run the code of a folder, where it has any."""
    return ", trust_remote_code=True" if "auto_map" in plan.config_json else ""


def _sentence_usage(plan: ExportPlan, pooling: str | None, is_pretrained: bool) -> str:
    if not pooling:
        return ""
    quality = (
        " It is as good as the pretraining objective makes it: the model was not trained to give sentences of similar "
        "meaning similar embeddings."
    )
    return (
        "## Sentence embeddings\n\n```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("PATH_OR_NAME"{code_argument(plan)})\n'
        'embeddings = model.encode(["A sentence.", "Another one."])\n'
        f"```\n\nAn embedding is {pooling}.{quality * is_pretrained}"
    )


def _sidecar(plan: ExportPlan) -> str:
    """Describes the sidecar files, which `transformers` ignores."""
    if not plan.has_sidecar:
        return ""
    modules = (path.split("/")[0] for path in plan.sidecar_paths)
    parts = dict.fromkeys(_SIDECAR_PARTS.get(module, f"`{module}`") for module in modules)
    text = (
        "## Sidecar files\n\n`transformers` ignores `bertjax.json` and `bertjax.safetensors`, and runs the model "
        'without them; `bertjax.load_pretrained("PATH")` reads them.'
    )
    if parts:
        text += f" They hold {', '.join(parts)}."
    if plan.sidecar_fields:
        text += f" Settings that only they hold: {', '.join(plan.sidecar_fields)}."
    return text


def _limits(plan: ExportPlan, card: Mapping[str, Any]) -> str:
    limit, seq_len = max_input_length(plan.config, plan.heads), card.get("seq_len")
    points = []
    if limit is not None:
        points.append(f"Sequences of more than {limit} tokens are not supported.")
        if seq_len is not None and seq_len < limit:
            points.append(
                f"It was trained on sequences of {seq_len} tokens: the embeddings of later positions are untrained."
            )
    points.append("It reproduces the errors and biases of its training text; nothing was filtered or aligned.")
    if card.get("task"):
        points.append("It was finetuned for one task: on other kinds of text its scores may be lower than those above.")
    else:
        points.append("It is a pretrained encoder: most tasks need finetuning.")
    if plan.lacks_pooler:
        points.append("It has no pooler: `AutoModel` draws a random one, so do not use `pooler_output` untrained.")
    return "## Limits\n\n" + "\n".join(f"- {point}" for point in points)


def _table(title: str, rows: list[tuple[str, Any]]) -> str:
    return "\n".join([f"| {title} | |", "|---|---|", *(f"| {_line(name)} | {_line(value)} |" for name, value in rows)])


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _line(value: Any) -> str:
    """Returns text that stays in its table cell and is shown as it is: names of files and labels may hold markup."""
    return re.sub(r"[\\`*\[\]|]", r"\\\g<0>", html.escape(" ".join(str(value).split()), quote=False))


def _code(text: str) -> str:
    return "`" + " ".join(text.split()).replace("`", "'") + "`"
