"""A tiny corpus, a tiny config file and one finished run that the tests of the command line share."""

from __future__ import annotations

import random

import jax
import pytest
from lab import CONFIG, Finished, Lab, sentences

from bertjax.cli import main


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    corpus = folder / "corpus.txt"
    documents = ["\n".join(sentences(random.Random(seed).randint(3, 12), seed)) for seed in range(60)]
    corpus.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    config = folder / "tiny.py"
    config.write_text(CONFIG.format(corpus=corpus, cache=folder / "cache"))
    # The same small steps are compiled by test after test.
    jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

    def run(command: str, *arguments: object) -> int:
        config_arguments = () if command in ("export", "evaluate") else ("--config", str(config))
        return main([command, *config_arguments, *map(str, arguments)])

    return Lab(folder, corpus, config, run)


@pytest.fixture(scope="session")
def finished(lab: Lab) -> Finished:
    import contextlib
    import io

    workdir, printed = lab.folder / "finished", io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert lab.run("pretrain", "--workdir", workdir) == 0
    return Finished(workdir, printed.getvalue())
