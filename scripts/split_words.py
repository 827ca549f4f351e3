"""Prints the most frequent words of a text that a tokenizer splits: candidates for `bertjax tokenizer --add-words`.

python scripts/split_words.py --tokenizer FOLDER --text corpus/train.txt.gz --first 200 > words.txt
"""

from __future__ import annotations

import argparse
import re
from collections import Counter

from bertjax.config.sources import parse_source
from bertjax.data.sources import iter_documents
from bertjax.data.tokenizer_io import load_tokenizer


def main() -> None:
    """Prints one word per line, the most frequent first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--first", type=int, default=200)
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer)
    counts = Counter[str]()
    for document in iter_documents(parse_source(f"text:{options.text}"), "strict"):
        counts.update(re.findall(r"[^\W\d_]{3,}", document.lower() if tokenizer.lowercase else document))
    words = [word for word, _ in counts.most_common()]
    lengths = map(len, tokenizer.encode_batch([f" {word}" for word in words]))
    split = [word for word, length in zip(words, lengths, strict=True) if length > 1]
    print("\n".join(split[: options.first]))


if __name__ == "__main__":
    main()
