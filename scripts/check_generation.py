"""Compares generated tokens with those of `transformers` for random models, in batches with padding.

python scripts/check_generation.py [--inputs 200] [--classes bart marian t5 encoder-decoder]

Rounding may decide what a search drops, and depends on the shape of a batch: an input whose tokens differ is generated
once more by itself, and those that then agree are counted by themselves.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from typing import Any

import numpy as np
import torch
import transformers

import bertjax
from bertjax.hf.generate import generation_settings
from bertjax.models.generation import generate

VOCAB, LENGTH, BATCH, NEW = 300, 24, 25, 24
ENDS = list(range(3, 20))
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam 5": {"num_beams": 5, "no_repeat_ngram_size": 3, "length_penalty": 0.8},
}
BART = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 64, "init_std": 0.4},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96},
    **{"bos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 2, "forced_eos_token_id": None},
}
BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}


def make(name: str) -> Any:
    """Returns a random model of `transformers`."""
    torch.manual_seed(0)
    if name == "bart":
        model: Any = transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=VOCAB, **BART))
    elif name == "marian":
        model = transformers.MarianMTModel(transformers.MarianConfig(vocab_size=VOCAB, **BART))
    elif name == "t5":
        sizes = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "initializer_factor": 3.0}
        ids = {"decoder_start_token_id": 0, "pad_token_id": 0}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCAB, **sizes, **ids))
    else:
        values = BERT | {"vocab_size": VOCAB, "initializer_range": 0.4, "max_position_embeddings": 64}
        configs = (
            transformers.BertConfig(**values),
            transformers.BertConfig(**values, is_decoder=True, add_cross_attention=True),
        )
        config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*configs)
        config.decoder_start_token_id, config.pad_token_id = 0, 1
        model = transformers.EncoderDecoderModel(config)
        model.generation_config.update(decoder_start_token_id=0, pad_token_id=1)
    model.generation_config.eos_token_id = ENDS
    return model.eval()


def count_differences(theirs: Any, ours: Any, count: int, search: dict[str, Any]) -> tuple[int, int]:
    """Returns the number of inputs with other tokens, and of those among them that agree when generated alone.

    Args:
        theirs: model of `transformers`.
        ours: the same model.
        count: number of inputs.
        search: settings of generation.
    """
    draw, different, alone = np.random.default_rng(0), 0, 0
    pad = theirs.generation_config.pad_token_id
    settings = {"max_new_tokens": NEW} | search
    for start in range(0, count, BATCH):
        lengths = draw.integers(1, LENGTH + 1, min(BATCH, count - start))
        mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
        ids = np.where(mask, draw.integers(20, VOCAB, mask.shape), pad)
        out = theirs.generate(torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False, **settings)
        expected, inputs = out.numpy()[:, 1:], {"input_ids": ids, "attention_mask": mask}
        others = [row for row, same in enumerate(agree(ours, inputs, expected, settings)) if not same]
        different += len(others)
        for row in others:
            single = {name: values[row : row + 1] for name, values in inputs.items()}
            alone += sum(agree(ours, single, expected[row : row + 1], settings))
    return different, alone


def agree(ours: Any, inputs: dict[str, np.ndarray], expected: np.ndarray, settings: dict[str, Any]) -> list[bool]:
    """Returns for every input whether the model writes these tokens."""
    result = generate(ours.params, ours.config, inputs, generation_settings(ours.generation, settings))
    rows = zip(expected, result.sequences[:, 0], result.lengths[:, 0], strict=True)
    return [theirs[:length].tolist() == tokens[:length].tolist() for theirs, tokens, length in rows]


def main() -> None:
    """Prints one line per class and search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--classes", nargs="+", default=["bart", "marian", "t5", "encoder-decoder"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for name in options.classes:
        theirs = make(name)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            theirs.save_pretrained(folder)
            ours = bertjax.load_pretrained(folder)
            for search, settings in SEARCHES.items():
                different, alone = count_differences(theirs, ours, options.inputs, settings)
                equal = options.inputs - different
                print(f"{name:16} {search:8} {equal} of {options.inputs} equal, {alone} others when alone", flush=True)


if __name__ == "__main__":
    main()
