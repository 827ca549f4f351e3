"""FASTA: records, their forms, odd and wrong files, compression, and runs that need nothing else."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.defaults import base_config
from bertjax.config.sources import parse_source
from bertjax.data import fasta
from bertjax.data.fasta import parse_form, reverse_complement
from bertjax.data.from_config import prepare, training_pipeline
from bertjax.data.readers import DocumentStats
from bertjax.data.sources import iter_documents, source_digest
from bertjax.errors import UserError

DNA = """\
>chr1 the first
acgtN
ACGT

>empty
>chr1 the same name
; a comment of the format of 1985
GG CC\tAA
>chr3
TT-TA.
"""


def documents(path: Path, form: str = "letters", reading: DocumentStats | None = None) -> list[str]:
    return list(iter_documents(parse_source(f"fasta:{path}#{form}"), reading=reading))


def write(folder: Path, text: str, name: str = "a.fasta") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_record_is_a_document(tmp_path: Path) -> None:
    reading, path = DocumentStats(), write(tmp_path, DNA)
    assert documents(path, reading=reading) == ["ACGTNACGT", "GGCCAA", "TT-TA."]
    assert (reading.documents, reading.empty, reading.cut) == (3, 1, 0)
    windows = tmp_path / "windows.fa"
    windows.write_bytes(b"\xef\xbb\xbf" + DNA.replace("\n", "\r\n").encode())
    assert documents(windows) == documents(path)
    assert documents(write(tmp_path, "", "empty.fa")) == documents(write(tmp_path, ">a\n>b\n\n", "none.fa")) == []


def test_forms(tmp_path: Path) -> None:
    path = write(tmp_path, DNA)
    assert documents(path, "both.gapless") == ["ACGTNACGT", "ACGTNACGT", "GGCCAA", "TTGGCC", "TTTA", "TAAA"]
    assert documents(path, "5mers.gapless") == ["ACGTN CGTNA GTNAC TNACG NACGT", "GGCCA GCCAA"]  # TTTA has none
    assert reverse_complement("ACGTURYSWKMBDHVN-") == "-NBDHVKMWSRYAACGT"
    assert reverse_complement(reverse_complement("GATTACANRYKM")) == "GATTACANRYKM"
    digests = {source_digest(parse_source(f"fasta:{path}#{form}")) for form in ("letters", "both", "6mers")}
    assert len(digests) == 3


def test_stops_of_proteins(tmp_path: Path) -> None:
    """The one at the end is dropped; one inside stays, and no vocabulary has it."""
    assert documents(write(tmp_path, ">a\nMKT*\n>b\nMK*T\nLL*\n>c\n*\n")) == ["MKT", "MK*TLL"]


@pytest.mark.parametrize(("ending", "module"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma)])
def test_compressed(ending: str, module: object, tmp_path: Path) -> None:
    path = tmp_path / f"a.fa{ending}"
    path.write_bytes(module.compress(DNA.encode()))  # type: ignore[attr-defined]
    assert documents(path) == documents(write(tmp_path, DNA))


WRONG = [
    ("ACGT\n>a\nACGT\n", "letters", r"a\.fasta:1: text before the first line that begins with '>'; this is not FASTA$"),
    ("@read\nACGT\n+\nIIII\n", "letters", r"a\.fasta:1: .*is it FASTQ\?$"),
    (">a\nAC1GT\n", "letters", r"a\.fasta:2: '1' stands for no residue; letters, '\*', '-' and '\.' do"),
    (">a\nACGT\n\n>b\nMKL\n", "both", r"a\.fasta: the last record is not DNA.*remove #both from the source"),
    (">a\nMKL\n>b\nA\n", "both", r"a\.fasta: the record that ends at line 2 is not DNA"),
    (">a\nA\n", "6mer", r"#6mer: '6mer' is none of letters, Nmers \(6mers\), both, gapless"),
    (">a\nA\n", "both.both", r"#both\.both has 'both' twice"),
    (">a\nÄ\n", "letters", "stands for no residue"),
]


@pytest.mark.parametrize(("text", "form", "message"), WRONG)
def test_wrong_files_are_one_line(text: str, form: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        documents(write(tmp_path, text), form)
    assert "\n" not in str(error.value)


def test_a_chromosome_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fasta, "LONGEST_DOCUMENT", 12)
    reading, path = DocumentStats(), write(tmp_path, ">a\nAAAAAAAA\nCCCC\nGGGG\nT\n>b\nA\n")
    assert documents(path, reading=reading) == ["AAAAAAAACCCC", "GGGGT", "A"] and reading.cut == 1
    assert documents(path, "2mers")[:2] == ["AA AA AA AA AA AA AA", "CC CC CC"]  # a line alone is longer than 4


def test_names_of_files_without_a_kind(tmp_path: Path) -> None:
    path = write(tmp_path, DNA, "genome.fna.gz")
    with pytest.raises(UserError, match=f"for this path write fasta:{path}"):
        parse_source(str(path))


def test_the_form_of_the_config_counts_where_the_source_has_none(tmp_path: Path) -> None:
    cfg, path = base_config(), write(tmp_path, DNA)
    cfg.data.fasta, cfg.data.sources = "3mers", (f"fasta:{path}", f"fasta:{path}#letters@2")
    assert [source.field for source in inputs.sources(cfg)] == ["3mers", "letters"]
    assert parse_form("3mers.both", "x") == (3, True, False)


def genome(folder: Path, letters: str, records: int = 60) -> Path:
    draw = random.Random(0)
    lines = [
        f">r{i}\n{''.join(draw.choices(letters, k=70))}\n{''.join(draw.choices(letters, k=33))}" for i in range(records)
    ]
    return write(folder, "\n".join(lines) + "\n", "genome.fa")


def run_config(folder: Path, letters: str, **values: object) -> ConfigDict:
    cfg = base_config()
    cfg.data.sources, cfg.data.cache_dir = (f"fasta:{genome(folder, letters)}",), str(folder / "cache")
    cfg.data.example_format, cfg.data.seq_len, cfg.data.eval_fraction, cfg.data.workers = "block", 32, 0.2, 1
    cfg.train.num_steps, cfg.train.batch_size = 2, 4
    cfg.data.update(values)
    return cfg


CORPORA = [
    ("ACGT", {"tokenizer": "dna", "kmer": 4}, 25),
    ("ACGT", {"tokenizer": "kmers", "kmer": 3, "fasta": "3mers"}, 101),
    ("MKTLAV", {"tokenizer": "protein", "tokenizer_family": "esm"}, 103),
]


@pytest.mark.parametrize(("letters", "values", "most"), CORPORA)
def test_a_fresh_run_needs_a_file_alone(letters: str, values: dict[str, object], most: int, tmp_path: Path) -> None:
    cfg, lines = run_config(tmp_path, letters, **values), list[str]()
    prepared = prepare(cfg, lines.append)
    splits = next(iter(prepared.training.values())).splits.values()
    tokens, count = sum(each.tokens for each in splits), sum(each.documents for each in splits)
    assert count == 60 and most * count <= tokens <= (most + 4) * count
    assert not any("unknown" in line or "training a" in line or "gives only" in line for line in lines)
    batch = training_pipeline(cfg, prepared).batch(0)
    assert prepared.tokenizer.unk_id not in batch["input_ids"]
