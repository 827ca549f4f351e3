"""`bertjax COMMAND`: flags and one call each. Whatever is heavy is imported when the config has been found right."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from bertjax import __version__
from bertjax.commands.inference_cli import USES, add_uses, run_use
from bertjax.errors import UserError
from bertjax.runtime.huge_pages import use_huge_pages

if TYPE_CHECKING:
    from ml_collections import ConfigDict

TRAINS = ("pretrain", "benchmark", "finetune")
CONFIG_HELP = "PATH.py or PATH.py:ARGUMENT; the file is executed"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a full quota, a file longer than the system allows."""
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. What the user can mend is one line on stderr and exit code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's own chatter
    _quieten_orbax(own_process=arguments is None)
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if arguments is None and options.command in TRAINS:  # a process of our own
        use_huge_pages()
    try:
        return _run(options, rest)
    except UserError as error:
        print(f"bertjax {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `bertjax fill-mask ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        advice = _advice(error)
        if advice is None:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"bertjax {options.command}: {error.strerror}{where}; {advice}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if arguments is None:
            _end_interrupted()
        print("interrupted", file=sys.stderr)
        return 130


def _advice(error: OSError) -> str | None:
    """What mends a fault of the disk; None for one that is not the user's to mend."""
    if error.errno in NO_ROOM:
        return "make room, and the same command goes on"
    if error.errno in NOT_ALLOWED and error.filename:
        return "let this user read and write there, or name another place"
    return None


def _end_interrupted() -> NoReturn:
    """Of a process of our own: a compiler at work in a thread does not survive Python's tidy end."""
    print("interrupted", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


def _quieten_orbax(own_process: bool) -> None:
    """What fails is raised to us; its other writers would add fifty tracebacks of their own, each in its own way."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if own_process:
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
        sys.unraisablehook = _unraisable


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """What Python would pass over with a traceback: an error in a callback of its own, such as the garbage collector's.

    A Ctrl-C that comes there must still end the process. A writer that fails after the first one finds its event loop
    closed, which says nothing new.
    """
    if unraisable.exc_type is KeyboardInterrupt:
        _end_interrupted()
    if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(unraisable)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax",
        description="Pretrain encoder language models from raw text to a Hugging Face folder.",
        epilog="Every key of a config can be set as --config.KEY=VALUE, such as --config.train.num_steps=1000.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bertjax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, *, config: bool = False) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if config:
            sub.add_argument("--config", required=True, help=CONFIG_HELP)
        return sub

    sub = command("pretrain", "train a model; the same command again resumes", config=True)
    sub.add_argument("--workdir", type=Path, help="folder for checkpoints, figures and the export")
    sub = command("finetune", "train a task on the weights of init_from, and score it", config=True)
    sub.add_argument("--workdir", type=Path, required=True, help="folder for checkpoints, figures and the export")
    sub.add_argument("--seeds", help="such as 0,1,2: a run each, in WORKDIR/seed-N, and their mean and spread")
    sub.add_argument(
        "--grid", action="append", default=[], metavar="KEY=VALUE,VALUE", help="runs for all of these (repeatable)"
    )
    sub = command("lr-find", "try rising learning rates for a few updates, and suggest one", config=True)
    sub.add_argument("--workdir", type=Path, required=True, help="new folder for the picture (report.html)")
    sub.add_argument("--min-lr", type=float, default=1e-7, help="first rate (default 1e-7)")
    sub.add_argument("--max-lr", type=float, default=1.0, help="last rate, unless losses explode before (default 1)")
    sub.add_argument("--steps", type=int, default=100, help="updates (default 100)")
    sub.add_argument("--linear", action="store_true", help="evenly spaced rates, as Smith's; else equal factors")
    sub = command("tokenizer", "train the tokenizer of a config on its corpus", config=True)
    sub.add_argument("--out", type=Path, required=True, help="new folder")
    command("prepare", "tokenise the corpus of a config once (cached by content)", config=True)
    sub = command("inspect-data", "show what the model will see", config=True)
    sub.add_argument("--batches", type=int, default=1, help="how many batches (default 1)")
    sub.add_argument("--rows", type=int, default=4, help="rows of each batch to print (default 4)")
    sub.add_argument("--out", type=Path, help="an .npz file for the arrays")
    sub = command("benchmark", "measure the step of a config, and a peer's beside it", config=True)
    sub.add_argument(
        "--baseline", choices=("hf",), help="hf: transformers and PyTorch, same weights and text, in turns"
    )
    sub.add_argument("--repeats", type=int, default=5, help="how often each side is measured (default 5)")
    sub.add_argument("--steps", type=int, default=10, help="steps of a turn (default 10)")
    sub.add_argument("--warmup", type=int, default=3, help="steps before the first turn (default 3)")
    sub.add_argument("--no-compile", action="store_true", help="do not try torch.compile for the peer")
    sub.add_argument("--out", type=Path, help="a JSON file for all figures")
    sub = command("compile", "compile the step of a config for devices that need not be here", config=True)
    sub.add_argument("--topology", metavar="SLICE", help="a TPU slice: v5e-256, v5e:4x4, v4:2x2x4 (needs libtpu)")
    sub.add_argument("--devices", type=int, metavar="N", help="N virtual CPU devices instead")
    sub.add_argument("--no-estimate", action="store_true", help="compile once, without the estimate of the time")
    sub.add_argument("--out", type=Path, help="a JSON file for all figures")
    sub = command("export", "write a checkpoint as a Hugging Face folder, verified")
    sub.add_argument("--workdir", type=Path, required=True)
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--step", type=int, help="of which checkpoint (default: the newest)")
    sub.add_argument("--average-last", type=int, default=1, metavar="K", help="mean of the weights of K checkpoints")
    sub.add_argument("--network", help="which network of several, such as generator (default: the one that is meant)")
    sub.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    sub.add_argument("--sentence-transformers", action="store_true", help="pooled, for the library of that name")
    sub.add_argument("--pooling", choices=("mean", "cls"), help="of its sentence vectors (default mean)")
    sub.add_argument("--max-length", type=int, help="tokens it reads of a text (default: all that the model can)")
    sub.add_argument("--push-to-hub", metavar="OWNER/NAME", help="upload the export to the Hugging Face Hub, private")
    sub.add_argument("--public", action="store_true", help="a repository that is new there is public")
    sub = command("parity", "compare every family with transformers, in both directions")
    sub.add_argument("--family", action="append", default=[], help="only this one (repeatable; default: all)")
    sub.add_argument("--out", type=Path, help="a Markdown file for the table")
    sub = command("evaluate", "held-out figures of a checkpoint")
    sub.add_argument("--workdir", type=Path, required=True)
    sub.add_argument("--step", type=int, help="of which checkpoint (default: the newest)")
    sub = command("report", "write the report.html of a run anew")
    sub.add_argument("workdir", type=Path)
    sub.add_argument("--with-probes", action="store_true", help="look into the newest checkpoint first")
    sub = command("compare", "runs side by side")
    sub.add_argument("runs", type=Path, nargs="+", metavar="WORKDIR")
    sub.add_argument("--out", type=Path, help="an .html file, beside the table that is printed")
    add_uses(command)
    return parser


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    if options.command == "fill-mask":  # sentences may stand on both sides of an option
        options.sentences += [word for word in rest if not word.startswith("--")]
        rest = [word for word in rest if word.startswith("--")]
    if not hasattr(options, "config"):
        if rest:
            raise UserError(f"unknown argument {rest[0]}")
        if options.command in USES:
            return run_use(options)
        if options.command in ("report", "compare"):
            return _pages(options)
        return _parity(options) if options.command == "parity" else _run_on_workdir(options)
    cfg = _checked_config(options.config, rest)
    if options.command == "pretrain":
        return _pretrain(cfg, options.workdir)
    if options.command == "finetune":
        return _finetune(cfg, options)
    if options.command == "lr-find":
        _use_platform_early(cfg)
        from bertjax.commands.lr_find import LrRange, lr_find

        lr_find(cfg, options.workdir, LrRange(options.min_lr, options.max_lr, options.steps, options.linear))
        return 0
    if options.command == "compile":
        _compile(cfg, options)
        return 0
    _use_platform_early(cfg)
    if options.command == "inspect-data":
        from bertjax.commands.inspect_data import inspect

        inspect(cfg, options.batches, options.out, options.rows)
    elif options.command == "benchmark":
        _benchmark(cfg, options)
    elif options.command == "prepare":
        from bertjax.commands.prepare import prepare

        prepare(cfg)
    else:
        from bertjax.commands.prepare import train_tokenizer

        train_tokenizer(cfg, options.out)
    return 0


def _benchmark(cfg: ConfigDict, options: argparse.Namespace) -> None:
    if options.baseline is not None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the peer needs memory, too
    from bertjax.commands.benchmark import BenchmarkCounts, benchmark

    amounts = BenchmarkCounts(options.repeats, options.steps, options.warmup)
    benchmark(cfg, amounts, options.baseline, not options.no_compile, options.out)


def _compile(cfg: ConfigDict, options: argparse.Namespace) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"  # nothing runs: no accelerator is woken
    from bertjax.commands.compile import compile_ahead

    compile_ahead(cfg, options.topology, options.devices, not options.no_estimate, options.out)


def _checked_config(spec: str, overrides: list[str]) -> ConfigDict:
    from bertjax.config.overrides import apply_overrides, load_config
    from bertjax.config.parse import check

    cfg = apply_overrides(load_config(spec), overrides)
    check(cfg)
    return cfg


def _pretrain(cfg: ConfigDict, workdir: Path | None) -> int:
    _use_platform_early(cfg)
    if cfg.dry_run:
        from bertjax.experiment.dry_run import dry_run

        dry_run(cfg)
        return 0
    if workdir is None:
        raise UserError("--workdir is missing: the folder for checkpoints, figures and the export")
    from bertjax.experiment.workdir import changed_keys

    changed_keys(workdir, cfg)  # refuses a foreign folder before anything heavy is imported
    from bertjax.commands.pretrain import pretrain
    from bertjax.config.parse import distributed_config
    from bertjax.runtime.process_group import join_processes
    from bertjax.training.signals import StoppedBySignal

    try:
        with join_processes(distributed_config(cfg)) as processes:
            pretrain(cfg, workdir, processes)
    except StoppedBySignal as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    return 0


def _finetune(cfg: ConfigDict, options: argparse.Namespace) -> int:
    _use_platform_early(cfg)
    seeds = (options.seeds or "").split(",") if options.seeds else []
    if not all(seed.strip().isdecimal() for seed in seeds):
        raise UserError(f"--seeds {options.seeds} is not a list of whole numbers such as 0,1,2")
    from bertjax.commands.finetune import finetune
    from bertjax.config.parse import distributed_config
    from bertjax.runtime.process_group import join_processes
    from bertjax.training.signals import StoppedBySignal

    try:
        if seeds or options.grid:
            from bertjax.commands.sweep import sweep

            sweep(cfg, options.workdir, [int(seed) for seed in seeds], options.grid)
            return 0
        with join_processes(distributed_config(cfg)) as processes:
            finetune(cfg, options.workdir, processes)
    except StoppedBySignal as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    return 0


def _run_on_workdir(options: argparse.Namespace) -> int:
    from bertjax.experiment.workdir import read_config

    read_config(options.workdir)
    if options.command == "export":
        _export(options)
    else:
        from bertjax.commands.evaluate import evaluate

        evaluate(options.workdir, options.step)
    return 0


def _export(options: argparse.Namespace) -> None:
    if (options.pooling or options.max_length is not None) and not options.sentence_transformers:
        raise UserError("--pooling and --max-length belong to --sentence-transformers, which is missing")
    if options.public and not options.push_to_hub:
        raise UserError("--public belongs to --push-to-hub OWNER/NAME, which is missing")
    if options.average_last < 1:
        raise UserError(f"--average-last must be at least 1, not {options.average_last}")
    from bertjax.commands.export import Upload, export
    from bertjax.hf.sentence_transformers import Pooling

    pooled = options.sentence_transformers
    pooling = Pooling(options.pooling or "mean", max_length=options.max_length) if pooled else None
    upload = Upload(options.push_to_hub, options.public) if options.push_to_hub else None
    export(
        options.workdir,
        options.out,
        options.step,
        options.overwrite,
        pooling,
        upload,
        options.average_last,
        options.network,
    )


def _pages(options: argparse.Namespace) -> int:
    """They read what there is, also of runs of another version."""
    from bertjax.commands.report import compare, report

    if options.command == "report":
        report(options.workdir, options.with_probes)
    else:
        compare(options.runs, options.out)
    return 0


def _parity(options: argparse.Namespace) -> int:
    from bertjax.commands.parity import parity

    return 0 if parity(options.family, options.out) else 1


def _use_platform_early(cfg: ConfigDict) -> None:
    """jax reads this when it is imported; later it would already have woken an accelerator."""
    if cfg.platform == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"


if __name__ == "__main__":
    sys.exit(main())
