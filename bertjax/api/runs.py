"""Export of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from bertjax.api.errors import python_errors
from bertjax.errors import UserError
from bertjax.experiment.export import Upload
from bertjax.experiment.export import export as export_run
from bertjax.experiment.run import Run
from bertjax.hf.sentence_transformers import Pooling
from bertjax.io.staging import local_copy, output_path
from bertjax.io.units import parse_size

Folder: TypeAlias = str | os.PathLike[str]


@python_errors()
def export(
    run: Folder | Run,
    folder: Folder,
    *,
    step: int | None = None,
    average_last: int = 1,
    network: str | None = None,
    dtype: str = "float32",
    max_shard_size: str = "5GB",
    overwrite: bool = False,
    pooling: str | None = None,
    max_length: int | None = None,
    push_to_hub: str | None = None,
    public: bool = False,
) -> Path:
    """Writes a checkpoint as a folder that `transformers` loads, and verifies it; what `bertjax export` does.

    Args:
        run: A run or its work directory.
        folder: Folder to write.
        step: Step of the checkpoint; the newest by default.
        average_last: Averages the weights of so many checkpoints.
        network: Network to export where there are several, such as `generator`; the main one by default.
        dtype: Type of the weights: float32, bfloat16 or float16.
        max_shard_size: Size of a file of weights, such as 500MB.
        overwrite: Replaces an earlier export.
        pooling: `mean` or `cls` writes a folder for sentence-transformers.
        max_length: Tokens per text there; the model's maximum by default.
        push_to_hub: Repository OWNER/NAME to upload to.
        public: Makes a new repository public.

    Returns:
        The folder.

    Raises:
        UserError: Checkpoint or network are missing, or folder or repository exist already.
    """
    if max_length is not None and pooling is None:
        raise UserError("max_length needs pooling: it belongs to sentence-transformers")
    with output_path(Path(folder).expanduser(), overwrite) as local:
        export_run(
            _workdir(run),
            local,
            step=step,
            average_last=average_last,
            network=network,
            pooling=None if pooling is None else Pooling(pooling, max_length=max_length),
            overwrite=overwrite,
            upload=None if push_to_hub is None else Upload(push_to_hub, public),
            dtype=dtype,
            max_shard_bytes=parse_size("max_shard_size", max_shard_size),
        )
    return local_copy(folder)


def _workdir(run: Folder | Run) -> Path:
    return run.workdir if isinstance(run, Run) else local_copy(run)
