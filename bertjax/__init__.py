"""Pretrains encoder language models in JAX/Flax. `import bertjax` is free: what is heavy is imported when used."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax import data as data
    from bertjax.commands.compare import compare as compare
    from bertjax.commands.compile import compile as compile
    from bertjax.commands.decay import decay as decay
    from bertjax.commands.embed import embed as embed
    from bertjax.commands.env import env as env
    from bertjax.commands.eval_minimal_pairs import eval_minimal_pairs as eval_minimal_pairs
    from bertjax.commands.eval_sts import eval_sts as eval_sts
    from bertjax.commands.evaluate import evaluate as evaluate
    from bertjax.commands.explain import explain as explain
    from bertjax.commands.export import export as export
    from bertjax.commands.fill_mask import fill_mask as fill_mask
    from bertjax.commands.finetune import finetune as finetune
    from bertjax.commands.generate import generate as generate
    from bertjax.commands.inspect_data import inspect_data as inspect_data
    from bertjax.commands.lr_find import lr_find as lr_find
    from bertjax.commands.plan import plan as plan
    from bertjax.commands.predict import predict as predict
    from bertjax.commands.prepare import prepare as prepare
    from bertjax.commands.pretrain import pretrain as pretrain
    from bertjax.commands.pretrain import sweep as sweep
    from bertjax.commands.probe import probe as probe
    from bertjax.commands.prune import prune as prune
    from bertjax.commands.pseudo_label import pseudo_label as pseudo_label
    from bertjax.commands.score_choices import score_choices as score_choices
    from bertjax.commands.suite import suite as suite
    from bertjax.config.model import EncoderConfig as EncoderConfig
    from bertjax.errors import UserError as UserError
    from bertjax.experiment.config import load_config as load_config
    from bertjax.experiment.continued import continue_config as continue_config
    from bertjax.experiment.loop_parts import make_objective as make_objective
    from bertjax.experiment.open_model import from_encoders as from_encoders
    from bertjax.experiment.open_model import load_pretrained as load_pretrained
    from bertjax.experiment.run import Run as Run
    from bertjax.experiment.run import open_run as open_run
    from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder as PretrainedEncoderDecoder
    from bertjax.hf.pretrained import PretrainedModel as PretrainedModel
    from bertjax.models.encoder import Encoder as Encoder
    from bertjax.objectives.base import Objective as Objective

__version__ = "0.1.0"
# `datasets` draws no bars here, but its import warns in a notebook without ipywidgets.
warnings.filterwarnings("ignore", message="IProgress not found")

# The imports above are for type checkers; what they name is imported when it is used.
with open(__file__, encoding="utf-8") as _source:
    _HOMES = {name: module for module, name in re.findall(r"from (bertjax\..+) import (\w+) as", _source.read())}
__all__ = ["__version__", "data", *_HOMES]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use (PEP 562)."""
    if name == "data":
        return importlib.import_module("bertjax.data")
    if name not in _HOMES:
        raise AttributeError(f"module 'bertjax' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
