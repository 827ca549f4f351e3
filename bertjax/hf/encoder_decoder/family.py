"""The protocol of a family of encoder-decoders, what families share, and those that the registry names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.extensions import ENCODER_DECODERS as FAMILIES
from bertjax.config.generation import GenerationConfig
from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.export_plan import differing_fields
from bertjax.hf.keymap import Entry, KeyMap
from bertjax.hf.keymaps.family import IGNORED_KEYS, Refusals, axis_sizes, parse_fields
from bertjax.hf.safe_files import JsonKeys, refuse
from bertjax.models.encoder_decoder import DECODER_HEADS

Values = dict[str, Any]
TOKEN_IDS = (
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
)
"""Keys of config.json that say which tokens a generated text begins and ends with."""
WITH_DECODER: Refusals = (
    ("is_decoder", (False, None), "encoder and decoder are one network"),
    ("is_encoder_decoder", (True,), "the class has a decoder"),
    ("tie_word_embeddings", (True,), "encoder and decoder read one word table"),
    ("pruned_heads", ({}, None), "pruned models are not supported"),
)
_INERT = {
    *IGNORED_KEYS,
    *GenerationConfig.names(),
    "id2label",
    "num_labels",
    "is_encoder_decoder",
    "is_decoder",
    "prefix",
    "remove_invalid_values",
}


@dataclasses.dataclass(frozen=True)
class EncoderDecoderFamily:
    """Names, class and config.json of one kind of encoder-decoder in `transformers`.

    Attributes:
        name: value of `EncoderDecoderConfig.family`, and of `model_type` in config.json.
        architecture: the class with the output projection.
        headless: the class without it, where the word table gives the output; it is read as `architecture`. "": none.
        parse: config.json -> the model; raises `UserError` for what is not supported.
        render: the model -> config.json, without token ids and names of classes.
        make_keymap: returns the names of the parameters of a config.
        ignored_keys: keys that change nothing, separated by spaces.
        counts_padding: True where positions count padding as well.
        stores_computed: True where files of the class hold the computed tensors of the keymap.
        objective: objective that its published models were pretrained with; "": none that bertjax has.
    """

    name: str
    architecture: str
    parse: Callable[[JsonKeys, str], EncoderDecoderConfig]
    render: Callable[[EncoderDecoderConfig], Values]
    make_keymap: Callable[[EncoderDecoderConfig], KeyMap]
    headless: str = ""
    ignored_keys: str = ""
    counts_padding: bool = True
    stores_computed: bool = False
    objective: str = ""

    def parse_config(self, values: Values, where: str) -> EncoderDecoderConfig:
        """Converts a config.json; names keys that bertjax does not know in a warning.

        Raises:
            UserError: a key would change what is computed in a way that is not supported.
        """
        known = JsonKeys(values)
        try:
            config = self.parse(known, where)
        except UserError as error:
            text = str(error)
            raise error if text.startswith(where) else UserError(f"{where}: {text}") from None
        known.warn_of_unread(where, {*_INERT, *self.ignored_keys.split()})
        start = values.get("decoder_start_token_id")
        return dataclasses.replace(config, family=self.name, decoder_start_token_id=start)

    def render_config(self, config: EncoderDecoderConfig) -> Values:
        """Returns the config.json of a model."""
        head = {"architectures": [self.architecture], "model_type": self.name, "dtype": "float32"}
        return {**head, "is_encoder_decoder": True, **self.render(config)}

    def limitation(self, config: EncoderDecoderConfig) -> str:
        """Returns why the class cannot hold a model, "" if it can."""
        try:
            other = self.parse(JsonKeys(self.render_config(config)), "config.json")
        except UserError as error:
            return str(error)
        except KeyError as error:  # a table of the family has no word for the value
            return str(error.args[0])
        names = [f"encoder: {name}" for name in differing_fields(config.encoder, other.encoder, config.encoder_heads)]
        names += [f"decoder: {name}" for name in differing_fields(config.decoder, other.decoder, DECODER_HEADS)]
        return ", ".join(names + ["sharing"] * (config.sharing != other.sharing))


def network_entries(entries: tuple[Entry, ...], network: str) -> tuple[Entry, ...]:
    """Returns the entries of one network as entries of the model.

    Parameters are below the network's name; letters of axes are lower-case in the decoder, whose sizes may be others.

    Args:
        entries: entries of a single network.
        network: encoder or decoder.
    """

    def lower(text: str) -> str:
        return text if network == "encoder" else re.sub(r"\{(\w)", lambda match: match[0].lower(), text)

    def move(entry: Entry) -> Entry:
        params = tuple(lower(f"{network}/{template}") for template in entry.param_templates)
        return dataclasses.replace(
            entry,
            param=params[0] if len(params) == 1 else params,
            tensor=lower(entry.tensor),
            axes=entry.axes if network == "encoder" else entry.axes.lower(),
            head="",
        )

    return tuple(map(move, entries))


def joint_axis_sizes(config: EncoderDecoderConfig) -> dict[str, int]:
    """Returns the lengths of the letters of axes of both networks; U: buckets of distances; Q: width of the encoder."""

    def sizes(model: EncoderConfig) -> dict[str, int]:
        return {**axis_sizes(model), "U": model.relative_attention_num_buckets, "Q": config.encoder.hidden_size}

    return sizes(config.encoder) | {letter.lower(): size for letter, size in sizes(config.decoder).items()}


def single_keymap(
    make_keymap: Callable[[EncoderDecoderConfig], KeyMap],
    config: EncoderConfig,
    heads: tuple[Entry, ...],
    backbone: str,
    prefix: str = "",
) -> KeyMap:
    """Returns the names of a network with `decoder_layers`: those of an encoder-decoder, and of the heads.

    Args:
        make_keymap: returns the names of the encoder-decoder.
        config: the network.
        heads: entries of its heads.
        backbone: as of `KeyMap`.
        prefix: what precedes the names of the encoder-decoder.
    """
    encoder = dataclasses.replace(config, decoder_layers=None)
    both = make_keymap(EncoderDecoderConfig(encoder, dataclasses.replace(config.decoder_config(), mlm_head="tied")))

    def move(entry: Entry) -> Entry:
        assert isinstance(entry.param, str)
        param = re.sub("^encoder/encoder/", "encoder/", entry.param)
        return dataclasses.replace(entry, param=param, tensor=f"{prefix}{entry.tensor}")

    ties = {f"{prefix}{copy}": f"{prefix}{original}" for copy, original in both.ties.items()}
    entries = (*map(move, both.entries), *heads)
    return dataclasses.replace(both, entries=entries, ties=ties, backbone=backbone)


def parse_start(values: Mapping[str, Any], ids: Values, where: str) -> str:
    """Returns `EncoderConfig.decoder_start`, eos or pad, from `decoder_start_token_id`.

    Args:
        values: config.json.
        ids: fields `pad_token_id` and `eos_token_id`.
        where: the file to name in errors.
    """
    key, names = "decoder_start_token_id", {ids["pad_token_id"]: "pad", ids["eos_token_id"]: "eos"}
    token = parse_fields(values, {key: (key, None, int)}, where)
    refuse(token, where, key, names, "the decoder starts with the end token or padding")
    return names[token[key]]


def require_decoder(values: Mapping[str, Any], fields: Values, where: str) -> None:
    """Raises `UserError` for a class with a decoder whose tokens or mask are not those of the class.

    Args:
        values: config.json.
        fields: `pad_token_id`, `eos_token_id` and `vocab_size`.
        where: the file to name in errors.
    """
    for name in ("pad_token_id", "eos_token_id"):
        if not 0 <= fields[name] < fields["vocab_size"] or values.get(name, 0) is None:
            raise UserError(f"{where}: {name} = {values.get(name, fields[name])!r} must be the id of a token")
    if values.get("is_causal", True) is not True:  # not a number that is equal to it
        raise UserError(f"{where}: is_causal = {values['is_causal']!r} is not supported: the decoder is causal")
    for refusal in WITH_DECODER:
        refuse(values, where, *refusal)


def render_start(config: EncoderConfig) -> Values:
    """Returns the key of `parse_start`; none where the decoder starts with a token of the text."""
    ids = {"eos": config.eos_token_id, "pad": config.pad_token_id}
    return {"decoder_start_token_id": ids[config.decoder_start]} if config.decoder_start in ids else {}


_NONE = ("auto", "bertjax")


def find_family(model_type: str) -> EncoderDecoderFamily | None:
    """Returns the family with this `model_type` in its config.json, if there is one."""
    return next((family for family in FAMILIES.usable() if family.name == model_type), None)


def family_of(config: EncoderDecoderConfig) -> EncoderDecoderFamily | None:
    """Returns the family that a model names, None for the native format."""
    return None if config.family in _NONE else FAMILIES[config.family]


def with_family(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Returns the model with the family of its export: of `auto` the first that holds it, else one that nearly does."""
    if config.family != "auto":
        return config
    limits = {family.name: family.limitation(config) for family in FAMILIES.usable()}
    near = [name for name, limit in limits.items() if _DIFFERING.fullmatch(limit)]
    return dataclasses.replace(config, family=min(near, key=lambda name: len(limits[name]), default="bertjax"))


_DIFFERING = re.compile(r"((encoder: |decoder: )?\w+(, )?){0,4}")  # the reason is a few fields
