"""`bertjax export`: a checkpoint as a folder that `transformers` loads, verified as it is written."""

from __future__ import annotations

from pathlib import Path

from bertjax import build
from bertjax.commands.runs import load_run
from bertjax.commands.workdir import figures_at
from bertjax.data.tokenizer import Tokenizer
from bertjax.hub.save import save_pretrained
from bertjax.types import Params


def export(workdir: Path, out: Path, step: int | None, overwrite: bool) -> None:
    """Writes the newest checkpoint of a run, or that of `step`, to `out`."""
    run = load_run(workdir, step)
    export_params(
        run.experiment, run.tokenizer, run.params, run.step, run.meta["tokens"], workdir, out, overwrite=overwrite
    )


def export_params(
    exp: build.Experiment,
    tokenizer: Tokenizer,
    params: Params,
    step: int,
    tokens: int,
    workdir: Path,
    out: Path,
    overwrite: bool = True,
) -> None:
    """Writes parameters (true vocabulary size, on the host) and tokenizer; says what is there when it is verified."""
    save_pretrained(
        out,
        params,
        build.float32_config(exp.model),
        heads=exp.objective.heads,
        tokenizer=tokenizer,
        card=build.model_facts(exp.cfg, tokenizer, tokens, step, figures_at(workdir, step)),
        overwrite=overwrite,
    )
    print(f"exported step {step} to {out}, read back and compared; load it with")
    print(f"    transformers.AutoModelForMaskedLM.from_pretrained({str(out)!r})")
