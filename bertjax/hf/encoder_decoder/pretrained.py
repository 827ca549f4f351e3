"""An encoder-decoder in memory: load it from a folder, make it of trained encoders, call it, save it."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.config.encoder_decoder import EncoderDecoderConfig, as_decoder
from bertjax.config.model import EncoderConfig, float32_config
from bertjax.errors import UserError
from bertjax.hf import native_format
from bertjax.hf.encoder_decoder.families import FAMILIES, NATIVE
from bertjax.hf.encoder_decoder.family import GENERATION_KEYS, TOKEN_IDS
from bertjax.hf.generate import GENERATION_CONFIG, generate_ids, generation_settings, read_generation
from bertjax.hf.inputs import Inputs, check_inputs, max_input_length
from bertjax.hf.keymap import KeyMap, Tensors, params_to_tensors, tensors_to_params
from bertjax.hf.load import local_model, read_config_json, read_folder
from bertjax.hf.model_card import MARKER, render_facts
from bertjax.hf.safe_files import CONFIG, WEIGHTS, read_tensors, read_tokenizer_files
from bertjax.hf.save import ExportError, compare_tensors, require_free, round_params, write_weights
from bertjax.io.atomic import atomic_folder
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.encoder_decoder import (
    DECODER_HEADS,
    abstract_params,
    bind,
    count_params,
    init_params,
    unpadded,
    warm_start,
)
from bertjax.types import Params

log = logging.getLogger(__name__)


class EncoderDecoderOutput(NamedTuple):
    """Outputs of an encoder-decoder, named as in `transformers`; S tokens of the source, T of the target.

    Attributes:
        logits: [B, T, V].
        encoder_last_hidden_state: [B, S, D].
        decoder_last_hidden_state: [B, T, D].
        encoder_hidden_states: [L + 1, B, S, D], embeddings first; None if they were not requested.
        decoder_hidden_states: [L + 1, B, T, D].
    """

    logits: Float[Array, "B T V"]
    encoder_last_hidden_state: Float[Array, "B S D"]
    decoder_last_hidden_state: Float[Array, "B T D2"]
    encoder_hidden_states: Float[Array, "L1 B S D"] | None = None
    decoder_hidden_states: Float[Array, "L2 B T D2"] | None = None


@dataclasses.dataclass(eq=False, repr=False)
class PretrainedEncoderDecoder:
    """Config, parameters and files of an encoder-decoder that can be called and saved.

    Attributes:
        config: the towers, at the true vocabulary size.
        params: parameters {"encoder": ..., "decoder": ...}, float32.
        generation: values of generation_config.json: ids of the first and last token, settings of the search.
        tokenizer_files: bytes of the tokenizer's files by name; carried along, not parsed.
    """

    config: EncoderDecoderConfig
    params: Params
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer_files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        decoder_input_ids: Any = None,
        decoder_attention_mask: Any = None,
        output_hidden_states: bool = False,
        token_type_ids: Any = None,
    ) -> EncoderDecoderOutput:
        """Runs both towers without dropout, in float32; compiled once per shape.

        Args:
            input_ids: tokens of the source [B, S].
            attention_mask: [B, S], 1 = real token; None = all tokens are real.
            decoder_input_ids: tokens of the target, shifted: the start token, then all but the last [B, T].
            decoder_attention_mask: [B, T]; None = all tokens are real.
            output_hidden_states: also return the states of all layers.
            token_type_ids: of the source [B, S]; None = zeros.

        Raises:
            UserError: an id lies outside its table (JAX would clamp it silently), or a shape or type is wrong.
        """
        if decoder_input_ids is None:
            raise UserError("decoder_input_ids are missing: an encoder-decoder scores the tokens of a target")
        first, second = (input_ids, attention_mask, token_type_ids), (decoder_input_ids, decoder_attention_mask, None)
        source = _tower_inputs(self.config, self.config.encoder, first)
        target = _tower_inputs(self.config, self.config.decoder, second, "decoder_")
        if len(source["input_ids"]) != len(target["input_ids"]):
            raise UserError(
                f"input_ids hold {len(source['input_ids'])} sequences, decoder_input_ids {len(target['input_ids'])}"
            )
        with jax.default_matmul_precision("float32"):  # accelerators would multiply float32 in lower precision
            return _forward(self.params, source, target, self.config, output_hidden_states)

    def generate(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        *,
        token_type_ids: Any = None,
        seed: int = 0,
        **settings: Any,
    ) -> Int[np.ndarray, "R T"]:
        """Generates targets, as transformers' `generate` does.

        Args:
            input_ids: tokens of the source [B, S].
            attention_mask: [B, S], 1 = real token; None = all tokens are real.
            token_type_ids: of the source [B, S]; None = zeros.
            seed: of samples.
            **settings: of `GenerationConfig`, named as in `transformers`; defaults are those of generation_config.json.

        Returns:
            Targets with their start token, end token and padding; `num_return_sequences` of each source one after the
            other.

        Raises:
            UserError: a setting or an input is wrong.
        """
        source = _tower_inputs(self.config, self.config.encoder, (input_ids, attention_mask, token_type_ids))
        source["attention_mask"] = source.pop("segment_ids")
        return generate_ids(self.params, self.config, source, generation_settings(self.generation, settings), seed)

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        dtype: str = "float32",
        max_shard_bytes: int = 5_000_000_000,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes a folder that `transformers` loads, and reads it back to compare.

        A model that no class of `config.family` can hold is written in a format that bertjax alone reads, with a
        warning that names the reason. Equal parameters give equal bytes.

        Args:
            folder: a new or empty folder, or with `overwrite` an earlier export.
            overwrite: replace an earlier export.
            dtype: of the weights: float32, bfloat16 or float16.
            max_shard_bytes: larger weights are split into files of this size, with an index.
            card: facts for README.md; see `model_card.render_facts`.

        Raises:
            UserError: the folder holds something else, or the disk refused.
            ExportError: the model read back is not the model in memory.
        """
        folder, config = Path(folder).absolute(), unpadded(self.config)
        require_free(folder, overwrite)
        limitation = _limitation(config)
        if limitation:
            log.warning("%s is written in a format that bertjax alone reads: %s", folder, limitation)
        params = round_params(_without_padding(self.params, config), dtype)
        tensors, values = (
            _to_tensors(config, params, bool(limitation)),
            _config_json(self, bool(limitation)) | {"dtype": dtype},
        )
        files = {CONFIG: values, GENERATION_CONFIG: dict(self.generation)}
        texts = {name: json.dumps(each, indent=2, sort_keys=True) + "\n" for name, each in files.items() if each}
        texts["README.md"] = _model_card(config, values["architectures"][0], limitation, bool(self.tokenizer_files))
        texts["README.md"] += render_facts(card or {})
        try:
            with atomic_folder(folder) as temporary:
                write_weights(temporary, tensors, max_shard_bytes, dtype)
                for name, content in (
                    dict(self.tokenizer_files) | {n: text.encode() for n, text in texts.items()}
                ).items():
                    (temporary / name).write_bytes(content)
                _verify(temporary, config, params, tensors)
        except OSError as error:
            raise UserError(f"cannot write the export to {folder}: {error.strerror or error}") from error


def read_encoder_decoder(folder: str | os.PathLike[str]) -> PretrainedEncoderDecoder:
    """Loads the encoder-decoder of a folder or of the Hub; see `load_pretrained`.

    Raises:
        UserError: a file is missing, unreadable or unsafe, or the model is not supported.
    """
    folder = local_model(folder)
    values, architecture = read_config_json(folder)
    where, family = f"{folder / CONFIG}", FAMILIES.get(values["model_type"])
    if family is None:
        config = _parse_native(values, where)
    else:
        if architecture != family.architecture:
            raise UserError(f"{where}: class {architecture} is not supported; {family.architecture} is")
        config = family.parse_config(values, where)
    raw, file = read_tensors(folder, architecture)
    if family is not None and "encoder.pooler.dense.weight" in raw:
        config = dataclasses.replace(config, encoder_heads=("pooler",))
    keymap = _keymap(config, family is None)
    tensors = _with_defaults(keymap, keymap.canonicalize(raw, file))
    params = jax.tree.map(jnp.asarray, tensors_to_params(keymap, tensors, (), file))
    generation = {key: value for key, value in values.items() if key in GENERATION_KEYS and value is not None}
    return PretrainedEncoderDecoder(config, params, generation | read_generation(folder), read_tokenizer_files(folder))


def from_encoders(
    encoder: str | os.PathLike[str],
    decoder: str | os.PathLike[str] | None = None,
    sharing: str = "none",
    seed: int = 0,
) -> PretrainedEncoderDecoder:
    """Makes an encoder-decoder of trained encoders of any family (arXiv:1907.12461); it needs training.

    The decoder gets causal attention and fresh cross-attention, and where its model has none a fresh output head.

    Args:
        encoder: folder of the encoder, export of a run, or name on the Hub.
        decoder: that of the decoder; None = the encoder's (bert2bert).
        sharing: what both share: none, embeddings or all (roberta-shared).
        seed: of the fresh parameters.

    Raises:
        UserError: a folder cannot be read, or the two cannot share what they should.
    """
    first = read_folder(encoder)
    second = first if decoder is None else read_folder(decoder)
    pooler = tuple(head for head in first.heads if head == "pooler")
    config = EncoderDecoderConfig(
        first.config, as_decoder(second.config, first.config), sharing, pooler, "encoder-decoder"
    )
    params = warm_start(config, init_params(config, jax.random.key(seed)), first.params, second.params)
    return PretrainedEncoderDecoder(config, jax.tree.map(jnp.asarray, params), {}, first.tokenizer_files)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _forward(
    params: Params, source: Inputs, target: Inputs, config: EncoderDecoderConfig, output_hidden_states: bool
) -> EncoderDecoderOutput:
    model, collect = bind(config, params), ("hidden_states",) if output_hidden_states else ()
    encoded = model.encode(**source, collect=collect)
    decoded = model.decode(encoded.last_hidden_state, source["segment_ids"], **target, collect=collect)
    logits = model.decoder.mlm_logits(decoded.last_hidden_state)[..., : config.decoder.vocab_size]
    last = encoded.last_hidden_state, decoded.last_hidden_state
    return EncoderDecoderOutput(logits, *last, encoded.hidden_states, decoded.hidden_states)


def _tower_inputs(
    config: EncoderDecoderConfig, tower: EncoderConfig, arrays: tuple[Any, Any, Any], prefix: str = ""
) -> Inputs:
    """Returns the checked inputs of a tower; positions count padding where those of the family do."""
    limit, shape, positions = max_input_length(tower), np.shape(arrays[0]), None
    if len(shape) == 2 and limit is not None and shape[1] > limit:
        raise UserError(f"{prefix}input_ids have {shape[1]} tokens; the model has {limit} positions")
    family = FAMILIES.get(config.family)
    if len(shape) == 2 and (family is None or family.counts_padding):
        positions = np.broadcast_to(np.arange(shape[1]) + tower.position_offset, shape)
    try:
        return check_inputs(tower, (), *arrays, positions)
    except UserError as error:
        raise UserError(f"{prefix}{error}") from None


def _with_defaults(keymap: KeyMap, tensors: Tensors) -> Tensors:
    """Returns the tensors with those that files may lack: T5 v1.1's output table, if tied, and the bias of scores."""
    names = {entry.tensor: entry.tensor_shape(keymap.sizes) for entry in keymap.entries if not entry.stack_axes}
    absent = names.keys() - tensors.keys()
    if "lm_head.weight" in absent and "shared.weight" in tensors:
        tensors = tensors | {"lm_head.weight": tensors["shared.weight"]}
    if "final_logits_bias" in absent:
        tensors = tensors | {"final_logits_bias": np.zeros(names["final_logits_bias"], np.float32)}
    return tensors


def _limitation(config: EncoderDecoderConfig) -> str:
    """Returns why no class of `transformers` holds the model; "" if one does."""
    family = FAMILIES.get(config.family)
    return "its classes are unlike these towers" if family is None else family.limitation(config)


def _keymap(config: EncoderDecoderConfig, native: bool) -> KeyMap:
    if not native:
        return FAMILIES[config.family].make_keymap(config)
    shapes = {path: leaf.shape for path, leaf in flatten_tree(abstract_params(unpadded(config))).items()}
    return native_format.make_keymap(shapes)


def _to_tensors(config: EncoderDecoderConfig, params: Params, native: bool) -> Tensors:
    """Returns all tensors of a file; layers that towers share are written twice, as no class shares them."""
    keymap = _keymap(config, native)
    tensors = params_to_tensors(keymap, params, float32_config(config.encoder), ())
    if native or config.sharing != "all":
        return tensors
    return tensors | {
        copy: tensors[name] for copy, name in keymap.ties.items() if ".cls." not in copy and "lm_head" not in copy
    }


def _without_padding(params: Params, config: EncoderDecoderConfig) -> Params:
    """Returns the parameters at the true vocabulary size, in memory of the host."""

    def cut(leaf: Any, expected: Any) -> np.ndarray:
        return np.asarray(leaf)[tuple(slice(size) for size in expected.shape)]

    return jax.tree.map(cut, params, abstract_params(config))


def _config_json(model: PretrainedEncoderDecoder, native: bool) -> dict[str, Any]:
    config = model.config
    ids = {key: model.generation[key] for key in TOKEN_IDS if key in model.generation}
    if config.decoder_start_token_id is not None:
        ids["decoder_start_token_id"] = config.decoder_start_token_id
    if not native:
        return ids | FAMILIES[config.family].render_config(config)
    heads = {"encoder": config.encoder_heads, "decoder": DECODER_HEADS}
    towers = {name: native_format.render_fields(getattr(config, name), each) for name, each in heads.items()}
    head = {"architectures": ["BertjaxEncoderDecoder"], "model_type": NATIVE, "dtype": "float32"}
    return ids | head | towers | {"sharing": config.sharing}


def _parse_native(values: dict[str, Any], where: str) -> EncoderDecoderConfig:
    if not all(isinstance(values.get(tower), dict) for tower in ("encoder", "decoder")):
        raise UserError(f"{where}: encoder and decoder must be objects")
    (encoder, heads), (decoder, _) = (
        native_format.parse_fields(values[tower], f"{where}: {tower}") for tower in ("encoder", "decoder")
    )
    start = values.get("decoder_start_token_id")
    return EncoderDecoderConfig(encoder, decoder, values.get("sharing", "none"), heads, "bertjax", start)


def _verify(folder: Path, config: EncoderDecoderConfig, params: Params, tensors: Tensors) -> None:
    """Reads a written folder and compares it with the model in memory."""
    compare_tensors(WEIGHTS, tensors, read_tensors(folder)[0])
    back = read_encoder_decoder(folder)
    differing = [
        path for path, leaf in flatten_tree(params).items() if not np.array_equal(leaf, flatten_tree(back.params)[path])
    ]
    if differing or (back.config.encoder_heads, back.config.sharing) != (config.encoder_heads, config.sharing):
        raise ExportError(
            f"{folder}: the model read back differs from memory, first in {(*differing, 'its config')[0]}"
        )


def _model_card(config: EncoderDecoderConfig, architecture: str, limitation: str, has_tokenizer: bool) -> str:
    sizes = " and ".join(
        f"{'an encoder' if not each.causal else 'a decoder'} of {each.num_layers} layers of {each.hidden_size}"
        for each in (config.encoder, config.decoder)
    )
    auto, tokenizer = "", ""
    if has_tokenizer:
        auto, tokenizer = "AutoTokenizer, ", 'tokenizer = AutoTokenizer.from_pretrained("PATH_OR_NAME")\n'
    load = f'{tokenizer}model = {architecture}.from_pretrained("PATH_OR_NAME")'
    use = (
        f"from transformers import {auto}{architecture}\n\n{load}"
        if not limitation
        else 'import bertjax\n\nmodel = bertjax.load_pretrained("PATH_OR_NAME")'
    )
    note = f"\n\n`transformers` has no class for it ({limitation})." if limitation else ""
    tags = "\n".join(
        ["---", f"library_name: {'transformers' if not limitation else 'bertjax'}", "tags:", "- bertjax", "---"]
    )
    return (
        f"{tags}\n\n{MARKER}\n\n# {architecture}\n\n{sizes[0].upper()}{sizes[1:]}, {count_params(config):,} "
        f"parameters, written by bertjax (JAX).{note}\n\n## Use\n\n```python\n{use}\n```\n"
    )
