"""A run that starts from the whole state of another run's checkpoint (`resume_from`), and may change what it likes.

A decay of the learning rate from several steps of one run, or a last phase on other text, keeps the optimizer this way.
"""

from __future__ import annotations

import contextlib

from ml_collections import ConfigDict

from bertjax.config.overrides import differences
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, comma_list, named
from bertjax.experiment import build
from bertjax.experiment.init_from import architecture_changes
from bertjax.experiment.load import stored_experiment
from bertjax.experiment.workdir import ChangedKey, checkpoint_steps, parse_checkpoint, read_config
from bertjax.runtime.process_group import ProcessGroup
from bertjax.training.state import COUNTER_DEFAULTS, TrainState


def require_checkpoint(cfg: ConfigDict) -> None:
    """Raises `UserError` if `resume_from` names no checkpoint before the last step; called before tokenization."""
    if cfg.resume_from is None:
        return
    workdir, step = parse_checkpoint(cfg.resume_from)
    if cfg.train.num_steps <= step:
        raise UserError(
            f"resume_from={cfg.resume_from}: train.num_steps={cfg.train.num_steps} counts the steps of that run, too; "
            f"set it above {step}"
        )
    read_config(workdir)
    steps = checkpoint_steps(workdir)
    if step not in steps:
        raise UserError(
            f"resume_from={cfg.resume_from}: {workdir} has no checkpoint of step {step}; it has {comma_list(steps)}"
        )


def restore_from_other_run(
    exp: build.Experiment, tokenizer: Tokenizer, processes: ProcessGroup
) -> tuple[TrainState, list[ChangedKey]]:
    """Restores the checkpoint of `resume_from`, and prints the keys that differ from those of its run.

    Args:
        exp: the experiment of the new run.
        tokenizer: its tokenizer.
        processes: processes that train together.

    Returns:
        The state, and the keys.

    Raises:
        UserError: the checkpoint is missing or damaged, or is that of another model, optimizer or tokenizer.
    """
    name = f"resume_from={exp.cfg.resume_from}"
    workdir, step = parse_checkpoint(exp.cfg.resume_from)
    source, source_tokenizer = stored_experiment(workdir)
    if source_tokenizer.digest != tokenizer.digest:
        raise UserError(
            f"{name} has another tokenizer: set {named('config.data.tokenizer', workdir / 'tokenizer')}, or take the "
            f"weights alone with {named('config.init_from')} and {named('config.init_embeddings', 'remap')}"
        )
    networks = exp.objective.networks
    for network in networks.keys() & source.objective.networks.keys():
        architecture_changes(name, source.objective.networks[network].config, networks[network].config)
    checkpoints = build.open_checkpoints(exp.cfg, workdir, read_only=True, processes=processes)
    with contextlib.closing(checkpoints):
        restored = checkpoints.restore(exp.abstract_state(), step, absent=COUNTER_DEFAULTS)
    assert restored is not None  # an unknown step is an error
    changes = [each for each in differences(read_config(workdir), exp.cfg) if each[0] != "resume_from"]
    print(f"continuing {workdir} from step {step}")
    for key, before, now in changes:
        print(f"  {key}: {before} -> {now}")
    return restored.state, changes
