"""A tiny corpus, a tiny config file and one finished run, shared by the tests of the command line."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from docs_site.metric_names import undescribed
from lab import CONFIG, Finished, Lab, sentences
from ml_collections import ConfigDict

from bertjax.cli import main
from bertjax.config.overrides import flatten
from bertjax.config.phases import list_phases
from bertjax.experiment import build
from bertjax.experiment.config import parse
from bertjax.metrics import Metrics
from bertjax.training.run_context import RunContext
from bertjax.types import Vocabulary

NOT_COMPILED = re.compile(
    r"(checkpoint|export|report|logging|profile)\..*|init_(from|embeddings|positions|growth)|eval\.(fill_mask|.*_steps)"
    r"|data\.(sources|eval_sources|cache_dir|workers|eval_fraction|tokenizer|encoding_errors)"
    r"|train\.(log_interval_steps|skip_batches|max_nonfinite|spike_factor)"
)
"""Keys that no compiled step depends on once the vocabulary is fixed."""


@pytest.fixture(scope="session", autouse=True)
def described_metrics() -> Iterator[None]:
    """Whatever a run of any test logs is in the reference of metrics."""
    write = RunContext.write

    def checked(self: RunContext, step: int, metrics: Metrics) -> None:
        assert undescribed(metrics) == [], "describe it in docs_site/metric_names.py, its objective or its kind of task"
        write(self, step, metrics)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunContext, "write", checked)
        yield


@pytest.fixture(scope="session")
def programs() -> dict[Any, build.Experiment]:
    """Experiments by the config values that they are compiled from."""
    return {}


@pytest.fixture(scope="session", autouse=True)
def shared_programs(programs: dict[Any, build.Experiment]) -> Iterator[None]:
    """Runs of equal configs share compiled steps, which saves most of the time of a tiny run."""
    make = build.make_experiment

    def shared(cfg: ConfigDict, vocabulary: Vocabulary, teacher: Any = None, devices: Any = None) -> build.Experiment:
        build.check_devices(cfg, devices)
        compiled = {key: value for key, value in flatten(cfg).items() if not NOT_COMPILED.fullmatch(key)}
        arrays = [value.tobytes() if hasattr(value, "tobytes") else value for value in vars(vocabulary).values()]
        key = repr((compiled, arrays, teacher, devices))
        if key not in programs:
            programs[key] = make(cfg, vocabulary, teacher, devices)
        of_phases = zip(programs[key].programs, list_phases(cfg), strict=True)
        phases = [dataclasses.replace(program, phase=phase) for program, phase in of_phases]
        return dataclasses.replace(programs[key], config=parse(cfg), programs=phases, frozen={}, digests={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_experiment", shared)
        yield


@pytest.fixture
def fresh_programs(programs: dict[Any, build.Experiment]) -> Iterator[None]:
    """Clears the shared programs, for tests that change what is compiled."""
    programs.clear()
    yield
    programs.clear()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    corpus = folder / "corpus.txt"
    documents = ["\n".join(sentences(random.Random(seed).randint(3, 12), seed)) for seed in range(60)]
    corpus.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    config = folder / "tiny.py"
    config.write_text(CONFIG.format(corpus=corpus, cache=folder / "cache"))

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
