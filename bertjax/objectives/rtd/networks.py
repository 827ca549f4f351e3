"""The generator and the discriminator of ELECTRA and DeBERTa v3.

An array that both use is owned by one of them, so that it has one gradient, one optimizer state and one name; the other
network's parameters are completed with it before they are used.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bertjax.config.objectives.rtd import RtdNetworksConfig
from bertjax.models.linear import Key
from bertjax.models.model import init_params
from bertjax.types import Params

GENERATOR_HEADS, DISCRIMINATOR_HEADS = ("mlm",), ("rtd",)


def init_networks(config: RtdNetworksConfig, key: Key, heads: tuple[str, ...] = DISCRIMINATOR_HEADS) -> Params:
    """Returns freshly drawn `generator` and `discriminator`, each without the arrays that the other owns.

    "embeddings" and "all": the discriminator owns what is shared. "gdes": the generator owns the tables, and the
    discriminator has `delta` instead, which it adds to them and which starts at zero.

    Args:
        config: the two networks.
        key: the key of the draws.
        heads: heads of the discriminator.
    """
    first, second = jax.random.split(key)
    generator = init_params(config.generator, GENERATOR_HEADS, first)
    discriminator = init_params(config.discriminator, heads, second)
    if config.embedding_sharing == "all":
        generator = {name: part for name, part in generator.items() if name != "encoder"}
    if config.embedding_sharing == "embeddings":
        parts = generator["encoder"]["embeddings"]
        current = {name: part for name, part in parts.items() if name not in config.shared_embeddings}
        generator = _with_embeddings(generator, current)
    if config.embedding_sharing == "gdes":
        parts = discriminator["encoder"]["embeddings"]
        deltas = {name: {"delta": jnp.zeros_like(parts[name]["embedding"])} for name in config.shared_embeddings}
        discriminator = _with_embeddings(discriminator, {**parts, **deltas})
    return {"generator": generator, "discriminator": discriminator}


def generator_params(config: RtdNetworksConfig, params: Params) -> Params:
    """Returns the complete parameters of the generator."""
    generator, discriminator = params["generator"], params["discriminator"]
    if config.embedding_sharing == "all":
        return {**generator, "encoder": discriminator["encoder"]}
    if config.embedding_sharing != "embeddings":
        return generator
    lent = {name: discriminator["encoder"]["embeddings"][name] for name in config.shared_embeddings}
    return _with_embeddings(generator, {**generator["encoder"].get("embeddings", {}), **lent})


def discriminator_params(config: RtdNetworksConfig, params: Params) -> Params:
    """Returns the complete parameters of the discriminator.

    With "gdes" its tables are sums, through which no gradient reaches the generator (arXiv:2111.09543, section 3.2).
    """
    discriminator = params["discriminator"]
    if config.embedding_sharing != "gdes":
        return discriminator
    parts, theirs = (params[name]["encoder"]["embeddings"] for name in ("discriminator", "generator"))
    tables = {
        name: {"embedding": jax.lax.stop_gradient(theirs[name]["embedding"]) + parts[name]["delta"]}
        for name in config.shared_embeddings
    }
    return _with_embeddings(discriminator, {**parts, **tables})


def _with_embeddings(params: Params, embeddings: Params) -> Params:
    encoder = {name: part for name, part in params["encoder"].items() if name != "embeddings"}
    return {**params, "encoder": {**encoder, "embeddings": embeddings} if embeddings else encoder}
