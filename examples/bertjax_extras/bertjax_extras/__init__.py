"""Five extensions of bertjax, one of each kind; `pyproject.toml` names them as entry points."""
