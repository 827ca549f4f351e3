"""Reads FASTA: a record is a document, its letters without line ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from bertjax.data.readers import LONGEST_DOCUMENT, DocumentStats, text_lines
from bertjax.errors import UserError

# Letters, the stop or the end of a protein, and the two signs of gaps.
_FOREIGN = re.compile(r"[^A-Z*.\-]")
_BLANKS = re.compile(r"\s+")
# IUPAC: a code for several nucleotides becomes that of their complements.
_COMPLEMENT = str.maketrans("ACGTURYSWKMBDHVN", "TGCAAYRSWMKVHDBN")
_NUCLEOTIDES = re.compile(r"[ACGTURYSWKMBDHVN.\-]*")
_KMERS = re.compile(r"([1-9]\d?)mers")
LETTERS = "letters"


class Form(NamedTuple):
    """Form of the documents of a record, by the words of `#FIELD`, joined by dots.

    kmers: length of the overlapping words between blanks, 0 = one run of letters · both: the reverse complement is a
    document, too · gapless: without gaps.
    """

    kmers: int = 0
    both: bool = False
    gapless: bool = False


def parse_form(text: str, where: str) -> Form:
    """Parses the words of a form.

    Args:
        text: Words joined by dots.
        where: What to name in errors.

    Raises:
        UserError: A word is unknown or comes twice.
    """
    form = Form()
    for word in text.split("."):
        if word == LETTERS:
            changed = form
        elif match := _KMERS.fullmatch(word):
            changed = form._replace(kmers=int(match[1]))
        elif word in ("both", "gapless"):
            changed = form._replace(**{word: True})
        else:
            raise UserError(f"{where}: #{text}: {word!r} is none of letters, Nmers (6mers), both, gapless")
        if word != LETTERS and changed == form:
            raise UserError(f"{where}: #{text} has {word!r} twice")
        form = changed
    return form


def read_fasta(path: str, field: str | None, errors: str, reading: DocumentStats) -> Iterator[str]:
    """Yields the records of a FASTA file in upper case, an empty text for one without letters.

    The text after `>` is not read, nor lines that begin with `;`. A `*` at the end of a protein is dropped; others are
    text. Records of more than `LONGEST_DOCUMENT` characters are cut.

    Args:
        path: File to read.
        field: Words of a `Form`.
        errors: `strict` or `replace`.
        reading: Counts, updated.

    Raises:
        UserError: The file has text before its first record, or signs that stand for no residue; names the line.
    """
    form = parse_form(field or LETTERS, path)
    longest = LONGEST_DOCUMENT // (form.kmers + 1)
    parts: list[str] = []
    size, inside = 0, False
    for number, line in text_lines(path, errors, reading):
        if line.startswith(">"):
            if inside:
                yield from _documents("".join(parts), form, f"{path}: the record that ends at line {number - 1}")
            parts, size, inside = [], 0, True
            continue
        letters = "" if line.startswith(";") else _BLANKS.sub("", line).upper()
        if not letters:
            continue
        _require_residues(letters, inside, f"{path}:{number}")
        if size + len(letters) > longest and parts:
            yield from _documents("".join(parts), form, f"{path}: the record of line {number}")
            reading.cut += 1
            parts, size = [], 0
        parts.append(letters)
        size += len(letters)
    if inside:
        yield from _documents("".join(parts), form, f"{path}: the last record")


def _require_residues(letters: str, inside: bool, where: str) -> None:
    if not inside:
        hint = "; is it FASTQ?" if letters.startswith("@") else ""
        raise UserError(f"{where}: text before the first line that begins with '>'; this is not FASTA{hint}")
    if (foreign := _FOREIGN.search(letters)) is not None:
        raise UserError(f"{where}: {foreign[0]!r} stands for no residue; letters, '*', '-' and '.' do")


def _documents(letters: str, form: Form, where: str) -> Iterator[str]:
    """Yields the documents of a record."""
    letters = letters.removesuffix("*")
    if form.gapless:
        letters = letters.replace("-", "").replace(".", "")
    yield _spaced(letters, form.kmers)
    if form.both and letters:
        if not _NUCLEOTIDES.fullmatch(letters):
            raise UserError(f"{where} is not DNA, which alone has a reverse complement; remove #both from the source")
        yield _spaced(reverse_complement(letters), form.kmers)


def reverse_complement(letters: str) -> str:
    """Returns the other strand of DNA, in its own direction; U becomes A, and A becomes T."""
    return letters.translate(_COMPLEMENT)[::-1]


def _spaced(letters: str, kmers: int) -> str:
    """Returns overlapping k-mers between blanks, as DNABERT reads DNA; a shorter record has none."""
    if not kmers:
        return letters
    return " ".join(letters[begin : begin + kmers] for begin in range(len(letters) - kmers + 1))
