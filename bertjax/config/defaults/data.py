"""`data`: sources, tokenizer and rows."""

from __future__ import annotations

from ml_collections import ConfigDict, config_dict


def data_group() -> ConfigDict:
    data = ConfigDict()
    # KIND:WHERE[#FIELD][@WEIGHT], such as "text:books/*.txt.gz@0.3"; kinds: builtin text lines files jsonl parquet hub.
    data.sources = ("builtin:python-docs",)
    # Held-out text, written the same way; () holds out documents of `sources`, chosen by the hash of their text.
    data.eval_sources = ()
    # Share of documents held out when `eval_sources` is ().
    data.eval_fraction = 0.01
    # "wordpiece", "bpe" or "unigram": trained on `sources`. Else the path of one: a folder, tokenizer.json, vocab.txt,
    # spiece.model.
    data.tokenizer = "wordpiece"
    # Whose special pieces and ids a trained tokenizer gets.
    data.tokenizer_family = "bert"
    # Pieces of a trained tokenizer, special ones included; the most that a given one may have.
    data.vocab_size = 30522
    # Lower-case and strip accents ("uncased"); of a given one only if it is a bare vocab.txt or spiece.model.
    data.lowercase = True
    # Tokens in a row, special ones included.
    data.seq_len = 128
    # What a row holds: "nsp_pairs" (two segments, the second random or what follows), "sop_pairs" (two segments that
    # follow each other, half of them swapped), "block" (text of a document cut to length), "doc_sentences" (whole
    # sentences of a document) or "full_sentences" (whole sentences, over the ends of documents with a separator there).
    # Rows that go on from batch to batch, for models with a memory: "segments" (XLNet: `model.reuse_len` tokens, by
    # default half of the row, then two segments) or "stream" (text and nothing else).
    data.example_format = "nsp_pairs"
    # "best_fit" puts several examples into a row, each by itself: no attention between them, positions from 0, their
    # own summary token. The model learns the same, without padding. "none": one example a row.
    data.packing = "none"
    # Most examples in a packed row; None = 8, or one for every 32 tokens if that is more.
    data.pack_examples = config_dict.placeholder(int)
    # Examples that are packed together: more fit better, and take 50 bytes each while an epoch is planned.
    data.pack_window = 1 << 20
    # sop_pairs: True leaves out pieces of a single sentence; False pairs them with random text and calls that swapped,
    # as the released code of ALBERT does.
    data.sop_drop_single_sentences = False
    # Pairs: share of documents that aim at a random shorter length instead of `seq_len`.
    data.short_seq_prob = 0.1
    # Epochs after which pairs (and static masks) come again as they were.
    data.dupe_factor = 10
    # Invalid UTF-8: "strict" stops and names file and line, "replace" puts U+FFFD in its place.
    data.encoding_errors = "strict"
    # Which documents are left out, each counted in what `prepare` prints and in `meta.json` of the prepared corpus; a
    # tokenizer is trained without them, too. True = all but the first of those with the same text within a source.
    data.deduplicate = False
    # Fewest and most characters of a document; None = no limit.
    data.min_chars = 0
    data.max_chars = config_dict.placeholder(int)
    # Scripts that at least `script_share` of the letters of a document must belong to, such as "latin" or
    # "han,hiragana,katakana"; () = any.
    data.scripts = ()
    data.script_share = 0.5
    # Processes that tokenise a corpus, as soon as it is more than a few MB; None = one for every core. They change
    # nothing but the time it takes.
    data.workers = config_dict.placeholder(int)
    # Where tokenizers and tokenised corpora are kept, named by their content and shared by all runs.
    data.cache_dir = "~/.cache/bertjax"
    return data
