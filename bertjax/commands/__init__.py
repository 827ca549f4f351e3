"""One module per command of `bertjax`.

The first line of a module's docstring is the command's help text, and `EXAMPLE` ends it. A module declares its flags in
`add_arguments(parser)` and does its work in `run(options)`, which returns None or an exit code. Modules import jax and
other heavy libraries only inside `run`, so that `--help` and errors in the configuration appear at once.

`REQUIRES_CONFIG = True` adds the flag `--config` and overrides; `run` then finds the checked ConfigDict in
`options.config`.
"""
