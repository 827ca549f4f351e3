"""Every key that a config may set, with its default: BERT's recipe (arXiv:1810.04805, appendix A.2).

A config file starts from `base_config()` and changes what it wants changed. A key that is not here cannot be set,
neither there nor on the command line. A key whose default is `None` (a placeholder) can be given `None` again.
Numbers derived from others are references, so that they follow an override of what they are derived from.
"""

from __future__ import annotations

from ml_collections import ConfigDict, config_dict

from bertjax.config.defaults.data import data_group
from bertjax.config.defaults.debug_size import make_smoke
from bertjax.config.defaults.finetune_recipes import make_task
from bertjax.config.defaults.model import generator_group, model_group
from bertjax.config.defaults.training import (
    checkpoint_group,
    eval_group,
    export_group,
    logging_group,
    optimizer_group,
    profile_group,
    report_group,
    schedule_group,
    train_group,
)
from bertjax.config.distributed import DistributedConfig
from bertjax.config.fields import Settings, new_config
from bertjax.config.objectives import GROUPS as OBJECTIVE_GROUPS
from bertjax.config.task import QaConfig, TaskConfig, TokensConfig
from bertjax.config.training import MeshConfig

__all__ = ["base_config", "make_smoke", "make_task"]

GROUPS: tuple[type[Settings], ...] = (
    MeshConfig,
    DistributedConfig,
    TaskConfig,
    TokensConfig,
    QaConfig,
    *OBJECTIVE_GROUPS,
)
"""The dataclasses that declare the keys."""


def base_config() -> ConfigDict:
    """A new, locked config with every declared key."""
    config = new_config(GROUPS)

    # Seeds everything random: weights, order of the data, pairs, masks, dropout.
    config.seed = 0
    # A folder (ours or Hugging Face's) to take weights from, and nothing else, when the work folder has no checkpoint.
    config.init_from = config_dict.placeholder(str)
    # Where it has another tokenizer: "refuse", or "remap" = pieces of the same text keep their embeddings, others begin
    # as the mean of those into which its tokenizer cuts them.
    config.init_embeddings = "refuse"
    # Where it has fewer positions: "tile" repeats its table, "interpolate" spreads it. A longer table is cut.
    config.init_positions = "tile"
    # Print parameters, FLOPs, memory, tokens and epochs; train nothing, write nothing.
    config.dry_run = False
    # "any", "cpu", "gpu" or "tpu": naming one and not getting it is an error, so that no run is slow in silence.
    config.platform = "any"
    # Refuse to start where the same command could give other numbers: dropout_prng="rbg", or a GPU without
    # `--xla_gpu_deterministic_ops=true` in the environment variable XLA_FLAGS.
    config.deterministic = False
    # Keep compiled steps in `data.cache_dir`/xla, and begin with those that are there: a second start, or the next run
    # of the same shapes, does not compile. The environment variable JAX_COMPILATION_CACHE_DIR names another folder.
    config.compile_cache = True

    config.model = model_group()
    config.generator = generator_group()
    config.data = data_group()
    config.train = train = train_group()
    config.optimizer = optimizer_group()
    config.schedule = schedule_group(train)
    config.eval = eval_group(train)
    config.checkpoint = checkpoint_group(train)
    config.export = export_group()
    config.logging = logging_group()
    config.report = report_group()
    config.profile = profile_group()
    return config.lock()
