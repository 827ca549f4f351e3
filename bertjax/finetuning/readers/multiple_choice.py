"""Examples of multiple choice: a context, perhaps a question, choices, and which of them is right."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.config.task import TaskConfig
from bertjax.errors import UserError, named
from bertjax.finetuning.readers.examples import ChoiceExamples, ReadRequest
from bertjax.finetuning.readers.labels import is_whole
from bertjax.finetuning.readers.tables import read_rows, require_distinct, require_field_text


class NamedChoices(NamedTuple):
    """The choices of an example, and the names that the data has for them (ARC); () without."""

    texts: list[str]
    names: tuple[str, ...] = ()


def read_choices(request: ReadRequest) -> ChoiceExamples:
    """Reads all examples of tables and records, in order.

    Raises:
        UserError: an example cannot be read, has fewer than two choices, or none that the label names; names file and
            line.
    """
    config, sources, labeled, errors = request
    settings, (context, label) = config.multiple_choice, config.column_names
    columns = [("task.text_column", context)]
    columns += [("task.multiple_choice.question_column", each) for each in (settings.question_column,) if each]
    first = len(columns)
    columns += [("task.multiple_choice.choice_columns", each) for each in settings.choice_columns]
    columns += [("task.multiple_choice.choices_column", settings.choices_column)] * (not settings.choice_columns)
    last = len(columns)
    columns += [("task.id_column", config.id_column)] if config.id_column is not None else []
    columns += [("task.label_column", label)] if labeled else []
    examples = ChoiceExamples([], None if first == 1 else [], [], [] if labeled else None, [], [])
    for source in sources:
        for location, row in read_rows(source, columns, config.header, errors):
            row[0] = joined_turns(row[0])
            texts = [require_field_text(row[index], columns[index][1], location, errors) for index in range(first)]
            value = row[first:last] if settings.choice_columns else row[first]
            choices = parse_choices(value, location)
            examples.contexts.append(texts[0])
            if examples.questions is not None:
                examples.questions.append(texts[1])
            examples.choices.append(choices.texts)
            if examples.answers is not None:
                examples.answers.append(parse_answer(row[-1], choices, location))
            examples.ids.append(str(row[last]) if config.id_column is not None else str(len(examples.locations)))
            examples.locations.append(location)
    require_distinct(examples.ids, examples.locations)
    if empty := sum(not text.strip() for choices in examples.choices for text in choices):
        examples.notes.append(f"{empty:,} choices are empty")
    return examples


def joined_turns(context: Any) -> Any:
    """Returns the turns of a dialogue (DREAM), a list of texts, as lines of one text; anything else as it is."""
    is_dialogue = isinstance(context, list | tuple) and context and all(isinstance(turn, str) for turn in context)
    return "\n".join(context) if is_dialogue else context


def parse_choices(value: Any, where: str) -> NamedChoices:
    """Reads a list of texts, without empty fields at its end, or {text: [...], label: [...]}.

    Args:
        value: the choices.
        where: location of the example.

    Raises:
        UserError: they are not texts, or fewer than two.
    """
    names: Sequence[Any] = ()
    if isinstance(value, Mapping):
        value, names = value.get("text"), value.get("label") or ()
    texts = list(value) if isinstance(value, list | tuple) else []
    while texts and texts[-1] in (None, ""):
        texts.pop()
    if len(texts) < 2:
        raise UserError(
            f"{where}: an example needs at least two choices: a list in "
            f"{named('task.multiple_choice.choices_column')}, or columns in "
            f"{named('task.multiple_choice.choice_columns')}"
        )
    if not all(isinstance(text, str) for text in texts):
        texts = [text if isinstance(text, str) else _number(text, where) for text in texts]
    if names and len(names) != len(texts):
        raise UserError(f"{where}: {len(texts)} choices have {len(names)} names")
    return NamedChoices(
        [require_field_text(text, "choice", where) for text in texts], tuple(str(name) for name in names)
    )


def _number(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: a choice must be text, not {value!r}")
    return str(value)


def parse_answer(value: Any, choices: NamedChoices, where: str) -> int:
    """Returns the index of the right choice: of its name, its number from 0, its letter, or its text.

    Args:
        value: the label.
        choices: the choices of the example.
        where: its location.

    Raises:
        UserError: the label is none of them, or could be two.
    """
    count, text = len(choices.texts), "" if value is None else str(value).strip()
    if text in choices.names:
        return choices.names.index(text)
    number = int(text) if is_whole(text) else None
    if isinstance(value, int) and not isinstance(value, bool):
        candidates = {number} if number is not None else set()
    else:
        candidates = {index for index, choice in enumerate(choices.texts) if choice.strip() == text}
        if number is not None and 0 <= number < count:
            candidates.add(number)
        elif not candidates and len(text) == 1 and text in string.ascii_letters:
            candidates = {string.ascii_lowercase.index(text.lower())}
    right = sorted(index for index in candidates if index is not None and 0 <= index < count)
    if len(right) == 1:
        return right[0]
    reason = "could be more than one of them" if right else "is none of them"
    raise UserError(
        f"{where}: label {value!r} {reason}: give the number of the right one of {count} choices, 0 to {count - 1}, "
        "its letter, or its text"
    )


def field_choices(config: TaskConfig, values: Mapping[str, Any]) -> Any:
    """Returns the choices in a record, as `parse_choices` takes them; None: there are none."""
    settings = config.multiple_choice
    if settings.choice_columns:
        return [values.get(name) for name in settings.choice_columns]
    return values.get(settings.choices_column, values.get("choices"))
