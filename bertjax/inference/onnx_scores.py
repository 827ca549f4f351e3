"""Scores of held-out examples by a model and by its ONNX graph: what fewer bits cost."""

from __future__ import annotations

import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.hf.forward import max_input_length
from bertjax.hf.onnx_folder import Score
from bertjax.hf.onnx_graph import OnnxModel, expected_outputs
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.mlm_inference import choose_mask_mode
from bertjax.inference.predict import Predictor
from bertjax.inference.predict_inputs import PredictInputs
from bertjax.inference.similarity import cosines
from bertjax.inference.text_batches import TextEncoder, TokenizedTexts
from bertjax.types import Batch

_MASKED = 0.15
_TEXTS, _LENGTH = 8, 128  # of a batch, and tokens of a text: logits of a large vocabulary fill the memory


def score_task(predictor: Predictor, graph: OnnxModel, inputs: PredictInputs) -> list[Score]:
    """Returns the metrics of labeled examples by both.

    Args:
        predictor: the model.
        graph: its graph.
        inputs: examples with their gold labels.
    """
    other = predictor.with_outputs(lambda batch: _head_outputs(graph, predictor.summary_is_last, batch))
    before, after = (each.score(inputs, each(inputs)).metrics for each in (predictor, other))
    pairs = {name: (before[name], after[name]) for name in before if name in after}
    return [Score(name, *map(float, pair)) for name, pair in pairs.items() if np.isfinite(pair).all()]


def _head_outputs(graph: OnnxModel, summary_is_last: bool, batch: Batch) -> np.ndarray:
    """Returns what `TaskObjective.scores` does, for windows in a sequence each."""
    ids, mask, types = (np.asarray(batch[name]) for name in ("input_ids", "segment_ids", "token_type_ids"))
    mask = (mask > 0).astype(np.int64)
    if summary_is_last:  # padding comes first, as in `transformers`
        order = np.argsort(mask, axis=1, kind="stable")
        rolled = (np.take_along_axis(each, order, axis=1) for each in (ids, mask, types))
        return graph(*rolled)["logits"][:, None]
    outputs = graph(ids, mask, types)
    if "start_logits" in outputs:
        return np.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
    logits = outputs["logits"]
    return logits if logits.ndim == 3 else logits[:, None]


def score_masked(model: PretrainedModel, graph: OnnxModel, tokenizer: Tokenizer, texts: list[str]) -> list[Score]:
    """Returns loss and accuracy of masked tokens of texts, the same ones for both.

    Args:
        model: a masked language model.
        graph: its graph.
        tokenizer: its tokenizer.
        texts: held-out texts.
    """
    mask_id = choose_mask_mode(model, tokenizer.mask_id, two_streams=False).mask_id
    encoded, random = _encode(model, tokenizer, texts), np.random.default_rng(0)
    name = graph.signature.outputs[graph.signature.fields.index("mlm_logits")]
    sums, count = np.zeros((2, 2)), 0
    for first in range(0, len(encoded), _TEXTS):
        members = np.arange(first, min(first + _TEXTS, len(encoded)))
        length = int(encoded.lengths[members].max())
        batch = encoded.token_batch(members, length, model.config.pad_token_id)._asdict()
        is_text = encoded.padded(encoded.words, members, length, -1) >= 0
        masked = is_text & (random.random(is_text.shape) < _MASKED)
        gold = batch["input_ids"][masked]
        batch["input_ids"] = np.where(masked, mask_id, batch["input_ids"])
        count += len(gold)
        for row, outputs in zip(sums, (expected_outputs(model, graph.signature, batch), graph(**batch)), strict=True):
            logits = outputs[name][masked].astype(np.float64)
            logits -= logits.max(axis=-1, keepdims=True)
            of_gold = np.take_along_axis(logits, gold[:, None], axis=-1)[:, 0]
            row += (np.log(np.exp(logits).sum(-1)) - of_gold).sum(), (logits.argmax(-1) == gold).sum()
    if not count:
        raise UserError("the texts are too short to mask 15 % of their tokens; give more of them")
    values = sums / count
    return [Score(f"{what} of {count:,} masked tokens", *values[:, i]) for i, what in enumerate(("loss", "accuracy"))]


def score_vectors(model: PretrainedModel, graph: OnnxModel, tokenizer: Tokenizer, texts: list[str]) -> list[Score]:
    """Returns the mean cosine of the vectors of texts by both.

    Args:
        model: a sentence encoder without heads.
        graph: its graph.
        tokenizer: its tokenizer.
        texts: the texts.
    """
    pooling = graph.signature.pooling
    assert pooling is not None
    encoded = _encode(model, tokenizer, [pooling.prompt + text for text in texts], pooling.lowercase)
    similarities = []
    for first in range(0, len(encoded), _TEXTS):
        members = np.arange(first, min(first + _TEXTS, len(encoded)))
        length = int(encoded.lengths[members].max())
        batch = encoded.token_batch(members, length, model.config.pad_token_id)._asdict()
        vectors = [
            each["sentence_embedding"] for each in (expected_outputs(model, graph.signature, batch), graph(**batch))
        ]
        similarities.append(cosines(*vectors))
    return [
        Score(f"mean cosine of the vectors of {len(encoded):,} texts", 1.0, float(np.concatenate(similarities).mean()))
    ]


def _encode(model: PretrainedModel, tokenizer: Tokenizer, texts: list[str], lowercase: bool = False) -> TokenizedTexts:
    limit = max_input_length(model.config, model.heads)
    encoded = TextEncoder(tokenizer, min(limit or _LENGTH, _LENGTH), lowercase)(texts)
    if not len(encoded) or not encoded.lengths.min():
        raise UserError("a text without tokens has no score; remove it")
    return encoded
