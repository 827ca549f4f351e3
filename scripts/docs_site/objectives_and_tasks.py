"""The tables of objectives and kinds of tasks, from the attributes of their configs."""

from __future__ import annotations

from bertjax.config.extensions import OBJECTIVES, TASK_KINDS


def objectives_and_tasks() -> str:
    """Returns one table of the values of `objective.name` and one of those of `task.kind`."""
    rows = ["| `objective.name` | title | losses | example formats | mask token | packing | teacher |"]
    rows += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name, config in OBJECTIVES.items():
        if not config.is_finetuning:
            losses = " ".join(f"`{loss}`" for loss in config.loss_titles) or "those of its members"
            formats = " ".join(f"`{each}`" for each in config.example_formats)
            facts = (config.needs_mask_token, config.can_pack, config.uses_teacher)
            rows.append(f"| `{name}` | {config.title} | {losses} | {formats} | " + " | ".join(map(_yes, facts)) + " |")
    rows += ["", "| `task.kind` | title | sources | metrics | best by |", "| --- | --- | --- | --- | --- |"]
    for name, spec in TASK_KINDS.items():
        sources = " ".join(f"`{kind}:`" for kind in spec.source_kinds)
        rows.append(f"| `{name}` | {spec.title} | {sources} | {', '.join(spec.metrics)} | `eval/{spec.main_metric}` |")
    return "\n".join(rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
