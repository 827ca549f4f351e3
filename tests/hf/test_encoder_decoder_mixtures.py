"""Any encoder and decoder in a folder: read back, and run by `transformers` in a process without bertjax."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from pathlib import Path

import jax
import numpy as np
import pytest
from parity.compare import draw_like
from test_remote_code import BATCH, LENGTH, TOLERANCE, VOCAB, make_batch, mixtures, run_lab

from bertjax.config.encoder_decoder import SHARINGS, EncoderDecoderConfig
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import load_pretrained
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.encoder_decoder import abstract_params

pytest.importorskip("torch")
pytest.importorskip("transformers")
TARGET = LENGTH - 3


def pairs() -> list[EncoderDecoderConfig]:
    """Returns every mixture as an encoder and as a decoder, with all kinds of sharing where they fit."""
    configs, result = mixtures(), []
    for index, (encoder, decoder) in enumerate(itertools.pairwise([*configs, configs[0]])):
        encoder = encoder.replace(causal=False)
        for sharing in np.roll(SHARINGS, index).tolist():
            try:
                other = (encoder if sharing == "all" else decoder).as_decoder(encoder)
                pair = EncoderDecoderConfig(encoder, other, sharing, ("pooler",), decoder_start_token_id=VOCAB - 1)
            except UserError:
                continue
            result.append(pair)
            break
    return result


def check(folder: Path, configs: list[EncoderDecoderConfig]) -> None:
    """Exports the models, runs all of them in one process, and compares."""
    models, batches = [], []
    for index, config in enumerate(configs):
        model = PretrainedEncoderDecoder(config, draw_like(abstract_params(config), index))
        model.save_pretrained(folder / f"{index:02d}")
        source, target = make_batch(config.encoder.replace(pooling="first"), index), {}
        target["decoder_attention_mask"] = (np.arange(TARGET) < np.array([TARGET, 5, 1, 7])[:, None]).astype(np.int64)
        ids = np.random.default_rng(index).integers(3, VOCAB, (BATCH, TARGET))
        target["decoder_input_ids"] = np.where(target["decoder_attention_mask"] > 0, ids, 2)
        np.savez(folder / f"{index:02d}" / "inputs.npz", **source, **target)
        models.append(model)
        batches.append(source | target)
    run_lab(folder, "pairs")
    jax.config.update("jax_disable_most_optimizations", True)
    for index, (model, batch) in enumerate(zip(models, batches, strict=True)):
        again, back = (
            load_pretrained(path) for path in (folder.parent / f"again-{index:02d}", folder / f"{index:02d}")
        )
        for other in (again, back):
            assert isinstance(other, PretrainedEncoderDecoder)
            networks = (other.config.encoder, other.config.decoder)
            assert networks == tuple(
                dataclasses.replace(each, padded_vocab_size=None)
                for each in (model.config.encoder, model.config.decoder)
            )
            assert (other.config.sharing, other.config.encoder_heads) == (model.config.sharing, ("pooler",))
        jax.tree.map(np.testing.assert_array_equal, again.params, back.params)
        assert flatten_tree(back.params).keys() == flatten_tree(model.params).keys()
        out = back(**batch, output_hidden_states=True)
        real = {"encoder": batch["attention_mask"] > 0, "decoder": batch["decoder_attention_mask"] > 0}
        states = {"encoder": out.encoder_hidden_states, "decoder": out.decoder_hidden_states}
        named = {
            f"{network}[{i}]": (state, network) for network, all_ in states.items() for i, state in enumerate(all_)
        }
        named["logits"] = out.logits, "decoder"
        with np.load(folder / f"{index:02d}" / "outputs.npz") as theirs:
            gaps = {
                f"{attention}/{name}": np.abs(np.asarray(ours) - theirs[f"{attention}/{name}"])[real[network]].max()
                for name, (ours, network) in named.items()
                for attention in ("eager", "sdpa")
            }
        assert not {name: gap for name, gap in gaps.items() if not gap <= TOLERANCE}, (index, model)
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.long
def test_an_encoder_with_a_decoder_runs_without_bertjax(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(tmp_path / "exports", pairs()[1:2])
    assert "bertjax's native format; transformers runs it with trust_remote_code=True" in caplog.text
    files = {path.name for path in (tmp_path / "exports" / "00").iterdir()}
    assert (
        files >= {*native_format.code_files("encoder_decoder"), "generation_config.json"}
        and "modeling_bertjax.py" not in files
    )
    assert (
        'AutoModelForSeq2SeqLM.from_pretrained("PATH_OR_NAME", trust' in (tmp_path / "exports/00/README.md").read_text()
    )


@pytest.mark.weekly
def test_every_part_of_either_network_runs_without_bertjax(tmp_path: Path) -> None:
    configs = pairs()
    assert len(configs) >= 8 and {config.sharing for config in configs} == set(SHARINGS)
    check(tmp_path / "exports", [configs[0], *configs[2:]])
