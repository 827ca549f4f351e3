"""Settings of the text: sources, tokenizer, training examples; how sources are mixed, and what drops documents."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import unicodedata
from pathlib import Path
from typing import Any

from bertjax.config.fields import Settings, phase_setting, setting
from bertjax.config.sources import Limits, parse_epochs
from bertjax.errors import UserError, require_regular_file

FIXED_VOCABULARIES = ("protein", "dna", "kmers")
TOKENIZER_MODELS = ("wordpiece", "bpe", "unigram", "sentencepiece_bpe", "wordlevel", "char", *FIXED_VOCABULARIES)
TOKENIZER_FAMILIES = ["bert", "electra", "spanbert", "distilbert", "roberta", "xlm-roberta", "camembert", "modernbert"]
TOKENIZER_FAMILIES += ["gpt2", "albert", "deberta", "deberta-v2", "deberta-v3", "xlnet", "mpnet", "esm"]
"""Values of `data.tokenizer_family`: the names in `bertjax.data.special_tokens.FAMILIES`."""
EXAMPLE_FORMATS = ("nsp_pairs", "sop_pairs", "block", "doc_sentences", "full_sentences", "segments", "stream")
SCRIPTS = (
    "arabic", "armenian", "bengali", "cyrillic", "devanagari", "ethiopic", "georgian", "greek", "gujarati", "gurmukhi",
    "han", "hangul", "hebrew", "hiragana", "kannada", "katakana", "khmer", "lao", "latin", "malayalam", "mongolian",
    "myanmar", "sinhala", "tamil", "telugu", "thai", "tibetan",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DataConfig(Settings, group="data"):
    """Sources, tokenizer and example format; `FilterConfig` and `SourceMixtureConfig` have the other keys."""

    sources: tuple[str, ...] = phase_setting(
        ("builtin:python-docs",),
        help='KIND:WHERE[#FIELD][@WEIGHT][@MIN..MAX epochs], such as "text:books/*.txt.zst@0.3"; kinds: builtin text '
        "lines files jsonl parquet arrow tar fasta hub. @FILE: the sources that a file names, one per line.",
    )
    eval_sources: tuple[str, ...] = setting(
        (),
        help="Held-out text, in the same notation; (): documents of `sources`, of all phases, are held out by the "
        "hash of their text.",
    )
    fasta: str = setting(
        "letters",
        help="Form of the documents of fasta sources without #FORM, words joined by dots: letters, 6mers (overlapping "
        "words of six between spaces, as DNABERT reads DNA), both (a record and its reverse complement), gapless.",
    )
    eval_fraction: float = setting(0.01, help="Share of documents that is held out when `eval_sources` is ().")
    tokenizer: str = setting(
        "wordpiece",
        path=True,
        help="Trained on the `sources` of all phases: wordpiece, bpe (of bytes), unigram, sentencepiece_bpe, wordlevel "
        "(whole words or `token_pattern`), char. Of a fixed vocabulary: protein (letters, as ESM-2), dna (k-mers one "
        "after the other, then single letters, as Nucleotide Transformer), kmers (k-mers between spaces, as DNABERT). "
        "Otherwise the path of a folder, tokenizer.json, vocab.txt or spiece.model, or hub:NAME[@REVISION].",
    )
    token_pattern: str | None = setting(
        None,
        help="wordlevel: regular expression of a token, such as [ACGTN]{1,6} for k-mers of DNA; None: everything "
        "between two spaces.",
    )
    kmer: int = setting(
        6, at_least=1, at_most=10, help="dna, kmers: letters of a token; there are 4^k tokens. dna with 1 has letters."
    )
    tokenizer_family: str = setting(
        "bert", choices=TOKENIZER_FAMILIES, help="Family whose special tokens and ids a trained tokenizer gets."
    )
    vocab_size: int = setting(
        30522,
        at_least=8,
        at_most=10_000_000,
        help="Tokens of a trained tokenizer, special tokens included; a tokenizer that is loaded has its own number.",
    )
    lowercase: bool = setting(
        True,
        help="Lower-case and strip accents; for a tokenizer that is loaded only if it is a bare vocab.txt or "
        "spiece.model.",
    )
    seq_len: int = phase_setting(128, at_least=8, help="Tokens per sequence, special tokens included.")
    example_format: str = phase_setting(
        "nsp_pairs",
        choices=EXAMPLE_FORMATS,
        help="nsp_pairs: two segments, the second random or the next; sop_pairs: two consecutive segments, half of "
        "them swapped; block: text of one document cut to length; doc_sentences: whole sentences of one document; "
        "full_sentences: whole sentences across documents, with a separator between. Formats whose sequences continue "
        "in the next batch, for models with a memory: segments (XLNet: `model.reuse_len` tokens, then two segments) "
        "and stream (text only).",
    )
    packing: str = setting(
        "none",
        choices=("none", "best_fit"),
        help="best_fit: several examples per sequence without attention between them, each with its own positions and "
        "summary token; the model learns the same, without padding. none: one example per sequence.",
    )
    pack_examples: int | None = setting(
        None,
        at_least=1,
        at_most=10_000,
        help="Upper limit of examples per packed sequence; None: seq_len // 32, at least 8.",
    )
    pack_window: int = setting(
        1 << 20,
        at_least=1,
        help="Examples that are packed together: more fit better, and take 50 bytes each while an epoch is planned.",
    )
    sop_drop_single_sentences: bool = phase_setting(
        False,
        help="sop_pairs: drop chunks of a single sentence; false pairs them with random text and labels that as "
        "swapped, as ALBERT's released code does.",
    )
    short_seq_prob: float = phase_setting(
        0.1, at_least=0.0, at_most=1.0, help="Pairs: share of documents with a random shorter target length."
    )
    dupe_factor: int = setting(10, at_least=1, help="Epochs after which pairs (and static masks) repeat.")
    encoding_errors: str = setting(
        "strict",
        choices=("strict", "replace"),
        help="Invalid UTF-8: strict stops and names file and line, replace inserts U+FFFD.",
    )
    workers: int | None = setting(
        None,
        at_least=1,
        at_most=1024,
        resume=True,
        help="Processes that tokenize a corpus of more than a few MB; None: one per core. They change only the time.",
    )
    dask_scheduler: str | None = setting(
        None,
        path=True,
        resume=True,
        help="Scheduler of a dask cluster that tokenizes instead of this host: tcp://HOST:8786, or its scheduler file; "
        "needs `bertjax[dask]`. None: processes of this host.",
    )
    shard_tokens: int = setting(
        1 << 26,
        at_least=1,
        help="Tokens per file of a tokenized corpus. A corpus of several files is read a few at a time, in random "
        "order: memory does not grow with it.",
    )
    shuffle_shards: int = setting(
        8,
        at_least=1,
        help="Files that are read together; the sequences of a batch come from all of them. More mix the text better "
        "and take about 30 MB of memory each.",
    )
    cache_dir: str = setting(
        "~/.cache/bertjax",
        path=True,
        resume=True,
        help="Directory, or URL in an object store, of tokenizers and tokenized corpora, named by their content and "
        "shared by all runs.",
    )

    def check(self) -> None:
        if not self.sources:
            raise UserError(
                "data.sources is empty: name at least one, such as text:corpus/*.txt or builtin:python-docs"
            )
        if not self.eval_sources and not 0.0 < self.eval_fraction < 1.0:
            raise UserError(
                f"data.eval_fraction must lie in (0, 1), not {self.eval_fraction}; or set data.eval_sources"
            )
        require_regular_file(os.path.expanduser(self.tokenizer), "data.tokenizer")
        if self.dask_scheduler is not None and _is_missing("distributed"):
            raise UserError("data.dask_scheduler is set but dask is missing; pip install 'bertjax[dask]'")
        if self.token_pattern is not None and self.tokenizer != "wordlevel":
            raise UserError(f"data.token_pattern is for data.tokenizer=wordlevel, not for {self.tokenizer}; remove it")
        is_remote = self.tokenizer.startswith("hub:") or "://" in self.tokenizer
        is_local = self.tokenizer not in TOKENIZER_MODELS and not is_remote
        if is_local and not Path(self.tokenizer).expanduser().exists():
            raise UserError(
                f"data.tokenizer={self.tokenizer!r} is neither one of {', '.join(TOKENIZER_MODELS)} (train one) nor a "
                "folder or file that exists, nor hub:NAME[@REVISION], nor a URL"
            )

    @property
    def max_examples(self) -> int:
        """Upper limit of examples per sequence."""
        if self.packing == "none":
            return 1
        return max(8, self.seq_len // 32) if self.pack_examples is None else self.pack_examples


@dataclasses.dataclass(frozen=True)
class SourceMixtureConfig(Settings, group="data"):
    """Shares of the sources of a run; the order is another one as soon as a key is set."""

    mixture_alpha: float | None = phase_setting(
        None,
        at_least=0.0,
        at_most=1.0,
        help="Sources are mixed in proportion to size ** alpha, the inverse of a temperature: 1 by size, 0 equally. "
        "None: by @WEIGHT, or by size without weights.",
    )
    mixture_unit: str = phase_setting(
        "sequences",
        choices=("sequences", "tokens"),
        help="What sizes and shares count: sequences, or their tokens without padding.",
    )
    mixture_epochs: str = phase_setting(
        "..",
        help="MIN..MAX, fewest and most epochs of a source over all steps with these `data` settings, unless the "
        "source has its own (@MIN..MAX); the other sources fill up. alpha 0 with a maximum is UniMax.",
    )

    def check(self) -> None:
        _ = self.limits

    @property
    def limits(self) -> Limits:
        """Fewest and most epochs of a source that has no limits of its own."""
        return parse_epochs(self.mixture_epochs, "data.mixture_epochs")


@dataclasses.dataclass(frozen=True)
class FilterConfig(Settings, group="data"):
    """Rules that drop documents before tokenizers are trained; `bertjax prepare` prints how many each rule drops."""

    deduplicate: bool = setting(False, help="Drop all but the first of the documents with the same text in a source.")
    near_duplicates: float | None = setting(
        None,
        at_least=0.5,
        at_most=1.0,
        help="Drop documents that share this part of their runs of five words with an earlier one in a source (Jaccard "
        "similarity, estimated by MinHash), such as 0.8; needs `bertjax[dedup]`. None: keep them.",
    )
    decontaminate: tuple[str, ...] = setting(
        (),
        help="Evaluation text, in the notation of `sources`, such as jsonl:squad/dev.jsonl#question: drop documents "
        "that share a run of 13 words with it.",
    )
    min_chars: int = setting(0, at_least=0, help="Drop shorter documents.")
    max_chars: int | None = setting(None, at_least=1, help="Drop longer documents; None: no limit.")
    scripts: tuple[str, ...] = setting(
        (), choices=SCRIPTS, help='Keep documents in these scripts only, such as "latin" or "han,hiragana"; (): any.'
    )
    script_share: float = setting(
        0.5, above=0.0, at_most=1.0, help="Share of a document's letters that must belong to `scripts`."
    )

    def check(self) -> None:
        if self.near_duplicates is not None and _is_missing("rensa"):
            raise UserError("data.near_duplicates is set but rensa is missing; pip install 'bertjax[dedup]'")
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise UserError(
                f"data.max_chars={self.max_chars} leaves no document: it must be at least data.min_chars="
                f"{self.min_chars}"
            )

    @property
    def fingerprint(self) -> list[Any]:
        """Text that is equal for settings that drop the same documents; empty for those that drop none."""
        scripts = [sorted(set(self.scripts)), float(self.script_share), unicodedata.unidata_version]
        parts: list[Any] = [["duplicates"]] if self.deduplicate else []
        if self.near_duplicates is not None:  # another version of the library may drop other documents
            parts.append(["near", self.near_duplicates, importlib.metadata.version("rensa")])
        parts += [["min", self.min_chars]] if self.min_chars else []
        parts += [["max", self.max_chars]] if self.max_chars is not None else []
        return parts + ([["scripts", *scripts]] if self.scripts else [])


def _is_missing(package: str) -> bool:
    """Returns whether an optional package is not installed."""
    try:
        return importlib.util.find_spec(package) is None
    except ValueError:  # a test has taken it out
        return True
