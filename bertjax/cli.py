"""The command line: parses arguments, runs one module of `bertjax.commands`, and turns errors into one line."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from bertjax import __version__
from bertjax.commands import (
    benchmark,
    compare,
    compile,
    config,
    configs,
    decay,
    embed,
    env,
    eval_minimal_pairs,
    eval_sts,
    evaluate,
    export,
    fill_mask,
    finetune,
    generate,
    inspect_data,
    lr_find,
    parity,
    predict,
    prepare,
    pretrain,
    pseudo_label,
    report,
    score_choices,
    tokenizer,
)
from bertjax.errors import UserError, is_panic, one_line, require_path, require_text
from bertjax.io.atomic import require_writable
from bertjax.io.hub import is_hub_name
from bertjax.io.staging import local_copy, output_path
from bertjax.storage import is_url
from bertjax.training.signals import StoppedBySignal

if TYPE_CHECKING:
    from ml_collections import ConfigDict

COMMANDS: tuple[ModuleType, ...] = (
    *(configs, config, tokenizer, prepare, inspect_data, pretrain, decay, finetune, lr_find),
    *(evaluate, export, report, compare),
    *(predict, pseudo_label, fill_mask, generate, embed, eval_sts, eval_minimal_pairs, score_choices),
    *(benchmark, compile, parity, env),
)
"""The commands in the order of `bertjax --help`: training, runs, inference, measurement."""
CONFIG_HELP = "name of `bertjax configs`, such as bert:base, or PATH.py[:ARGUMENT], which is executed"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_SUCH_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Command and flags; None takes those of the process.

    Returns:
        The exit code: 0, 2 for an error that the user can correct (one line on stderr), 130 or 143 after a signal.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _silence_libraries(is_main_process=arguments is None)
    try:
        for argument in sys.argv[1:] if arguments is None else arguments:
            require_text("an argument", argument)
    except UserError as error:
        print(f"bertjax: {error}", file=sys.stderr)
        return 2
    options, rest = build_parser().parse_known_args(arguments)
    try:
        return _run(options, rest)
    except UserError as error:
        print(f"bertjax {options.command}: {error}", file=sys.stderr)
        return 2
    except StoppedBySignal as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    except BrokenPipeError:  # `bertjax fill-mask ... | head` closes the pipe early
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        advice = _advice(error)
        if advice is None:
            raise
        path = f" ({error.filename})" if error.filename else ""
        print(f"bertjax {options.command}: {UserError(f'{error.strerror}{path}; {advice}')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if arguments is None:
            _exit_interrupted()
        print("interrupted", file=sys.stderr)
        return 130
    except BaseException as error:
        if not is_panic(error):
            raise
        print(f"bertjax {options.command}: a tokenizer failed on this text: {one_line(error)}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    if hasattr(options, "sentences"):  # argparse leaves sentences after an option in `rest`
        options.sentences += [word for word in rest if not word.startswith("--")]
        rest = [word for word in rest if word.startswith("--")]
    for flag, path in vars(options).items():
        if isinstance(path, Path):
            require_path(flag, str(path))
    for flag in {"workdir", "model", "runs"} & vars(options).keys():
        value = getattr(options, flag)
        setattr(options, flag, [local_copy(each) for each in value] if isinstance(value, list) else _local(value))
    out = getattr(options, "out", None)
    if out is None or str(out) == "-":
        return _run_module(options, rest)
    if not is_url(out):  # before hours of work
        require_writable("--out", Path(out).parent)
    with output_path(Path(out), getattr(options, "overwrite", False)) as local:
        options.out = type(out)(local)
        return _run_module(options, rest)


def _local(path: Path | None) -> Path | None:
    return path if path is None or is_hub_name(path) else local_copy(path)


def _run_module(options: argparse.Namespace, rest: list[str]) -> int:
    if _requires_config(options.module):
        _require_packages(getattr(options, "workdir", None))
        options.config = _checked_config(options.config, rest)
        if options.config.dry_run and not getattr(options.module, "SUPPORTS_DRY_RUN", False):
            raise UserError("dry_run=true estimates what pretrain and finetune cost; this command has no such estimate")
        if options.config.platform == "cpu":  # jax reads this on import; later, it has already opened an accelerator
            os.environ["JAX_PLATFORMS"] = "cpu"
    elif getattr(options.module, "TAKES_OVERRIDES", False):
        options.overrides = rest
    elif rest:
        raise UserError(f"unknown argument {rest[0]}")
    return options.module.run(options) or 0


class _Help(argparse.HelpFormatter):
    """Fills paragraphs as argparse does, and keeps line breaks, such as those of examples."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = (
            line if line.startswith(" ") else textwrap.fill(line, width, initial_indent=indent)
            for line in text.strip().splitlines()
        )
        return "\n".join(filled)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line, with one subparser per command."""
    parser = argparse.ArgumentParser(
        prog="bertjax",
        description="Pretrain encoder language models from raw text to a Hugging Face folder.",
        epilog="Every key of a config can be set as --config.KEY=VALUE, such as --config.train.num_steps=1000.\n\n"
        "bertjax COMMAND --help has flags and an example. Start with:\n"
        "  bertjax pretrain --config quickstart --workdir runs/quickstart",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bertjax {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        summary = (module.__doc__ or "").partition("\n")[0].removesuffix(".")
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            epilog=f"example:\n  {module.EXAMPLE}" if hasattr(module, "EXAMPLE") else None,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        command.set_defaults(module=module)
        if _requires_config(module):
            command.add_argument("--config", required=True, help=CONFIG_HELP)
        module.add_arguments(command)
    return parser


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of every command by its name."""
    subparsers = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(next(subparsers).choices)


def _requires_config(module: ModuleType) -> bool:
    return getattr(module, "REQUIRES_CONFIG", False)


def _require_packages(workdir: Path | None) -> None:
    """Names a missing package of the run in a work directory, before its extensions are unknown names."""
    from bertjax.config.overrides import require_stored_packages

    if workdir is not None:
        require_stored_packages(workdir / "config.json")


def _checked_config(spec: str, overrides: list[str]) -> ConfigDict:
    from bertjax.config.overrides import apply_overrides, load_config
    from bertjax.config.parse import check

    cfg = apply_overrides(load_config(spec), overrides)
    check(cfg)
    return cfg


def _advice(error: OSError) -> str | None:
    """Returns how the user can correct an error of the file system; None for other errors."""
    if error.errno in DISK_FULL:
        return "free some space; the same command continues"
    if error.errno in NO_SUCH_PATH and error.filename:
        return "choose another path"
    if error.errno in NO_PERMISSION and error.filename:
        return "grant this user read and write access, or choose another path"
    return None


def _exit_interrupted() -> NoReturn:
    """Ends the process at once: a compiler thread does not survive the interpreter's regular shutdown."""
    print("interrupted", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


def _silence_libraries(is_main_process: bool) -> None:
    """Keeps orbax's background writers from printing tracebacks of errors that are raised here anyway."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if is_main_process:
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
        sys.unraisablehook = _unraisable


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Handles errors in callbacks of the interpreter, such as the garbage collector's.

    Ctrl-C inside such a callback must still end the process. An orbax writer that fails after the first one reports a
    closed event loop, which adds nothing.
    """
    if unraisable.exc_type is KeyboardInterrupt:
        _exit_interrupted()
    if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    sys.exit(main())
