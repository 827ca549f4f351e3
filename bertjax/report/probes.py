"""Probes of the model during training: mask predictions, attention on a sentence, nearest tokens, memory.

All of it is small and runs on the host CPU if jax has one, so that accelerator memory is not touched.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.words import is_word
from bertjax.errors import UserError
from bertjax.hf.forward import Inputs, check_inputs
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.fill_mask import fill_masks
from bertjax.models.model import bind
from bertjax.report.run_record import Probe
from bertjax.types import Params

MAX_TOKENS = 24
"""Maximum tokens of the attention sentence; maps grow with their square."""
MAX_MAPS = 512
"""Maximum number of layers x heads; of a larger model the lowest layers."""
NUM_NEIGHBORS = 8
NUM_LOOKS = 4
"""Number of probes of attention and neighbors in a run, the last one at its end."""
NUM_DEFAULT_TOKENS = 8

Result = TypeVar("Result")


class ProbeConfig(NamedTuple):
    """Settings `report.*` and `eval.fill_mask`, and token counts, int64 [V]."""

    sentences: tuple[str, ...]
    sentence: str | None
    tokens: tuple[str, ...]
    counts: np.ndarray
    num_steps: int
    interval: int
    two_streams: bool | None = None  # XLNet: predict masks through both streams


class ModelProbes:
    """Probes the networks of a run, given their parameters on the host at the true vocabulary size."""

    def __init__(
        self,
        networks: Mapping[str, tuple[EncoderConfig, tuple[str, ...]]],
        complete: Callable[[Params, str], Params],
        tokenizer: Tokenizer,
        config: ProbeConfig,
    ):
        """Initializes the probes.

        Args:
            networks: (config, heads) by name; they compute in float32.
            complete: Returns the parameters of a network from those of the run.
            tokenizer: Tokenizer of the run.
            config: Sentences and tokens to probe.
        """
        self.networks, self.complete, self.tokenizer, self.config = networks, complete, tokenizer, config

    def __call__(self, step: int, params: Params) -> list[Probe]:
        return run_in_thread(functools.partial(self._probe, step, params))

    def _probe(self, step: int, params: Params) -> list[Probe]:
        probes = self._mask_predictions(params)
        if is_probe_step(step, self.config.interval, self.config.num_steps):
            probes += self._internals(params)
        return probes

    def _mask_predictions(self, params: Params) -> list[Probe]:
        if not self.config.sentences:
            return []
        name = next((each for each, (_, heads) in self.networks.items() if "mlm" in heads), None)
        if name is None:
            return [("note", {"about": "fill_mask", "text": "This model has no masked-LM head."})]
        config, heads = self.networks[name]
        model = PretrainedModel(config, self.complete(params, name), heads)
        try:
            predictions = fill_masks(model, self.tokenizer, self.config.sentences, two_streams=self.config.two_streams)
        except UserError as error:
            return [("note", {"about": "fill_mask", "text": f"No mask predictions: {error}."})]
        return [
            (
                "fill_mask",
                {"sentence": sentence, "tokens": [[token, round(probability, 4)] for token, probability in masks[0]]},
            )
            for sentence, masks in zip(self.config.sentences, predictions, strict=True)
        ]

    def probe_internals(self, params: Params) -> list[Probe]:
        """Returns attention and neighbors, independent of the step."""
        return run_in_thread(functools.partial(self._internals, params))

    def _internals(self, params: Params) -> list[Probe]:
        """Probes the first network, which is the one that is exported."""
        name = next(iter(self.networks))
        config, heads = self.networks[name]
        network_params = self.complete(params, name)
        probes: list[Probe] = []
        if self.config.sentence:
            probes.append(
                probe_attention(PretrainedModel(config, network_params, heads), self.tokenizer, self.config.sentence)
            )
        table = np.asarray(network_params["encoder"]["embeddings"]["word_embeddings"]["embedding"], np.float32)
        return probes + probe_neighbors(table, self.tokenizer, self.config.tokens, self.config.counts)


def is_probe_step(step: int, interval: int, num_steps: int) -> bool:
    """Returns whether an evaluation is one of the `NUM_LOOKS` probes of a run, evenly spaced and at the end.

    Args:
        step: Step of the evaluation.
        interval: Steps between evaluations.
        num_steps: Steps of the run.
    """
    if step >= num_steps or interval <= 0:
        return True
    return NUM_LOOKS * step // num_steps > NUM_LOOKS * max(step - interval, 0) // num_steps


def run_in_thread(function: Callable[[], Result]) -> Result:
    """Calls `function` in a thread without a mesh, on the CPU; returns its result, or raises its error."""

    def work() -> Result:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(RuntimeError):  # jax has no CPU backend
                stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
            return function()

    with ThreadPoolExecutor(1, "probes") as pool:
        return pool.submit(work).result()


def probe_attention(model: PretrainedModel, tokenizer: Tokenizer, sentence: str) -> Probe:
    """Returns the attention weights of every head on a sentence, or a note that explains why there are none.

    The weights are recomputed from the input of every layer; for XLNet, those of the content stream.

    Args:
        model: Model in float32.
        tokenizer: Its tokenizer.
        sentence: Text, truncated to `MAX_TOKENS` tokens.
    """
    ids = tokenizer.encode_with_specials(sentence)[:MAX_TOKENS]
    rows = 2 if model.config.bi_data else 1  # half of such a batch is read backwards
    try:
        inputs = check_inputs(model.config, model.heads, np.tile(np.array(ids, np.int32), (rows, 1)))
        layers = min(model.config.num_layers, max(MAX_MAPS // model.config.num_heads, 1))
        weights = np.asarray(_attention_weights(model.params, inputs, model.config, model.heads, layers))[:, 0]
    except UserError as error:
        return "note", {"about": "attention", "text": f"Attention is not shown: {error}."}
    quantized = np.rint(255 * np.nan_to_num(weights)).clip(0, 255).astype(np.uint8)
    maps = [[base64.b64encode(head.tobytes()).decode() for head in layer] for layer in quantized]
    tokens = [_display(tokenizer, each) for each in ids]
    return "attention", {"tokens": tokens, "layers": len(maps), "heads": len(maps[0]), "maps": maps}


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _attention_weights(
    params: Params, inputs: Inputs, config: EncoderConfig, heads: tuple[str, ...], layers: int
) -> jax.Array:
    """Returns float32 [layers, B, N, S, S]."""
    names = tuple(f"layers/{layer}/probabilities" for layer in range(layers))
    encoded = bind(config, heads, params).encode(**inputs, collect=names)
    return jax.numpy.stack([encoded.attention_tensors[name] for name in names])


def probe_neighbors(table: np.ndarray, tokenizer: Tokenizer, tokens: Sequence[str], counts: np.ndarray) -> list[Probe]:
    """Returns the `NUM_NEIGHBORS` tokens whose embeddings have the highest cosine with each of `tokens`.

    Args:
        table: Word embeddings, float32 [V, D].
        tokenizer: Tokenizer of the table.
        tokens: Texts to look up; one that is not a single token gets a note. Empty: frequent words.
        counts: Token counts, int64 [V]; all zero: words of the lowest ids are taken.
    """
    length = np.linalg.norm(table, axis=1)
    probes: list[Probe] = []
    for text, index in _select_tokens(tokenizer, tokens, counts):
        if index is None:
            probes.append(("note", {"about": "neighbors", "text": f"{text!r} is not one token of this tokenizer."}))
            continue
        cosines = table @ table[index] / np.maximum(length * length[index], 1e-12)
        cosines[[index, *tokenizer.special_ids]] = -np.inf
        best = np.argsort(-cosines, kind="stable")[:NUM_NEIGHBORS]
        best = best[np.isfinite(cosines[best])]
        near = [[_display(tokenizer, int(each)), round(float(cosines[each]), 3)] for each in best]
        probes.append(("neighbors", {"token": text, "near": near}))
    return probes


def _select_tokens(tokenizer: Tokenizer, tokens: Sequence[str], counts: np.ndarray) -> Iterator[tuple[str, int | None]]:
    if tokens:
        for text, ids in zip(tokens, tokenizer.encode_batch(tokens), strict=True):
            yield text, int(ids[0]) if len(ids) == 1 else None
        return
    starts, selected, known = tokenizer.starts_word(), 0, bool(counts.any())
    for index in np.argsort(-counts, kind="stable").tolist():
        text = _display(tokenizer, index)
        if starts[index] and (counts[index] or not known) and len(text) > 3 and is_word(text):
            yield text, index
            selected += 1
            if selected == NUM_DEFAULT_TOKENS:
                return


def _display(tokenizer: Tokenizer, index: int) -> str:
    """Returns the text of a token; continuation tokens keep their `##`."""
    token = tokenizer.tokens[index]
    if index in tokenizer.special_ids or token.startswith("##"):
        return token
    return tokenizer.decode([index]).strip() or token


def probe_memory() -> Probe:
    """Returns current and peak bytes of the process and of the fullest device, as far as they are reported."""
    fields: dict[str, Any] = {}
    unit = 1 if sys.platform == "darwin" else 1024  # unit of `ru_maxrss` in bytes
    fields["peak_host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        fields["host"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    reported = [stats for device in jax.local_devices() if (stats := device.memory_stats())]
    for field, name in (("device", "bytes_in_use"), ("peak_device", "peak_bytes_in_use")):
        values = [int(stats[name]) for stats in reported if name in stats]
        if values:
            fields[field] = max(values)
    return "memory", fields
