"""The model in `examples/`: it loads here and in transformers, which agree, and it has learned something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import transformers

import bertjax
from bertjax.hf.safe_files import WEIGHTS

FOLDER = Path(__file__).parents[2] / "examples" / "micro-english"
SENTENCES = {
    "In the 19th [MASK], it was the largest city.": "century",
    "They live in the United [MASK].": "States",
    "Two of them [MASK] killed.": "were",
}


def test_it_is_small_and_fills_masks_as_transformers_does() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 12e6
    assert (FOLDER / WEIGHTS).stat().st_size < 7e6
    pipeline = transformers.pipeline("fill-mask", str(FOLDER), top_k=5, torch_dtype="float32")
    for (sentence, word), predictions in zip(
        SENTENCES.items(), bertjax.fill_mask(FOLDER, list(SENTENCES), top_k=5), strict=True
    ):
        theirs = pipeline(sentence)
        (ours,) = predictions
        assert ours[0].token.strip() == theirs[0]["token_str"].strip() == word
        np.testing.assert_allclose([each.probability for each in ours], [each["score"] for each in theirs], atol=1e-4)


def test_its_card_names_text_license_and_scores() -> None:
    card = (FOLDER / "README.md").read_text()
    for part in ("Wikipedia", "CC BY-SA", "mlm_loss | 3.2072", "BLiMP", "38,305,792"):
        assert part in card
