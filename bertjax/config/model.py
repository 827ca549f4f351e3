"""Config of an encoder: the values of a preset, and those that the config sets."""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import Any, Self

from ml_collections import ConfigDict

from bertjax.config.architecture import ArchitectureConfig
from bertjax.config.attention import attention_settings, stored_settings
from bertjax.config.extensions import ATTENTION
from bertjax.config.fields import (
    PRESET,
    Reader,
    Setting,
    Settings,
    dotted,
    names_where,
    phase_setting,
    setting,
    settings_of,
)
from bertjax.config.heads import HeadsConfig
from bertjax.config.model_checks import invalid_combinations
from bertjax.config.presets import preset
from bertjax.config.rotation import RotationConfig
from bertjax.errors import UserError
from bertjax.types import Vocabulary

DTYPES = ("float32", "bfloat16")
NETWORK_GROUPS = ("model", "generator", "decoder")
"""Groups of keys that describe a network; the keys of the others default to the values of `model`."""
OF_TOKENIZER = ("vocab_size", "padded_vocab_size", "pad_token_id", "mask_token_id", "eos_token_id", "question_token_id")
"""Fields of `EncoderConfig` that follow from the tokenizer."""
QUESTION = "[QUESTION]"
"""Token of Splinter's tokenizer that follows a question, for `answer_head`."""


@dataclasses.dataclass(frozen=True)
class ComputeConfig(Settings, group="model"):
    """Types, kernels and layout of a computation, never its result; the defaults are those of a model that is loaded.

    Matrix multiplications read `compute_dtype` and write `result_dtype`, the type of the activations between them;
    statistics (softmax, norms, losses) are float32 always.
    """

    padded_vocab_size: int | None = setting(
        None, at_least=1, key=False, changes_output=False, help="Rows of the word table in training; None: vocab_size."
    )
    max_examples: int | None = setting(
        None,
        at_least=1,
        key=False,
        changes_output=False,
        help="Most examples per sequence, where each is contiguous and padding follows them; None: unknown.",
    )
    compute_dtype: str = setting("float32", choices=DTYPES, key=False, changes_output=False, help="Inputs of matmuls.")
    result_dtype: str = setting("float32", choices=DTYPES, key=False, changes_output=False, help="Results of matmuls.")
    attention_implementation: str = setting(
        "auto",
        choices=("auto", "xla", "tiled", "cudnn", "pallas", "splash", "interpret"),
        changes_output=False,
        help="Attention kernel: xla, tiled (a few heads at a time: CPU), cudnn (GPU), splash (TPU), interpret (splash "
        "on a CPU), pallas (GPU and TPU, with dropout and for DeBERTa and XLNet). auto takes splash on TPUs, on GPUs "
        "cudnn, and pallas where probabilities are dropped.",
    )
    norm_implementation: str = setting(
        "xla",
        choices=("xla", "pallas"),
        changes_output=False,
        help="Bias, dropout, residual and norm of a block: xla, pallas (one kernel on NVIDIA's GPUs, with "
        "train.dropout_prng=hash or without dropout; right on an H200, its gain was not measured by itself).",
    )
    remat: str = phase_setting(
        "none",
        choices=("none", "full", "dots"),
        changes_output=False,
        help="Backward pass: none keeps every activation, dots the results of matmuls with weights and of fused "
        "attention, full only the inputs of layers.",
    )
    unroll: int | None = phase_setting(
        None,
        at_least=1,
        changes_output=False,
        help="Layers per iteration of the scan: more compile longer and run faster. None: all without `remat`, else 1.",
    )


@dataclasses.dataclass(frozen=True)
class PresetConfig(Settings, group="model"):
    """The preset that the model's values come from; every other key of `model` is one of `EncoderConfig`."""

    preset: str = setting(
        "bert-base",
        help='Published model whose values are used where a key is "preset", such as bert-base or bert-6x512 (see '
        "bertjax/config/presets.py). none: the defaults of `EncoderConfig` (configs of finetuning runs, which have the "
        "architecture of `init_from`).",
    )


@dataclasses.dataclass(frozen=True)
class GeneratorConfig(Settings, group="generator"):
    """objective.name=rtd: the network whose tokens `model`, the discriminator, judges; its other keys are `model`'s."""

    preset: str = setting(
        "model",
        help='Published model whose values are used where a key is "preset"; model: the values of `model`, with sizes '
        "times the two ratios.",
    )
    width_ratio: float = setting(
        1.0, above=0.0, help="Width relative to the model's (ELECTRA: 1/4, base 1/3); heads are as wide as the model's."
    )
    depth_ratio: float = setting(1.0, above=0.0, help="Layers relative to the model's (DeBERTa v3: 1/2).")


@dataclasses.dataclass(frozen=True, repr=False)
class EncoderConfig(ComputeConfig, HeadsConfig, RotationConfig, ArchitectureConfig):
    """One Transformer encoder with its heads; every published model is a value of this class.

    Raises:
        UserError: Sizes or choices that cannot be built.
    """

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Self:
        """Returns a published model, such as `bert-base`, with other values where `changes` names them.

        Raises:
            UserError: The preset or a field is unknown, or the model cannot be built.
        """
        unknown = next((each for each in changes if each not in settings_of(cls)), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown, settings_of(cls), n=1)
            raise UserError(f"EncoderConfig has no field {unknown!r}{f'; did you mean {near[0]!r}?' if near else ''}")
        return cls(**(preset(name) | changes))

    @classmethod
    def read(cls, reader: Reader) -> EncoderConfig:
        """Adapter: the values of the preset, and over them those that the config sets."""
        return encoder_config(reader.cfg)

    def __repr__(self) -> str:
        """Returns the fields that differ from their defaults."""
        fields = settings_of(type(self)).items()
        changed = {name: getattr(self, name) for name, each in fields if getattr(self, name) != each.default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def check(self) -> None:
        width = self.layer_width // self.head_parts  # of all heads together
        if self.head_size is None and (self.layer_width % self.head_parts or width % self.num_heads):
            half = "" if self.head_parts == 1 else "half of "
            key = "hidden_size" if self.bottleneck_size is None else "bottleneck_size"
            raise UserError(
                f"{half}model.{key} {self.layer_width} is not divisible by model.num_heads {self.num_heads}; "
                f"head counts that divide it: {_divisors_near(width, self.num_heads)} (or set model.head_size)"
            )
        if self.num_heads % self.kv_heads:
            raise UserError(
                f"model.num_key_value_heads {self.kv_heads} does not divide model.num_heads {self.num_heads}; numbers "
                f"that do: {_divisors_near(self.num_heads, self.kv_heads)}"
            )
        if self.padded_vocab_size is not None and self.padded_vocab_size < self.vocab_size:
            raise UserError(
                f"padded_vocab_size {self.padded_vocab_size} is smaller than model.vocab_size {self.vocab_size}"
            )
        if not self.labels:
            raise UserError("model.labels must name at least one label")
        for reason in invalid_combinations(self):
            raise UserError(reason)
        if self.decoder_layers is not None:
            self.decoder_config()  # raises for a decoder that cannot be built
        if self.attention_class is not None:
            attention = ATTENTION.load(self.attention_class)
            if self.attention_position not in attention.positions:
                raise UserError(
                    f"model.attention_class={self.attention_class} needs model.attention_position to be one of "
                    f"{', '.join(attention.positions)}, not {self.attention_position}"
                )
            attention_settings(self)  # raises for unknown ones
            attention.check_model(self)

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.layer_width // (self.num_heads * self.head_parts) if self.head_size is None else self.head_size

    @property
    def head_parts(self) -> int:
        """Number of results of a head: that of attention, and that of a convolution where there is one."""
        return 2 if self.dynamic_conv_kernel_size else 1

    @property
    def head_output(self) -> int:
        """Width of the results of a head."""
        return self.head_dim * self.head_parts

    @property
    def layer_width(self) -> int:
        """Width of the blocks of a layer."""
        return self.hidden_size if self.bottleneck_size is None else self.bottleneck_size

    @property
    def attention_bottleneck(self) -> bool:
        """True where queries and keys read a projection of the input of a layer, and values that input."""
        return self.bottleneck_size is not None and not self.use_bottleneck_attention

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def embedding_dim(self) -> int:
        """Width of the word table."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def position_dim(self) -> int:
        """Width of the tables of positions and types."""
        return self.embedding_dim if self.embedding_ngram is None else self.hidden_size

    @property
    def output_embedding_dim(self) -> int:
        """Width of the table that the masked-token head compares with."""
        return self.embedding_dim if self.output_embedding_size is None else self.output_embedding_size

    @property
    def residual_divisor(self) -> float:
        """Number by which the output of a block is divided before it is added to the residual stream."""
        return 1.0 if self.residual_depth is None else math.sqrt(self.num_layers / self.residual_depth)

    @property
    def table_size(self) -> int:
        """Rows of the word table in memory."""
        return self.vocab_size if self.padded_vocab_size is None else self.padded_vocab_size

    @property
    def num_labels(self) -> int:
        """Number of labels of the task heads."""
        return len(self.labels)

    @property
    def max_distance(self) -> int:
        """Disentangled attention: the largest distance that is distinguished."""
        return self.max_position_embeddings if self.max_relative_positions is None else self.max_relative_positions

    def decoder_config(self) -> EncoderConfig:
        """Returns the decoder of `decoder_layers`, like the encoder in all else."""
        return self.as_decoder(self, num_layers=self.decoder_layers)

    def as_decoder(self, encoder: EncoderConfig, **changes: Any) -> EncoderConfig:
        """Returns this model as the decoder of an encoder: without parts that see what follows.

        Args:
            encoder: the network whose states it reads.
            **changes: further changes.
        """
        parts = {"causal": True, "cross_attention_hidden_size": encoder.hidden_size, "decoder_layers": None}
        parts |= {"enhanced_decoder": False, "conv_kernel_size": 0, "dynamic_conv_kernel_size": 0}
        parts |= {"embedding_ngram": 1 if self.embedding_ngram == 1 else None}
        return dataclasses.replace(self, **parts | changes)

    @property
    def predicts_from_previous(self) -> bool:
        """True if the scores of a masked token come from the state of the token before it."""
        return self.masked_next_token and not self.causal and not self.enhanced_decoder

    def is_local(self, layer: int) -> bool:
        """Returns whether this layer has local attention."""
        period, first = self.global_attn_every_n_layers, self.first_global_layer
        return self.local_attention > 0 and (period == 0 or (layer - first) % period != 0)

    def group_of(self, layer: int) -> int:
        """Returns the index of the group of shared parameters that a layer uses.

        The quotient is rounded as in transformers' AlbertTransformer: where it is a whole number but for rounding, as
        in layer 9 of 18 in 14 groups, another order of the operations would take the next group.
        """
        assert self.num_groups is not None
        return int(layer / (self.num_layers / self.num_groups))

    def rate(self, name: str) -> float:
        """Returns a dropout rate, `hidden_dropout` if it is None."""
        value = getattr(self, name)
        return self.hidden_dropout if value is None else value


def encoder_config(cfg: ConfigDict, vocabulary: Vocabulary | None = None) -> EncoderConfig:
    """Returns the model: the values of the preset, and over them those that the config sets.

    Args:
        cfg: The whole config.
        vocabulary: The tokenizer's, which knows the true size, the padded size and the id of padding.

    Raises:
        UserError: The preset is unknown, or the model cannot be built.
    """
    values = preset(cfg.model.preset) | explicit_values(cfg.model) | {"vocab_size": cfg.data.vocab_size}
    if vocabulary is not None:
        values |= {
            "vocab_size": vocabulary.size,
            "padded_vocab_size": vocabulary.padded_size,
            "pad_token_id": vocabulary.pad_id,
        }
        if values.get("token_dropout"):
            values["mask_token_id"] = vocabulary.mask_id
            if vocabulary.mask_id < 0:
                raise UserError("model.token_dropout scales by the share of mask tokens, which the tokenizer lacks")
        if values.get("decoder_layers") is not None or values.get("pooling") == "eos":
            values["eos_token_id"] = vocabulary.sep_id
            if vocabulary.sep_id < 0:
                raise UserError(
                    "model.decoder_layers and model.pooling=eos need an end token, which the tokenizer lacks"
                )
        if values.get("answer_head") == "question" and QUESTION in vocabulary.tokens:
            values["question_token_id"] = vocabulary.tokens.index(QUESTION)
    return EncoderConfig(**values)


def explicit_values(group: ConfigDict) -> dict[str, Any]:
    """Returns the fields of `EncoderConfig` that a network's group sets, without those left to the preset."""
    names = names_where(EncoderConfig, lambda each: each.key)
    values = {name: group[name] for name in names if group[name] != PRESET}
    if values.get("attention_class"):
        values["attention_settings"] = stored_settings(group, values["attention_class"])
    return values


def reuse_len(cfg: ConfigDict) -> int:
    """Returns the tokens that the next sequence of the format segments starts after: by default half a sequence."""
    length = encoder_config(cfg).reuse_len
    return cfg.data.seq_len // 2 if length is None else length


def network_keys(group: str) -> dict[str, Setting]:
    """Returns {dotted key: declaration} of the keys of one of `NETWORK_GROUPS` that a preset provides.

    A phase can change keys of `model` only: the other networks take their values from there.
    """
    return {
        dotted(group, name): dataclasses.replace(
            each, default=PRESET, inherits=True, phase=each.phase and group == "model"
        )
        for name, each in settings_of(EncoderConfig).items()
        if each.key
    }


def differences(one: EncoderConfig, other: EncoderConfig, heads: bool = True) -> list[str]:
    """Returns the names of the fields by which two models compute something else.

    Args:
        one: A model.
        other: Another model.
        heads: False compares the encoders alone.
    """
    names = names_where(EncoderConfig, lambda each: each.changes_output and (heads or not each.heads))
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def float32_config(config: EncoderConfig) -> EncoderConfig:
    """Returns the same model at its true vocabulary size, computed in float32, as a model that is loaded."""
    return dataclasses.replace(config, **{name: each.default for name, each in settings_of(ComputeConfig).items()})


def _divisors_near(number: int, heads: int) -> str:
    divisors = [d for d in range(1, min(number, 10_000) + 1) if number % d == 0]  # a file may claim a billion
    nearest = sorted(sorted(divisors, key=lambda d: abs(d - heads))[:4])
    return ", ".join(map(str, nearest))
