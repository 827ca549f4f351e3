"""Looks into the model while it trains: fillings of fixed sentences, attention on one of them, neighbours of pieces.

All of it is small and runs on the host's processor where there is one: what the accelerator holds is left alone.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.pretrained import Inputs, PretrainedModel, check_inputs
from bertjax.inference.fill_mask import fill_mask
from bertjax.models.model import bind
from bertjax.types import Params

MOST_TOKENS = 24
"""Of the sentence whose attention is shown: the maps grow with their square."""
MOST_MAPS = 512
"""Layers x heads that are kept; of a larger model the lowest layers."""
NEAR = 8
LOOKS = 4
"""Looks at attention and neighbours in a run, the last one at its end."""
OWN_PIECES = 8

Finding = tuple[str, dict[str, Any]]
Result = TypeVar("Result")


class Pieces(Protocol):
    """What is asked of a tokenizer."""

    pieces: list[str]
    mask_id: int
    special_ids: tuple[int, ...]

    @property
    def engine(self) -> Any: ...

    def encode_with_specials(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def starts_word(self) -> np.ndarray: ...


class Wanted(NamedTuple):
    """`report.*` and `eval.fill_mask` of a config, and what pieces are frequent: int64 [V]."""

    sentences: tuple[str, ...]
    sentence: str | None
    pieces: tuple[str, ...]
    counts: np.ndarray
    num_steps: int
    interval: int
    two_streams: bool | None = None  # of a model that has them: whether fillings go through both


class Probes:
    """What is looked at of the networks of a run, given their parameters on the host at the true vocabulary size."""

    def __init__(
        self,
        networks: Mapping[str, tuple[EncoderConfig, tuple[str, ...]]],
        complete: Callable[[Params, str], Params],
        tokenizer: Pieces,
        wanted: Wanted,
    ):
        """`networks` compute in float32; `complete` makes the parameters of one of them out of the run's."""
        self.networks, self.complete, self.tokenizer, self.wanted = networks, complete, tokenizer, wanted

    def __call__(self, step: int, params: Params) -> list[Finding]:
        return by_itself(functools.partial(self._look, step, params))

    def _look(self, step: int, params: Params) -> list[Finding]:
        found = self._fillings(params)
        if is_look(step, self.wanted.interval, self.wanted.num_steps):
            found += self._inside(params)
        return found

    def _fillings(self, params: Params) -> list[Finding]:
        if not self.wanted.sentences:
            return []
        name = next((each for each, (_, heads) in self.networks.items() if "mlm" in heads), None)
        if name is None:
            return [("note", {"about": "fill_mask", "text": "This model has no head for masked words."})]
        config, heads = self.networks[name]
        model = PretrainedModel(config, self.complete(params, name), heads)
        try:
            filled = fill_mask(model, self.tokenizer, self.wanted.sentences, two_streams=self.wanted.two_streams)
        except UserError as error:
            return [("note", {"about": "fill_mask", "text": f"Nothing is filled in: {error}."})]
        return [
            ("fill_mask", {"sentence": sentence, "pieces": [[piece, round(share, 4)] for piece, share in pieces]})
            for sentence, pieces in zip(self.wanted.sentences, filled, strict=True)
        ]

    def inside(self, params: Params) -> list[Finding]:
        """Attention and neighbours, whatever the step."""
        return by_itself(functools.partial(self._inside, params))

    def _inside(self, params: Params) -> list[Finding]:
        """Of the first network, which is the one that an export holds."""
        name = next(iter(self.networks))
        config, heads = self.networks[name]
        own = self.complete(params, name)
        found: list[Finding] = []
        if self.wanted.sentence:
            found.append(attention_of(PretrainedModel(config, own, heads), self.tokenizer, self.wanted.sentence))
        table = np.asarray(own["encoder"]["embeddings"]["word_embeddings"]["embedding"], np.float32)
        return found + neighbours_of(table, self.tokenizer, self.wanted.pieces, self.wanted.counts)


def is_look(step: int, interval: int, num_steps: int) -> bool:
    """Whether this evaluation is one of the `LOOKS` of a run: the first in every quarter's second half, and the end."""
    if step >= num_steps or interval <= 0:
        return True
    return LOOKS * step // num_steps > LOOKS * max(step - interval, 0) // num_steps


def by_itself(function: Callable[[], Result]) -> Result:
    """What `function` gives, in a thread of its own: the mesh in use there is none, and the device is the processor."""
    results: list[Result] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(RuntimeError):  # jax was told of accelerators alone
                    stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
                results.append(function())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=work, name="probes")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def attention_of(model: PretrainedModel, tokenizer: Pieces, sentence: str) -> Finding:
    """Shares of every head on a sentence, cut to `MOST_TOKENS` tokens; why there are none, where a model has none.

    They are made from what each layer reads, as its own scores, for every kind of attention; of XLNet, those of the
    stream that sees all tokens.
    """
    ids = tokenizer.encode_with_specials(sentence)[:MOST_TOKENS]
    rows = 2 if model.config.bi_data else 1  # half of such rows are read backwards
    try:
        inputs = check_inputs(model.config, model.heads, np.tile(np.array(ids, np.int32), (rows, 1)))
        layers = min(model.config.num_layers, max(MOST_MAPS // model.config.num_heads, 1))
        shares = np.asarray(_shares(model.params, inputs, model.config, model.heads, layers))[:, 0]
    except UserError as error:
        return "note", {"about": "attention", "text": f"Attention is not shown: {error}."}
    quantised = np.rint(255 * np.nan_to_num(shares)).clip(0, 255).astype(np.uint8)
    maps = [[base64.b64encode(head.tobytes()).decode() for head in layer] for layer in quantised]
    tokens = [_shown(tokenizer, each) for each in ids]
    return "attention", {"tokens": tokens, "layers": len(maps), "heads": len(maps[0]), "maps": maps}


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _shares(params: Params, inputs: Inputs, config: EncoderConfig, heads: tuple[str, ...], layers: int) -> jax.Array:
    """[layers, B, N, S, S], float32."""
    names = tuple(f"layers/{layer}/probabilities" for layer in range(layers))
    encoded = bind(config, heads, params).encode(**inputs, collect=names)
    return jax.numpy.stack([encoded.attention_tensors[name] for name in names])


def neighbours_of(table: np.ndarray, tokenizer: Pieces, pieces: Sequence[str], counts: np.ndarray) -> list[Finding]:
    """The `NEAR` pieces whose vectors (rows of float32 [V, E]) have the greatest cosine with each of `pieces`.

    Without `pieces`: frequent words, or where no count is known those of the lowest ids. A text that is not one piece
    gets a note.
    """
    length = np.linalg.norm(table, axis=1)
    found: list[Finding] = []
    for text, index in _wanted_pieces(tokenizer, pieces, counts):
        if index is None:
            found.append(("note", {"about": "neighbours", "text": f"{text!r} is not one piece of this tokenizer."}))
            continue
        cosines = table @ table[index] / np.maximum(length * length[index], 1e-12)
        cosines[[index, *tokenizer.special_ids]] = -np.inf
        best = np.argsort(-cosines, kind="stable")[:NEAR]
        best = best[np.isfinite(cosines[best])]
        near = [[_shown(tokenizer, int(each)), round(float(cosines[each]), 3)] for each in best]
        found.append(("neighbours", {"piece": text, "near": near}))
    return found


def _wanted_pieces(tokenizer: Pieces, pieces: Sequence[str], counts: np.ndarray) -> Iterator[tuple[str, int | None]]:
    if pieces:
        for text, ids in zip(pieces, tokenizer.encode_batch(pieces), strict=True):
            yield text, int(ids[0]) if len(ids) == 1 else None
        return
    starts, found, known = tokenizer.starts_word(), 0, bool(counts.any())
    for index in np.argsort(-counts, kind="stable").tolist():
        text = _shown(tokenizer, index)
        if starts[index] and (counts[index] or not known) and len(text) > 3 and text.isalpha():
            yield text, index
            found += 1
            if found == OWN_PIECES:
                return


def _shown(tokenizer: Pieces, index: int) -> str:
    """A piece as it is written in text; pieces inside words keep what marks them."""
    piece = tokenizer.pieces[index]
    if index in tokenizer.special_ids or piece.startswith("##"):
        return piece
    return tokenizer.decode([index]).strip() or piece


def memory() -> Finding:
    """Bytes that the process and the fullest device hold, and held at most; what nobody tells is missing."""
    found: dict[str, Any] = {}
    usual = 1 if sys.platform == "darwin" else 1024  # what `ru_maxrss` counts
    found["peak_host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * usual
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        found["host"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    told = [stats for device in jax.local_devices() if (stats := device.memory_stats())]
    for field, name in (("device", "bytes_in_use"), ("peak_device", "peak_bytes_in_use")):
        values = [int(stats[name]) for stats in told if name in stats]
        if values:
            found[field] = max(values)
    return "memory", found
