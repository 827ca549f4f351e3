"""For any content of a file, readers return examples or raise one `UserError`, and nothing else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.tasks.qa import QuestionAnswering
from bertjax.tasks.readers.examples import read_examples

CASES = [(kind, source) for kind, spec in TASK_KINDS.items() for source in spec.source_kinds if source != "hub"]
GOOD = {
    "parallel": b"the cat\n\nsat on\n",
    "tsv": b"text\tlabel\nthe cat\t1\nsat on\t0\n",
    "csv": b'text,label\n"the, cat",1\nsat on,0\n',
    "conll": b"-DOCSTART- O\n\nEU I-ORG\nsaid O\n\nBonn B-LOC\n",
}
ROWS: dict[str, dict[str, Any]] = {
    "classification": {"text": "cat", "label": 1},
    "multilabel": {"text": "cat", "label": ["a", "b"]},
    "regression": {"text": "cat", "label": 1.5},
    "tokens": {"tokens": ["EU", "said"], "tags": ["B-ORG", "O"]},
    "seq2seq": {"source": "cat", "target": "Katze"},
    "multiple_choice": {"context": "cat", "choices": ["a", "b"], "label": 1},
    "qa": {"id": "1", "question": "?", "context": "a cat", "answers": {"text": ["cat"], "answer_start": [2]}},
}
SQUAD = {"data": [{"paragraphs": [{"context": "a cat", "qas": [{"id": "q", "question": "?", "answers": []}]}]}]}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def good(kind: str, source: str) -> bytes:
    if source == "squad":
        return json.dumps(SQUAD).encode()
    columns = zip((b"text", b"label"), TASK_KINDS[kind].columns, strict=True)
    content = GOOD.get(source, b"")
    for name, column in columns:
        content = content.replace(name, column.encode())
    return content or (json.dumps(ROWS[kind]) + "\n").encode()


def read(kind: str, source: str, content: bytes, errors: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data")
        path.write_bytes(content)
        where = f"{path}:{path}" if source == "parallel" else path
        config = TaskConfig(kind, (f"{source}:{where}",), max_length=384, spec=QuestionAnswering(allow_no_answer=True))
        try:
            examples = read_examples(config, errors=errors)
            config.spec.collect_labels(config, examples)
        except UserError as error:
            assert "\n" not in str(error)
            return
        assert len(examples) == len(examples.locations) == len(examples.ids) > 0


@pytest.mark.parametrize(("kind", "source"), CASES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_bytes_of_all_kinds(kind: str, source: str, data: st.DataObject) -> None:
    content = bytearray(good(kind, source))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(
            st.sampled_from([b"\t", b"\n", b'"', b"\x00", b"\xff", b"\\ud800", b"[", b"}", b"-1", b"null"])
        )
    read(kind, source, bytes(content), data.draw(st.sampled_from(["strict", "replace"])))


@pytest.mark.parametrize("kind", list(ROWS))
@settings(max_examples=25)
@given(data=st.data())
def test_json_of_all_kinds(kind: str, data: st.DataObject) -> None:
    row = dict(ROWS[kind])
    row[data.draw(st.sampled_from(list(row)))] = data.draw(JUNK)
    read(kind, "jsonl", json.dumps(row).encode(), "strict")
    content: Any = json.loads(json.dumps(SQUAD))
    position = content
    for step in data.draw(
        st.sampled_from([("data",), ("data", 0), ("data", 0, "paragraphs"), ("data", 0, "paragraphs", 0)])
    ):
        where, position = position, position[step]
    where[step] = data.draw(JUNK)
    if kind == "qa":
        read(kind, "squad", json.dumps(content).encode(), "strict")
