"""Every family x every class with a head: onnxruntime computes what bertjax does, for padded batches of any shape."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from cells import MODELS, common, with_decoder
from parity.compare import random_params

from bertjax.config.model import encoder_config
from bertjax.errors import UserError
from bertjax.hf.onnx_folder import save_onnx
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import Pooling

pytest.importorskip("onnxruntime")

CLASSES = {
    "language model": ("mlm",),
    "pretraining": ("pooler", "mlm", "pair", "rtd"),
    "sequences": ("sequence_classification",),
    "tokens": ("token_classification",),
    "answers": ("question_answering",),
    "vectors": (),
}


@pytest.mark.matrix
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("family", MODELS)
def test_graph(family: str, kind: str, tmp_path: Path) -> None:
    config = encoder_config(common(family))
    sizes = {"vocab_size": 97, "padded_vocab_size": None, "pad_token_id": min(config.pad_token_id or 0, 96)}
    sizes["eos_token_id"] = 7
    heads = CLASSES[kind]
    config = dataclasses.replace(config, **sizes, labels=("a", "b", "c"), bi_data=False)
    config = dataclasses.replace(config, **with_decoder(family, next(iter(heads), "")))
    if kind == "sequences" and config.classifier_dense == "pooler":
        heads = ("pooler", *heads)
    model = PretrainedModel(config, random_params(config, heads), heads, {"tokenizer.json": b"{}"})
    if config.causal and kind != "sequences":
        with pytest.raises(UserError, match="a decoder is served with its cache"):
            save_onnx(tmp_path / "out", model)
        return
    deviation, _ = save_onnx(tmp_path / "out", model, pooling=Pooling() if kind == "vectors" else None)
    assert np.isfinite(deviation.largest) and deviation.largest < 1e-4
