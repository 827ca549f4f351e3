"""A vocabulary whose tokens are words or continuations, and rows of one or several examples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bertjax.types import Vocabulary

PAD, UNK, CLS, SEP, MASK = range(5)


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    rng = np.random.default_rng(0)
    starts_word = rng.random(200) < 0.6
    starts_word[:6] = True, True, True, True, True, False
    return Vocabulary(
        size=200,
        padded_size=256,
        pad_id=PAD,
        unk_id=UNK,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special_ids=(PAD, UNK, CLS, SEP, MASK),
        starts_word=starts_word,
        counts=rng.integers(0, 100, 200).astype(np.int64),
        sentinel_ids=tuple(range(199, 183, -1)),
        full_stop_ids=(7, 9, 30),
    )


@pytest.fixture(scope="session")
def pack() -> Callable[..., dict[str, np.ndarray]]:
    """`pack([[ids, ids], [ids]], seq_len, identities)`: one row per list; each can hold `max_examples` examples."""

    def build(
        rows: list[list[np.ndarray]], seq_len: int, identities: list[list[int]], max_examples: int = 0
    ) -> dict[str, np.ndarray]:
        max_examples = max_examples or max(len(row) for row in rows)
        names = ("input_ids", "segment_ids", "position_ids", "token_type_ids")
        batch = {name: np.zeros((len(rows), seq_len), np.int32) for name in names}
        batch |= {
            name: np.zeros((len(rows), max_examples), np.uint32)
            for name in ("example_ids", "example_epochs", "example_draws")
        }
        batch |= {name: np.zeros((len(rows), max_examples), np.int32) for name in ("example_positions", "pair_labels")}
        batch["example_weights"] = np.zeros((len(rows), max_examples), np.float32)
        for row, examples in enumerate(rows):
            start = 0
            for index, ids in enumerate(examples):
                columns = slice(start, start + len(ids))
                batch["input_ids"][row, columns] = ids
                batch["segment_ids"][row, columns] = index + 1
                batch["position_ids"][row, columns] = np.arange(len(ids))
                batch["token_type_ids"][row, columns] = np.arange(len(ids)) >= len(ids) // 2
                batch["example_positions"][row, index] = start
                batch["example_weights"][row, index] = 1.0
                batch["example_ids"][row, index] = identities[row][index]
                batch["pair_labels"][row, index] = identities[row][index] % 2
                start += len(ids)
        return batch

    return build


@pytest.fixture(scope="session")
def example() -> Callable[[np.random.Generator, int], np.ndarray]:
    """`example(rng, length)`: [CLS] A [SEP] B [SEP], with some unknown words."""

    def build(rng: np.random.Generator, length: int) -> np.ndarray:
        ids = np.where(rng.random(length) < 0.05, UNK, rng.integers(5, 200, length)).astype(np.int32)
        ids[[0, length // 2, length - 1]] = CLS, SEP, SEP
        return ids

    return build


@pytest.fixture(scope="session")
def batches(pack: Callable, example: Callable) -> Callable[..., dict[str, np.ndarray]]:
    """`batches(seed, packed, count)`: rows of 128, up to three examples of very different lengths in each, or one."""

    def build(seed: int, packed: bool, count: int = 16) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        maximum, longest = (3, 128 // 3) if packed else (1, 128)
        rows = [
            [example(rng, int(rng.integers(3, longest + 1))) for _ in range(rng.integers(1, maximum + 1))]
            for _ in range(count - 1)
        ] + [[example(rng, longest) for _ in range(maximum)]]
        return pack(rows, 128, [[int(i) for i in rng.integers(0, 2**32, len(row))] for row in rows], maximum)

    return build
