"""Two encoders over one embedding: ELECTRA's generator and discriminator (arXiv:2003.10555, section 3.2).

The discriminator owns what they share; the generator is completed with it when it is bound. So there is one array,
which gets the gradients of both, one optimizer state, and one row in every table of names.
"""

from __future__ import annotations

import dataclasses

import jax

from bertjax.models.config import EncoderConfig
from bertjax.models.linear import Key
from bertjax.models.model import init_params
from bertjax.types import Params, UserError

# google-research/electra:run_pretraining.py lets both encoders open the variable scope "electra/embeddings", which
# holds the three tables and their norm; the projections to the two hidden sizes lie outside it.
SHARED = ("word_embeddings", "position_embeddings", "token_type_embeddings", "norm")
SHARING = ("embeddings", "none")
GENERATOR_HEADS, DISCRIMINATOR_HEADS = ("mlm",), ("rtd",)


@dataclasses.dataclass(frozen=True)
class TowersConfig:
    """A generator with the masked-word head and a discriminator with the replaced-token head.

    Raises `UserError` where they cannot share: embeddings of another width, another vocabulary, other parts.
    """

    generator: EncoderConfig
    discriminator: EncoderConfig
    sharing: str = "embeddings"

    def __post_init__(self) -> None:
        if self.sharing not in SHARING:
            raise UserError(f"sharing must be one of {', '.join(SHARING)}, not {self.sharing!r}")
        names = ["vocab_size", "padded_vocab_size"]
        if self.sharing == "embeddings":
            names += ["embedding_dim", "max_position_embeddings", "position_offset", "type_vocab_size"]
            names += ["position_embedding", "embedding_norm", "norm_bias"]
        for name in names:
            ours, theirs = getattr(self.generator, name), getattr(self.discriminator, name)
            if ours != theirs:
                raise UserError(
                    f"generator and discriminator cannot share their embeddings: {name} is {ours} and {theirs}"
                )
        if self.sharing == "embeddings" and self.discriminator.embedding_norm == "after":
            raise UserError("embeddings with a norm behind the projection cannot be shared by encoders of two widths")


def init_towers(config: TowersConfig, key: Key) -> Params:
    """`generator` without what it shares, and `discriminator`, freshly drawn."""
    first, second = jax.random.split(key)
    generator = init_params(config.generator, GENERATOR_HEADS, first)
    discriminator = init_params(config.discriminator, DISCRIMINATOR_HEADS, second)
    if config.sharing == "embeddings":
        own = {name: part for name, part in generator["encoder"]["embeddings"].items() if name not in SHARED}
        generator = _with_embeddings(generator, own)
    return {"generator": generator, "discriminator": discriminator}


def generator_params(config: TowersConfig, params: Params) -> Params:
    """The generator by itself, as `bind` and an export want it: the shared tables are the discriminator's arrays."""
    generator = params["generator"]
    if config.sharing == "none":
        return generator
    shared = params["discriminator"]["encoder"]["embeddings"]
    lent = {name: shared[name] for name in SHARED if name in shared}
    return _with_embeddings(generator, {**generator["encoder"].get("embeddings", {}), **lent})


def _with_embeddings(params: Params, embeddings: Params) -> Params:
    encoder = {name: part for name, part in params["encoder"].items() if name != "embeddings"}
    return {**params, "encoder": {**encoder, "embeddings": embeddings} if embeddings else encoder}
