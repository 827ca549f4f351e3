"""Sentence splitting: boundaries of sentences of many scripts; no character is lost."""
# ruff: noqa: RUF001 - foreign punctuation is intended

from __future__ import annotations

import sys
import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data.sentence_splitter import split_sentences

CASES = [
    "He left. | She stayed! | Why? | Nobody knows… | The end",
    "Mr. Smith met Dr. J. R. Brown of the U.S. Army. | They talked.",
    "He lives in the U.S. | The house is old.",
    "Use tools, e.g. hammers, i.e. Heavy ones, vs. Knives etc. | Then stop.",
    "It costs 3.14 dollars at example.com/a.b?c=d now. | Buy it.",
    "See Fig. 3 and No. 5 of vol. 12, p. 7. | Then go on.",
    "I said no. | Then she left.",
    "It began on Jan. 5. | In May it ended.",
    "Sony Corp. Ltd. makes it. | We do not.",
    "“Stop!” he cried. | “Never.” | She ran (and fell.) | He helped.",
    '"Is it?" asked Tom. | "It is." | Good.',
    "Wait... what? | He paused... | Then he spoke.",
    "1. First of all. | Then the rest.",
    "version 2. | 3 apples fell.",
    "no capitals here. | only small letters! | right?",
    "A small start. iPhone users know. | They do.",
    "你好。 | 他说：“我很好！” | 然后走了； | 真的？！ | 是的。",
    "价格是3.14元。 | Python很好用! | 真的",
    "Tokenized text . | Like this one ? | Yes",
    "राम घर गया। | वह सो गया।। | «क्या?» | राम ने 3.5 किलो लिया॥ | अंत",
    "آپ کیسے ہیں؟! | میں ٹھیک ہوں۔ | کیوں؟» | لأن ذلك 3.14 فقط.",
    "Նա գնաց։ | Ես մնացի։",
    "እሱ ሄደ። | እኔ ቀረሁ፧",
    "သူသွားသည်။ | ကျွန်တော်နေသည်။ | ok",
    "គាត់ទៅ។ | ខ្ញុំនៅ៕ | What⁉ | 𑄃𑅁 | x",
]


@pytest.mark.parametrize("case", CASES)
def test_borders(case: str) -> None:
    expected = [part.strip() for part in case.split(" | ")]
    chinese = any("\u4e00" <= c <= "\u9fff" for c in case)
    assert split_sentences(("" if chinese else " ").join(expected)) == expected


@pytest.mark.parametrize("blank", ["", " "])
def test_every_mark_that_unicode_calls_an_end(blank: str) -> None:
    """Sentence_Terminal without the full stops, which may be inside a number, and ! and ?, which may be in a name."""
    ends = regex.findall(r"(?V1)[\p{Sentence_Terminal}--\p{SB=ATerm}--[!?]]", "".join(map(chr, range(sys.maxunicode))))
    assert len(ends) > 160
    for end in ends:
        assert split_sentences(f"a b{end}{end}”{blank}c d{end}") == [f"a b{end}{end}”", f"c d{end}"], hex(ord(end))


def test_newline_always_ends_a_sentence() -> None:
    assert split_sentences("a title\nthe text goes\n\n on, Mr.\nSmith \n") == [
        "a title",
        "the text goes",
        "on, Mr.",
        "Smith",
    ]
    assert split_sentences(" \n\t\n") == split_sentences("") == []


alphabet = st.sampled_from("ab AB.!?…。！？；।؟\U00011141\n\t\"'”)(]1你\u00a0\u3000\x0b\x1c\x85\u2028́🙂")


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(alphabet, max_size=60), st.text(max_size=40)))
def test_nothing_is_lost(document: str) -> None:
    sentences = split_sentences(document)
    assert all(s and s == s.strip() and "\n" not in s for s in sentences)
    assert "".join("".join(sentences).split()) == "".join(document.split())


@pytest.mark.parametrize("unit", [".", "!", "a. ", "J. ", '."', "。", "।", "((", "a.b", "? ", "x"])
def test_time_is_linear_on_dirty_text(unit: str) -> None:
    document = unit * 100_000
    start = time.perf_counter()
    split_sentences(document)
    assert time.perf_counter() - start < 20  # quadratic behavior would take minutes
