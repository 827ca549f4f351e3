"""Exports of a checkpoint, or of a model that is read and written again with other files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from bertjax.commands.arguments import Flag, Folder, Model, Run, workdir_of
from bertjax.commands.signatures import command
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment.export import export_model, export_run
from bertjax.experiment.load import load_run
from bertjax.experiment.open_model import load_pretrained
from bertjax.hf import push
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import Pooling
from bertjax.io.output import require_output_folder
from bertjax.io.staging import local_copy, output_path
from bertjax.io.units import parse_size


@command
def export(
    run: Run | None = None,
    out: Annotated[Folder | None, Flag(type=Path, metavar="FOLDER", required=True)] = None,
    *,
    model: Model | None = None,
    step: int | None = None,
    average_last: Annotated[int, Flag(type=int, metavar="K")] = 1,
    network: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    max_shard_size: Annotated[str, Flag(metavar="SIZE")] = "5GB",
    overwrite: bool = False,
    sentence_transformers: bool = False,
    pooling: Literal["mean", "cls"] | None = None,
    max_length: int | None = None,
    push_to_hub: Annotated[str | None, Flag(metavar="OWNER/NAME")] = None,
    public: bool = False,
) -> Path:
    """Write a checkpoint as a Hugging Face folder, and verify it.

    Args:
        out: folder to write
        model: instead of a run: any model, to write it with another type or for sentence-transformers
        step: step of the checkpoint (default: the newest)
        average_last: average the weights of the last K checkpoints
        network: network to export where there are several, such as generator (default: the main one)
        dtype: type of the weights
        max_shard_size: size of a file of weights
        overwrite: replace an earlier export
        sentence_transformers: write a sentence-transformers folder
        pooling: that of its sentence vectors (default mean)
        max_length: its maximum of tokens per text (default: the model's)
        push_to_hub: upload the export to the Hugging Face Hub, private
        public: make a new repository public

    Returns:
        The folder.

    Raises:
        UserError: checkpoint or network are missing, or folder or repository exist already.

    Example:
        bertjax export --workdir runs/quickstart --out exported --dtype bfloat16
    """
    require_at_least(1, average_last=average_last)
    if (run is None) == (model is None):
        raise UserError(f"give a run with {named('workdir')}, or any other model with {named('model')}")
    if model is not None and (step is not None or average_last > 1 or network is not None):
        raise UserError(f"{named('step')}, {named('average_last')} and {named('network')} are those of a run")
    if (pooling is not None or max_length is not None) and not sentence_transformers:
        raise UserError(f"{named('pooling')} and {named('max_length')} need {named('sentence_transformers', True)}")
    if public and push_to_hub is None:
        raise UserError(f"{named('public')} needs {named('push_to_hub')} OWNER/NAME")
    if out is None:
        raise UserError(f"{named('out')} is missing: the folder to write")
    require_output_folder(out)
    folder = Path(out).expanduser()
    if push_to_hub is not None:
        push.check_repository(push_to_hub, overwrite=overwrite)
    storage: dict[str, Any] = {
        "overwrite": overwrite,
        "pooling": Pooling(pooling or "mean", max_length=max_length) if sentence_transformers else None,
        "dtype": dtype,
        "max_shard_bytes": parse_size(named("max_shard_size"), max_shard_size),
    }
    with output_path(folder, overwrite) as local:
        if model is None:
            workdir = workdir_of(run)
            stored = load_run(workdir, step, average_last)
            message = f"Step {stored.step}, exported by bertjax"
            export_run(stored, workdir, local, network=network, **storage)
        else:
            message = "Exported by bertjax"
            loaded = model if isinstance(model, PretrainedModel | PretrainedEncoderDecoder) else load_pretrained(model)
            export_model(loaded, local, **storage)
        if push_to_hub is not None:
            address = push.push_to_hub(local, push_to_hub, private=not public, overwrite=overwrite, message=message)
            print(f"uploaded to {address}")
    return local_copy(folder)


def show(folder: Path, *, format: Literal["safetensors"] = "safetensors") -> None:
    """Prints nothing: the export says what it wrote.

    Args:
        format: file format of the weights; pickle is not offered, because it can execute code
    """
