"""Labeled files of every format become examples; errors name file and line."""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext as does_not_raise
from pathlib import Path
from typing import Any

import pytest
from tokens_lab import task_config

from bertjax.config.source_files import source_files
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.tasks.readers.examples import GoldAnswers, QaExamples, TextExamples, WordExamples, read_examples
from bertjax.tasks.readers.labels import collect_labels, encode_labels
from bertjax.tasks.readers.tables import hub_rows


def require_files(config: TaskConfig) -> None:
    for source in (*config.sources("train"), *config.sources("eval")):
        source_files(source)


def texts(
    path: Path | str, content: str | bytes, source: str = "tsv", labeled: bool = True, **values: Any
) -> TextExamples:
    data = content if isinstance(content, bytes) else content.encode()
    Path(path).write_bytes(gzip.compress(data) if str(path).endswith(".gz") else data)
    config = task_config(**{"kind": "classification", "train": (f"{source}:{path}",)} | values)
    result = read_examples(config, labeled=labeled)
    assert isinstance(result, TextExamples)
    return result


TSV = 'sentence\tlabel\nan "unpaired quote \t1\n\nlast\t0'


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a[1].tsv"])
def test_tsv_has_no_quoting(tmp_path: Path, name: str) -> None:
    result = texts(tmp_path / name, TSV, text_column="sentence")
    assert result.texts == ['an "unpaired quote ', "last"] and result.labels == ["1", "0"]
    assert result.ids == ["0", "1"] and result.pairs is None
    assert [result.locations[i] for i in range(2)] == [f"{tmp_path / name}:2", f"{tmp_path / name}:4"]


def test_a_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfQuality\t#1 String\t#2 String\r\n1\tx\ty\r\n0\tu\tv"
    columns = {"label_column": "Quality", "text_column": "#1 String", "pair_column": "#2 String"}
    result = texts(tmp_path / "a", content, **columns)
    assert (result.texts, result.pairs, result.labels) == (["x", "u"], ["y", "v"], ["1", "0"])


def test_columns_by_number_without_a_header(tmp_path: Path) -> None:
    result = texts(
        tmp_path / "a", "x\t1\tone\ny\t2\ttwo\n", header=False, text_column="0", label_column="-1", id_column="1"
    )
    assert (result.texts, result.labels, result.ids) == (["x", "y"], ["one", "two"], ["1", "2"])


@pytest.mark.parametrize("first", ["0\tx", "label\tsentence"])
def test_numbers_alone_do_not_tell_whether_there_is_a_header(tmp_path: Path, first: str) -> None:
    """Otherwise the first line would be lost if it is an example, or trained on if it is a header."""
    columns = {"text_column": "1", "label_column": "0"}
    with pytest.raises(UserError, match=r"a:1: .*text_column=1, task.label_column=0.*set task.header=true or task."):
        texts(tmp_path / "a", f"{first}\n1\ty\n", **columns)
    assert len(texts(tmp_path / "a", f"{first}\n1\ty\n", header=False, **columns)) == 2
    assert len(texts(tmp_path / "a", f"{first}\n1\ty\n", header=True, **columns)) == 1
    assert texts(tmp_path / "a", "0\tsentence\n1\ty\n", text_column="sentence", label_column="0").labels == ["1"]


def test_csv_is_quoted(tmp_path: Path) -> None:
    result = texts(tmp_path / "a", 'text,label\n"a, ""b""\nc",pos\nd,neg\n', "csv")
    assert result.texts == ['a, "b"\nc', "d"] and result.labels == ["pos", "neg"]
    assert result.locations[1] == f"{tmp_path / 'a'}:4"


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": True}, {"text": "c", "label": "x "}]
    result = texts(tmp_path / "a", "\n".join(map(json.dumps, rows)) + "\n \n", "jsonl")
    assert result.labels == ["1", "true", "x"]


def test_regression_reads_numbers(tmp_path: Path) -> None:
    result = texts(tmp_path / "a", "text\tlabel\nx\t-2.5\ny\t3", kind="regression")
    assert result.scores == [-2.5, 3.0] and result.labels is None


def test_globs_are_sorted_and_labels_can_be_left(tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / f"{name}.tsv").write_text(f"text\n{name}\n")
    config = TaskConfig("classification", (f"tsv:{tmp_path}/*.tsv",))
    result = read_examples(config, labeled=False)
    assert isinstance(result, TextExamples) and result.texts == ["a", "b"] and result.labels is None
    assert read_examples(config, labeled=False, sources=[f"tsv:{tmp_path}/b.tsv"]).texts == ["b"]  # type: ignore[union-attr]


@pytest.mark.parametrize("where", ["{0}/t.en:{0}/t.de", "{0}/t:en-de"])
def test_parallel_files(tmp_path: Path, where: str) -> None:
    (tmp_path / "t.en").write_text("a house\n\nthe\ttabs\r\nlast\n")
    (tmp_path / "t.de.gz").write_bytes(gzip.compress("ein Haus\nleer\ndie Tabs\nHälfte\u2028eins".encode()))
    where = where.format(tmp_path).replace("t.de", "t.de.gz" if where.count("t.") == 2 else "t.de")
    config = TaskConfig("seq2seq", (f"parallel:{where}",))
    result = read_examples(config)
    assert isinstance(result, TextExamples)
    assert result.texts == ["a house", "", "the\ttabs", "last"] and result.locations[2] == f"{tmp_path / 't.en'}:3"
    assert result.labels == ["ein Haus", "leer", "die Tabs", "Hälfte\u2028eins"]
    require_files(config)
    (tmp_path / "t.en").write_text("one\ntwo\n")
    with pytest.raises(UserError, match=r"t.en has 2 lines, .*t.de.gz has 4; line i of one belongs to line i"):
        read_examples(config)
    (tmp_path / "t.en").write_text("1\n" * 9)
    with pytest.raises(UserError, match=r"t.en has 9 lines, .*t.de.gz has 4"):
        read_examples(config)
    (tmp_path / "t.en").unlink()
    with pytest.raises(UserError, match=r"task.train: 'parallel:.*': no such file: .*t.en; relative to"):
        require_files(config)


def test_one_parallel_file_is_not_enough() -> None:
    with pytest.raises(UserError, match=r"'parallel:a.en': names one file; write parallel:SOURCE:TARGET, or"):
        require_files(TaskConfig("seq2seq", ("parallel:a.en",)))


def test_fields_inside_fields(tmp_path: Path) -> None:
    """As in data sets of translations."""
    rows = [{"translation": {"en": "a", "de": "b"}, "x.y": "1"}, {"translation": {"en": "c", "de": "d"}, "x.y": "2"}]
    content, columns = (
        "\n".join(map(json.dumps, rows)),
        {"label_column": "translation.de", "text_column": "translation.en"},
    )
    result = texts(tmp_path / "a", content, "jsonl", id_column="x.y", **columns)
    assert (result.texts, result.labels, result.ids) == (["a", "c"], ["b", "d"], ["1", "2"])
    with pytest.raises(UserError, match=r"a:1: no field 'fr' \(it has en, de\); set task.label_column to one"):
        texts(tmp_path / "a", content, "jsonl", **columns | {"label_column": "translation.fr"})


def test_translations_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    features = datasets.Features({"translation": datasets.Translation(languages=["en", "de"])})
    data = datasets.Dataset.from_dict({"translation": [{"en": "a", "de": "b"}]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda path, name, split, streaming: data)
    columns = [("task.text_column", "translation.en"), ("task.label_column", "translation.de")]
    assert list(hub_rows("wmt14:de-en", columns)) == [("hub data set wmt14:de-en, row 1", ["a", "b"])]
    with pytest.raises(UserError, match=r"no field 'cs' \(it has de, en\)"):
        list(hub_rows("wmt14", [("task.text_column", "translation.cs")]))


def test_empty_texts_are_reported(tmp_path: Path) -> None:
    assert texts(tmp_path / "a", "text\tlabel\n \t1\nx\t0\n").notes == ["1 texts are empty"]


BAD = [
    ("tsv", "a\tb\tlabel\nx\ty\t1\n", {}, r"a:1: no column 'text' \(it has a, b, label\); set task.text_column to one"),
    ("tsv", "text\tlabel\nx\t1\ny\n", {}, r"a:3: 1 columns, but line 1 has 2"),
    ("tsv", "text\ttext\tlabel\nx\ty\t1\n", {}, r"a:1: two columns are named 'text'"),
    ("tsv", "text\tlabel\nx\t \n", {}, r"a:2: no label in the column of task.label_column"),
    ("tsv", "text\tlabel\n", {}, r"task.train: tsv:.*a holds no example"),
    ("tsv", "", {}, r"holds no example"),
    ("tsv", b"text\tlabel\nx\t1\ny\xff\t0\n", {}, r"a:3: invalid UTF-8"),
    (
        "tsv",
        "text\tlabel\nx\tgood\n",
        {"kind": "regression"},
        r"a:2: task.kind=regression needs a finite number .*'good'",
    ),
    ("tsv", "text\tlabel\nx\tinf\n", {"kind": "regression"}, r"a:2: .* needs a finite number"),
    (
        "tsv",
        "text\tlabel\tid\nx\t1\t7\ny\t0\t8\nz\t1\t7\n",
        {"id_column": "id"},
        r"a:4: id '7' again, it is that of .*a:2",
    ),
    (
        "tsv",
        "x\t1\n",
        {"header": False, "text_column": "0", "label_column": "2"},
        r"a:1: no column '2' \(it has 0, 1\)",
    ),
    ("csv", 'text,label\nx,1\n"y,0\n', {}, r"a:3: broken csv"),
    ("jsonl", '{"text": "x", "label": 1}\n{"text": \n', {}, r"a:2: broken JSON"),
    ("jsonl", "[1]\n", {}, r"a:1: a list where a JSON object is expected"),
    (
        "jsonl",
        '{"txt": "x", "title": "y", "label": 1}\n',
        {},
        r"a:1: no field 'text' \(it has txt, title, label\); set task.text_column to one",
    ),
    ("jsonl", '{"text": 3, "label": 1}\n', {}, r"a:1: field 'text' holds int where text is expected"),
    ("jsonl", '{"text": "\\ud800", "label": 1}\n', {}, r"a:1: half a surrogate pair"),
    ("jsonl", '{"text": "x", "label": null}\n', {}, r"a:1: no label"),
]


@pytest.mark.parametrize(("kind", "content", "values", "message"), BAD)
def test_broken_tables(tmp_path: Path, kind: str, content: str | bytes, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        texts(tmp_path / "a", content, kind, **{"kind": "classification"} | values)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for where, message in (("none.tsv", "no such file"), ("*.tsv", "no file matches"), (".", "is a directory")):
        with pytest.raises(UserError, match=f"task.eval: .*{message}"):
            (tmp_path / "a").write_text("text\tlabel\n")
            require_files(TaskConfig("classification", (f"tsv:{tmp_path}/a",), (f"tsv:{tmp_path}/{where}",)))


def test_labels_are_sorted_or_explicit(tmp_path: Path) -> None:
    def names(values: list[str], **options: Any) -> tuple[str, ...]:
        result = texts(tmp_path / "a", "text\tlabel\n" + "".join(f"x\t{value}\n" for value in values))
        return collect_labels(TaskConfig("classification", ("tsv:a",), **options), result)

    assert names(["10", "9", "1", "-2"]) == ("-2", "1", "9", "10")
    zeros = ["0" * count + "7" for count in range(8)]  # equal as numbers: the seed of hashes does not order them
    assert names(["8", *zeros]) == (*zeros[::-1], "8")
    assert names(["no", "10", "Yes"]) == ("10", "Yes", "no")
    assert names(["a", "b"], labels=("c", "a")) == ("c", "a")
    with pytest.raises(UserError, match=r"numbers such as 0.5, 2 different ones: set task.kind=regression"):
        names(["0.5", "1"])
    with pytest.raises(UserError, match=r"every example has the label 'a'"):
        names(["a", "a"])


def test_labels_to_numbers(tmp_path: Path) -> None:
    """Whole numbers are ids where `task.labels` names the ids: sorted names do not, nor does a list with numbers."""
    content = "text\tlabel\nx\tpos\ny\t1\nz\tneg\nz\tsomewhat\n"

    def encode(labels: tuple[str, ...], count: int = 3, configured: bool = True) -> list[int]:
        result = texts(tmp_path / "a", content, labels=labels if configured else ())
        assert result.labels is not None
        return encode_labels(labels, result.labels[:count], result.locations).tolist()

    assert encode(("pos", "neg")) == [0, 1, 1]
    assert words(tmp_path / "b", "a\t1\nb\tO\n", labels=("O", "B-X")).tags == [["B-X", "O"]]
    with pytest.raises(UserError, match=r"a:5: unknown label 'somewhat'; known are pos, neg"):
        encode(("pos", "neg"), 4)
    with pytest.raises(UserError, match=r"a:3: unknown label '1'; known are neg, pos .* task.labels in the order of"):
        encode(("neg", "pos"), configured=False)
    for labels in (("pos", "2"), ("pos", "neg", "1")):
        with pytest.raises(UserError, match=r"a:3: unknown label '1'") if "1" not in labels else does_not_raise():
            assert encode(labels) == [0, 2, 1]


CONLL = "-DOCSTART- -X- O\n\nEU NNP I-ORG\nsaid VBD O\n\n \nBonn NNP I-LOC\nParis NNP B-LOC\n-DOCSTART- -X- O\nHe PRP O"


def words(path: Path, content: str, source: str = "conll", labeled: bool = True, **values: Any) -> WordExamples:
    path.write_text(content)
    result = read_examples(task_config(**{"kind": "tokens", "train": (f"{source}:{path}",)} | values), labeled=labeled)
    assert isinstance(result, WordExamples)
    return result


def test_conll_columns(tmp_path: Path) -> None:
    result = words(tmp_path / "a", CONLL, tag_scheme="plain")
    assert result.words == [["EU", "said"], ["Bonn", "Paris"], ["He"]]
    assert result.tags == [["I-ORG", "O"], ["I-LOC", "B-LOC"], ["O"]] and not result.notes
    assert [result.locations[i] for i in range(3)] == [f"{tmp_path / 'a'}:{line}" for line in (3, 7, 10)]
    assert words(tmp_path / "a", CONLL, label_column="1", tag_scheme="plain").tags == [
        ["NNP", "VBD"],
        ["NNP", "NNP"],
        ["PRP"],
    ]
    assert words(tmp_path / "a", "New York\tB-LOC\nis\tO\n").words == [["New York", "is"]]
    assert words(tmp_path / "a", "one\ntwo\n", labeled=False).words == [["one", "two"]]


CONLLU = """# newdoc
# text = Give them to me this very day
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
2.1\tx\t_\tVERB\t_\t_\t_\t_\t_\t_
3\t#\t#\tSYM\tS\t_\t1\tobj\t_\t_

# sent_id = 2
1\ta\ta\tX\tX\t_\t0\troot\t_\t_
"""


def test_the_format_of_universal_dependencies(tmp_path: Path) -> None:
    """Without comments, words that are written as one, and words left out; FORM and UPOS by default."""
    result = words(tmp_path / "a", CONLLU)
    assert result.words == [["vamos", "nos", "#"], ["a"]] and result.tags == [["VERB", "PRON", "SYM"], ["X"]]
    assert words(tmp_path / "a", CONLLU, label_column="4").tags == [["V", "P", "S"], ["X"]]
    assert words(tmp_path / "a", CONLLU, labeled=False).words == result.words
    assert [where.rpartition(":")[2] for where in result.locations] == ["4", "10"] and not result.notes


@pytest.mark.parametrize(
    ("content", "expected", "comments"),
    [
        ("# id 7\tdomain=en\na _ _ O\n\n# id = 5\nb _ _ O\n# _ _ O\n\n# _ _ B-X\n", [["a"], ["b", "#"], ["#"]], 2),
        ("# one\na\tO\n\n#\tO\n#b\tO\n\n#\thttp://x\t2009\n#tag\tO\n", [["a"], ["#", "#b"], ["#tag"]], 2),
        ("#a O\n# O\n\n# newdoc\n\n#\n#b B-X\n", [["#a", "#"], ["#b"]], 2),
    ],
    ids=["blanks", "tabs", "no other lines"],
)
def test_comments_of_other_columns(tmp_path: Path, content: str, expected: list[list[str]], comments: int) -> None:
    """Lines before the first word of a sentence that begin with # and do not look like words."""
    result = words(tmp_path / "a", content)
    assert result.words == expected
    assert result.notes == [f"{tmp_path / 'a'}: {comments} lines that begin with # are comments"]


def test_tags_of_lists(tmp_path: Path) -> None:
    row = {"tokens": ["EU", "said"], "tags": ["B-ORG", "O"], "n": 4}
    result = words(tmp_path / "a", json.dumps(row), "jsonl", id_column="n")
    assert (result.words, result.tags, result.ids) == ([["EU", "said"]], [["B-ORG", "O"]], ["4"])
    assert words(tmp_path / "a", json.dumps(row | {"tags": [3, 0]}), "jsonl").tags == [["3", "0"]]


BAD_WORDS = [
    ("conll", "a\tO\nhere\t\n", {}, r"a:2: no label in the column of task.label_column"),
    ("jsonl", '{"tokens": ["a"], "tags": [""]}', {}, r"a:1: no label in the column of task.label_column"),
    ("jsonl", '{"tokens": ["a"], "tags": [null]}', {}, r"a:1: no label in the column of task.label_column"),
    ("jsonl", '{"tokens": ["a"], "tags": ["\\ud800"]}', {}, r"a:1: half a surrogate pair in 'label'"),
    ("conll", "EU B-ORG\nsaid\n", {}, r"a:2: 1 columns, but the file begins with 2"),
    ("conll", "EU\n", {}, r"a:1: words and tags are both read from column 0"),
    ("conll", "EU O\n", {"label_column": "3"}, r"a:1: no column '3' \(it has 0, 1\); set task.label_column"),
    ("conll", "EU O\n", {"id_column": "1"}, r"sentences of CoNLL files have no ids"),
    ("conll", "-DOCSTART- O\n\n", {}, r"holds no example"),
    ("jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', {}, r"a:1: 2 words, but 1 tags"),
    ("jsonl", '{"tokens": "a b", "tags": ["O"]}', {}, r"a:1: field 'tokens' holds str where a list is expected"),
    ("conll", "EU B-ORG\nX NN\n", {"tag_scheme": "iob2"}, r"a:1: tag 'NN' is neither O nor B-TYPE nor I-TYPE"),
    (
        "conll",
        "a O\n\nb O\nc I-X\nd I-X\n\ne I-X\n",
        {"tag_scheme": "iob2"},
        r"a:3: word 2 .* with 'I-X'.* \(2 such words",
    ),
]


@pytest.mark.parametrize(("kind", "content", "values", "message"), BAD_WORDS)
def test_broken_sentences(tmp_path: Path, kind: str, content: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        words(tmp_path / "a", content, kind, **values)


IOB = [
    ("I-PER I-PER O I-LOC", "B-PER I-PER O B-LOC"),
    ("I-PER B-PER I-PER", "B-PER B-PER I-PER"),  # two of one type touch
    ("I-PER I-LOC I-LOC", "B-PER B-LOC I-LOC"),
    ("B-PER I-LOC", "B-PER B-LOC"),
    ("O B-X I-X", "O B-X I-X"),
]


@pytest.mark.parametrize(("iob1", "iob2"), IOB)
def test_iob1_becomes_iob2(tmp_path: Path, iob1: str, iob2: str) -> None:
    lines = "".join(f"w {tag}\n" for tag in iob1.split())
    count = sum(a != b for a, b in zip(iob1.split(), iob2.split(), strict=True))
    for scheme in ("auto", "iob1"):
        result = words(tmp_path / "a", lines, tag_scheme=scheme)
        assert result.tags == [iob2.split()]
        assert result.notes == [f"tags were IOB1: {count} entities that I- opened now begin with B- (IOB2)"] * (
            count > 0
        )


def squad(path: Path, content: Any, source: str = "squad", labeled: bool = True, **values: Any) -> QaExamples:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    result = read_examples(
        task_config(**{"kind": "qa", "train": (f"{source}:{path}",), "max_length": 384} | values), labeled=labeled
    )
    assert isinstance(result, QaExamples)
    return result


def file_of(*paragraphs: Any) -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": list(paragraphs)}]}


def qas(name: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    return {"id": name, "question": f"{name}?", "answers": [{"text": t, "answer_start": s} for t, s in answers]} | more


CONTEXT = "A cat sat."


def test_squad(tmp_path: Path) -> None:
    content = file_of(
        {"context": CONTEXT, "qas": [qas("q1", ("cat", 2), ("A cat", 0)), qas("q2", ("sat", 6))]},
        {"context": "B.", "qas": [qas("q3", is_impossible=True)]},
        {"context": CONTEXT, "qas": [qas("q4", ("x", 0), is_impossible=True)]},
    )
    result = squad(tmp_path / "a", content, allow_no_answer=True)
    assert result.contexts == [CONTEXT, "B."] and result.context_of == [0, 0, 1, 0]
    assert result.questions == ["q1?", "q2?", "q3?", "q4?"] and result.ids == ["q1", "q2", "q3", "q4"]
    assert result.answers is not None and result.answers[0] == GoldAnswers(("cat", "A cat"), (2, 0))
    assert result.answers[2:] == [GoldAnswers((), ())] * 2
    assert (
        squad(tmp_path / "a", file_of({"context": "B.", "qas": [{"id": "q", "question": "?"}]}), labeled=False).answers
        is None
    )


def test_squad_as_json_lines(tmp_path: Path) -> None:
    row = {"id": 5, "question": "q", "context": CONTEXT, "answers": {"text": ["cat"], "answer_start": [2]}}
    other = row | {"id": "6", "answers": [{"text": "cat", "answer_start": 2}]}
    result = squad(tmp_path / "a", f"{json.dumps(row)}\n{json.dumps(other)}", "jsonl")
    assert result.answers == [GoldAnswers(("cat",), (2,))] * 2 and result.ids == ["5", "6"]
    for answers in ({"text": "cat", "answer_start": [2]}, {"text": ["cat", "a"], "answer_start": [2]}, [{"text": 1}]):
        with pytest.raises(
            UserError, match=r"a:1 \('5'\): (answers must be texts|2 answers, but not as many answer_start)"
        ):
            squad(tmp_path / "a", json.dumps(row | {"answers": answers}), "jsonl")


BAD_SQUAD = [
    ('{"data": [', r"a: broken JSON"),
    ({"paragraphs": []}, r"a: no 'data' where one is expected; squad: reads the JSON of SQuAD"),
    (file_of({"context": "c", "qas": [{"id": "1", "answers": []}]}), r"a: question 1: no 'question'"),
    (file_of({"context": "c", "qas": 3}), r"a: question 1: 'qas' is not a list"),
    (
        file_of({"context": CONTEXT, "qas": [qas("q1", ("cat", 2)), qas("q2", (7, 0))]}),
        r"question 2 \('q2'\): answers must be texts.*; task.qa.skip_invalid=true leaves such questions out",
    ),
    (
        file_of({"context": CONTEXT, "qas": [qas("q")]}),
        r"question 1: question 'q' has no answer; set task.qa.allow_no_answer=true",
    ),
    (file_of({"context": CONTEXT, "qas": [qas("q", ("cat", 2)), qas("q", ("sat", 6))]}), r"question 2: id 'q' again"),
    (file_of(), r"holds no example"),
]


@pytest.mark.parametrize(("content", "message"), BAD_SQUAD)
def test_broken_squad(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        squad(tmp_path / "a", content)


def test_one_bad_answer_does_not_end_a_file(tmp_path: Path) -> None:
    """Official CMRC 2018 has answers at -1: their texts are scored. Questions that cannot be read are skipped."""
    good, unplaced = qas("q1", ("cat", 2)), qas("q2", ("sat", -1))
    bad = [qas("q3", (7, 0)), qas("q4"), {"id": "q5", "answers": []}]
    unplaced["answers"].append({"text": "cat"})
    content = file_of({"context": CONTEXT, "qas": [good, bad[0], unplaced, *bad[1:]]})
    result = squad(tmp_path / "a", content, skip_invalid=True)
    assert result.ids == ["q1", "q2"]
    assert result.answers == [GoldAnswers(("cat",), (2,)), GoldAnswers(("sat", "cat"), (-1, -1))]
    (note,) = result.notes
    assert note.startswith("3 questions are left out (task.qa.skip_invalid), first ") and "question 2 ('q3')" in note


def test_invalid_utf8_in_squad_and_replaced(tmp_path: Path) -> None:
    content = json.dumps(file_of({"context": CONTEXT + "?", "qas": [qas("q1", ("cat", 2))]}), indent=1)
    (tmp_path / "a").write_bytes(content.encode().replace(b"?", b"\xff"))
    config = TaskConfig("qa", (f"squad:{tmp_path}/a",), max_length=384)
    with pytest.raises(UserError, match=r"a:8: invalid UTF-8"):
        read_examples(config)
    result = read_examples(config, errors="replace")
    assert isinstance(result, QaExamples) and result.contexts == [CONTEXT + "\ufffd"]
    (tmp_path / "a").write_bytes(b"text\tlabel\na\xff\t1\n")
    table = read_examples(TaskConfig("classification", (f"tsv:{tmp_path}/a",)), errors="replace")
    assert isinstance(table, TextExamples) and table.texts == ["a\ufffd"]


def test_hub_data_sets(tmp_path: Path) -> None:
    """A data set on the disk replaces one of the Hub: numbers of classes become names."""
    from unittest import mock

    import datasets

    tags = datasets.List(datasets.ClassLabel(names=["O", "B-X"]))
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["neg", "pos"]),
            "tokens": datasets.List(datasets.Value("string")),
            "tags": tags,
        }
    )
    rows = {"text": ["a", "b"], "label": [1, 0], "tokens": [["u", "v"], ["w"]], "tags": [[0, 1], [1]]}
    data = datasets.Dataset.from_dict(rows, features=features)
    with mock.patch.object(datasets, "load_dataset", lambda path, name, split, streaming: data):
        result = read_examples(TaskConfig("classification", ("hub:owner/name::train",)))
        assert isinstance(result, TextExamples) and (result.texts, result.labels) == (["a", "b"], ["pos", "neg"])
        assert result.locations[1] == "hub data set owner/name::train, row 2"
        sentences = read_examples(TaskConfig("tokens", ("hub:owner/name::train",)))
        assert isinstance(sentences, WordExamples) and sentences.tags == [["O", "B-X"], ["B-X"]]
        with pytest.raises(UserError, match=r"owner/name::train: no field 'sentence' \(it has text, label"):
            read_examples(TaskConfig("classification", ("hub:owner/name::train",), text_column="sentence"))

    def fails(*_: Any, **__: Any) -> None:
        raise ConnectionError("no\nnetwork")

    with (
        mock.patch.object(datasets, "load_dataset", fails),
        pytest.raises(UserError, match=r"'owner/name'.*no network"),
    ):
        read_examples(TaskConfig("classification", ("hub:owner/name::train",)))
