"""Words of many scripts, compared with Unicode's own word boundaries (UAX #29), as `regex` finds them."""
# ruff: noqa: RUF001 - foreign signs are intended

from __future__ import annotations

import unicodedata

import pytest
import regex

from bertjax.data.words import comparable_words, is_word, runs_of_letters, token_spans

# sentences in which a blank parts the words, with their signs
SENTENCES = (
    "राम दिल्ली में रहता है ।",
    "क्\u200dष क्\u200cष श्री",  # joiners
    "தமிழ் மொழி கற்கிறேன் .",
    "আমি বাংলা ভাষা বলি ।",
    "ਪੰਜਾਬੀ ਬੋਲੀ ॥",
    "కాంతి ತಿಳಿ മലയാളം සිංහල",
    "هُوَ مُحَمَّدٌ رَسُولُ ؟",
    "می\u200cخواهم بروم ۔",
    "שָׁלוֹם עֲלֵיכֶם !",
    "צה\"ל ג'ורג צ׳יפס",
    "Հայերեն լեզու ։",
    "ሰላም ዓለም ።",
    "п'ять м’ята йод",
    "col·lecció ١٬٠٠٠٫٥",
    unicodedata.normalize("NFD", "Übung café tiếng Việt 한국어 Й"),
    "co\u00adop 5\u20dd",
    "👩\u200d👩\u200d👧 ❤\ufe0f 👍🏽",
)


def tokens(text: str) -> list[str]:
    return [text[begin:end] for begin, end in token_spans(text)]


@pytest.mark.parametrize("text", SENTENCES)
def test_words_of_scripts_with_blanks(text: str) -> None:
    """A tagger gets what stands between blanks, and so does Unicode's own rule."""
    unicodes = [part for part in regex.split(r"\b", text, flags=regex.V1 | regex.WORD) if part.strip()]
    assert tokens(text) == text.split() == unicodes


def test_scripts_without_blanks() -> None:
    assert tokens("ภาษาไทยที่นี่ ភាសាខ្មែរ။မြန်မာ") == ["ภาษาไทยที่นี่", "ភាសាខ្មែរ", "။", "မြန်မာ"]
    assert tokens("か\u3099っこう、ﾀﾞ東𠀀") == ["か\u3099", "っ", "こ", "う", "、", "ﾀﾞ", "東", "𠀀"]
    assert tokens("a\u200bb\u0301 \u0301c") == ["a", "b\u0301", "\u0301", "c"]


@pytest.mark.parametrize("text", SENTENCES)
def test_compared_words_are_those_of_unicode_cut_at_signs(text: str) -> None:
    """Composed and lower-case; no letter or mark is lost or stands alone."""
    composed = unicodedata.normalize("NFC", text)
    expected = [
        part
        for part in regex.split(r"(?:\b|['’\"·٬])+", composed.lower(), flags=regex.V1 | regex.WORD)
        if regex.search(r"[\p{L}\p{N}]", part)
    ]
    assert comparable_words(text) == comparable_words(composed) == expected


def test_letters_without_blanks_are_compared_one_by_one() -> None:
    assert comparable_words("ที่นี่ ខ្មែរ东京カ") == ["ที่", "นี่", "ខ្", "មែ", "រ", "东", "京", "カ"]
    assert comparable_words("Don't x_1, U.S. 3.5 É") == ["don", "t", "x_1", "u", "s", "3", "5", "é"]


def test_runs_of_letters() -> None:
    assert runs_of_letters("हिंदी2 covid_19 Ünï e\u0301t 自然语言 x²") == [
        *["हिंदी", "covid", "Ünï", "ét", "自然语言", "x²"],
    ]
    assert all(map(is_word, ["हिंदी", "cafe\u0301", "日本語"])) and not any(map(is_word, ["", "x1", "a b", "\u0301a"]))
