"""Suites of tasks: every model on every task, with seeds, in one table; what is missing or fails is a line of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from bertjax.commands.arguments import File, Flag, Folder, Grid, NewWorkdir, Overrides, Seeds
from bertjax.commands.eval_minimal_pairs import eval_minimal_pairs
from bertjax.commands.eval_sts import eval_sts
from bertjax.commands.predict import predict
from bertjax.commands.pretrain import read_grid, read_seeds, train_all
from bertjax.commands.signatures import command
from bertjax.config.source_files import source_files
from bertjax.config.sources import parse_task_source
from bertjax.config.suites import SuiteTask, read_suites
from bertjax.errors import UserError, named
from bertjax.experiment.config import load_config
from bertjax.experiment.suite_data import (
    HELD_OUT,
    fill_templates,
    fill_test_file,
    hold_out,
    why_absent,
    why_missing,
    with_packed_files,
)
from bertjax.experiment.sweep import SweepResult
from bertjax.io import atomic
from bertjax.io.staging import display_path, local_copy
from bertjax.metrics import best_of
from bertjax.report.comparability import unique_names
from bertjax.report.suite import SuiteResult, SuiteScores, write_results


@command
def suite(
    tasks: Annotated[Sequence[str], Flag("tasks", metavar="FILE|PRESET", nargs="+")],
    models: Annotated[Sequence[str], Flag("--model", metavar="FOLDER", repeated=True)],
    workdir: NewWorkdir,
    overrides: Overrides = None,
    *,
    seeds: Seeds = None,
    grid: Grid = None,
    data: Annotated[Folder | None, Flag(type=Path, metavar="FOLDER")] = None,
    submit: Annotated[Folder | None, Flag(type=Path, metavar="FOLDER")] = None,
) -> SuiteScores:
    """Finetune and score models on the tasks of a suite, such as GLUE, in one table.

    Args:
        tasks: .json files of tasks, or glue, superglue, blimp
        models: a Hugging Face folder, an export, a run or hub:NAME; repeatable, one column each
        workdir: directory of all runs, of suite.json, suite.md and suite.html
        grid: values to choose from on a tenth of the training examples with the first seed (repeatable)
        data: in place of {data} in the sources; presets need it: a folder in the published layout, or a data set of
            the Hub, hub:nyu-mll/glue or hub:aps/super_glue
        submit: folder for predictions of the test files, in the format of GLUE and SuperGLUE

    Returns:
        The results of all tasks and models; `str` is the table. The command exits with 1 if a task failed, not
        if one is missing.

    Raises:
        UserError: a suite cannot be read, or names a task twice.
        KeyboardInterrupt: after Ctrl-C, when the state is saved; the same call resumes.

    Example:
        bertjax suite glue --data glue --model runs/base --seeds 0,1,2 --workdir runs/glue
    """
    on_hub = os.fspath(data or "").startswith("hub:")
    listed = read_suites([tasks] if isinstance(tasks, str) else tasks, on_hub)
    if data is None and any("{data}" in source for task in listed for source in task.sources):
        raise UserError(f"{named('data')} is missing: the folder of the data of {', '.join(tasks)}")
    models = [models] if isinstance(models, str | os.PathLike) else models
    names = unique_names([Path(model) for model in models])
    if len(set(names)) < len(names):
        raise UserError(f"{named('models')} names a model twice: {', '.join(names)}")
    folder = local_copy(workdir)
    run_seeds = (read_seeds(seeds) if isinstance(seeds, str) else list(seeds or ())) or [0]
    runner = _Runner(folder, run_seeds, read_grid(grid), dict(overrides or {}), Path(submit) if submit else None)
    prepared = [with_packed_files(task.with_data(os.fspath(data or ""))) for task in listed]
    scores = SuiteScores(listed, names, {}, _protocol(runner.seeds, runner.grid))
    for task in prepared:
        for name, model in zip(names, models, strict=True):
            print(f"--- {task.name}, {name}")
            scores.results[task.name, name] = runner(task, name, os.fspath(model), scores)
            write_results(folder, scores)
    print(f"table: {display_path(folder / 'suite.html')}")
    return scores


def _protocol(seeds: Sequence[int], grid: Mapping[str, Sequence[Any]]) -> str:
    chosen = (
        f" {', '.join(grid)} chosen with seed {seeds[0]} on {HELD_OUT:.0%} of the training examples, never on those."
        if grid
        else " Nothing is chosen per task: settings are those of the recipes."
    )
    return (
        "Scores on the examples of `eval` (the dev sets of the presets), with the weights of the last epoch unless "
        f"task.export_checkpoint=best.{chosen} Median and sample standard deviation of {len(seeds)} "
        f"seed{'s' if len(seeds) > 1 else ''} ({', '.join(map(str, seeds))})."
    )


class _Runner:
    """Runs tasks; a stored result of the same task, model and settings is read instead."""

    def __init__(
        self,
        workdir: Path,
        seeds: Sequence[int],
        grid: Mapping[str, Sequence[Any]],
        overrides: Mapping[str, Any],
        submit: Path | None,
    ) -> None:
        self.workdir, self.seeds, self.grid, self.overrides, self.submit = workdir, seeds, grid, overrides, submit

    def __call__(self, task: SuiteTask, name: str, model: str, scores: SuiteScores) -> SuiteResult:
        """Returns the result of a task, with the error in place of scores if it fails."""
        folder = self.workdir / name.replace("/", "_") / task.name
        try:
            reason = why_missing(task)
            start = scores.results.get((task.start, name)) if task.start else None
            if not reason and task.start and (start is None or not start.scores):
                reason = f"starts from {task.start}, which has no scores"
            if reason:
                return SuiteResult("missing", reason)
            if start is not None:
                model = start.best_run(scores.task(str(task.start)).metric)
            key = json.loads(json.dumps([vars(task), model, self.seeds, self.grid, self.overrides], default=str))
            result = _stored(folder / "result.json", key)
            if result is None:
                result = self._finetune(task, model, folder) if task.command == "finetune" else _measure(task, model)
                unknown = [metric for metric in (*task.metric, *task.show) if metric not in result.scores]
                if unknown:
                    raise UserError(f"no metric {unknown[0]!r}; there are {', '.join(result.scores)}")
                folder.mkdir(parents=True, exist_ok=True)
                atomic.write_json(folder / "result.json", {"key": key, **vars(result)})
            if self.submit is not None:
                out = self.submit if len(scores.models) == 1 else self.submit / folder.parent.name
                self._submit(task, result, out, folder / "data")
        except (UserError, OSError) as error:
            return SuiteResult("failed", str(error))
        return result

    def _finetune(self, task: SuiteTask, model: str, folder: Path) -> SuiteResult:
        task = fill_templates(task, folder / "data")
        keys = {"init_from": model, "task.train": task.train, "task.eval": task.eval}
        cfg = load_config(task.recipe, {**keys, **task.settings, **self.overrides})
        chosen: Mapping[str, str] = {}
        if self.grid:
            split = load_config(cfg, hold_out(cfg, folder / "data"))
            points = train_all(split, folder / "grid", self.seeds[:1], self.grid)
            chosen = dict(_best(points, task.metric).point.settings)
            cfg = load_config(cfg, chosen)
        (trained,) = train_all(cfg, folder / "runs", self.seeds, {})
        scores: dict[str, list[float]] = {}
        for seed, run in trained.workdirs.items():
            metrics = {name.removeprefix("eval/"): value for name, value in trained.metrics[seed].items()}
            for name, sources in task.evals.items():
                scored = predict(run, [File(source) for source in sources], score=True, out=os.devnull).metrics or {}
                metrics |= {f"{name}/{metric.removeprefix('eval/')}": value for metric, value in scored.items()}
            for metric, value in metrics.items():
                scores.setdefault(metric, []).append(float(value))
        return SuiteResult("done", "", scores, chosen, [str(run) for run in trained.workdirs.values()])

    def _submit(self, task: SuiteTask, result: SuiteResult, folder: Path, data: Path) -> None:
        """Writes the predictions of the run with the best score, for test files that exist, to `folder`."""
        for name, entry in task.submit.items():
            if reason := why_absent(parse_task_source(entry["source"], "submit")):
                print(f"no {name}: {reason}")
                continue
            entry = fill_test_file(task, name, data)
            settings = {key: value for key, value in entry.items() if key not in ("source", "labels")}
            records = predict(result.best_run(task.metric), [File(entry["source"])], **settings)
            folder.mkdir(parents=True, exist_ok=True)
            write = _superglue_rows if name.endswith(".jsonl") else _glue_rows
            atomic.write_text(folder / name, "".join(f"{row}\n" for row in write(records, entry.get("labels", {}))))


def _glue_rows(records: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Iterator[str]:
    """Yields predictions as GLUE wants them: labels, or similarities of 0 to 5."""
    yield "index\tprediction"
    for index, record in enumerate(records):
        similarity = "" if "label" in record else f"{min(max(record['score'], 0.0), 5.0):.3f}"
        yield f"{index}\t{similarity or labels.get(record['label'], record['label'])}"


def _superglue_rows(records: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Iterator[str]:
    """Yields predictions as SuperGLUE wants them: the number of an example, and its label or the number of a choice."""
    for record in records:
        label = record["choice"] if "choice" in record else labels.get(record["label"], record["label"])
        yield json.dumps({"idx": int(record["id"]), "label": label})


def _best(points: Sequence[SweepResult], metric: Sequence[str]) -> SweepResult:
    def score(point: SweepResult) -> float:
        return sum(point.mean(f"eval/{name}") for name in metric) / len(metric)

    return best_of(f"eval/{metric[0]}", points, score)


def _measure(task: SuiteTask, model: str) -> SuiteResult:
    """Scores a model that is not trained."""
    if task.command == "eval-minimal-pairs":
        files = [path for file in task.eval for path in source_files(parse_task_source(f"jsonl:{file}", "eval"))]
        accuracies = eval_minimal_pairs(model, files, **task.settings)
        groups = {f"accuracy of {name}": [score.accuracy] for name, score in accuracies.groups.items()}
        means = {"accuracy": [accuracies.overall.accuracy], "macro_accuracy": [accuracies.macro_accuracy]}
        return SuiteResult("done", "", {**means, **groups})
    correlations = eval_sts(model, list(task.eval), **task.settings).scores
    return SuiteResult("done", "", {name: [float(value)] for name, value in correlations._asdict().items()})


def _stored(path: Path, key: Any) -> SuiteResult | None:
    """Returns the result of an earlier call with the same settings."""
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None  # scored again: the runs are still there
    return SuiteResult(**stored) if stored.pop("key", None) == key else None
