"""Classes of `transformers` in Python alone, with the functions that write their rules as a `tokenizer.json`."""

from __future__ import annotations

from typing import Any

from bertjax.data.letter_tokenizers import translate_esm
from bertjax.errors import UserError

# Python's `lower` makes ς of the last Σ of a word (Unicode, table 3-17): after a cased letter and before none, each
# with marks, quotes and stops between.
_CASED, _IGNORED = r"[\p{Lu}\p{Ll}\p{Lt}]", r"[\p{Mn}\p{Me}\p{Lm}\p{Sk}'.:·\u2018\u2019]*"
_LAST_SIGMA = f"(?<={_CASED}{_IGNORED})Σ(?!{_IGNORED}{_CASED})"


def translate_roc_bert(loaded: Any) -> str:
    """Returns the `tokenizer.json` of a `RoCBertTokenizer`: BERT's rules after the composed form of characters.

    Args:
        loaded: The tokenizer of `transformers`.

    Raises:
        UserError: it does not split text at punctuation, or excepts words.
    """
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    if not loaded.do_basic_tokenize or loaded.basic_tokenizer.never_split:
        raise UserError("RoCBertTokenizer with do_basic_tokenize=false or never_split is not supported; remove both")
    rules = loaded.basic_tokenizer
    lower = rules.do_lower_case
    strip = rules.strip_accents is not False if lower else bool(rules.strip_accents)
    model = models.WordPiece(dict(loaded.vocab), unk_token=str(loaded.unk_token), max_input_chars_per_word=100)
    tokenizer = tokenizers.Tokenizer(model)
    folding = [normalizers.Replace(tokenizers.Regex(_LAST_SIGMA), "ς"), normalizers.Lowercase()] if lower else []
    folding += [normalizers.BertNormalizer(False, False, True, False)] if strip else []
    spaces = normalizers.BertNormalizer(True, rules.tokenize_chinese_chars, False, False)
    tokenizer.normalizer = normalizers.Sequence([spaces, normalizers.NFC(), *folding])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    added = sorted(loaded.added_tokens_decoder.items())
    tokenizer.add_tokens([tokenizers.AddedToken(str(token), special=token.special) for _, token in added])
    cls, sep = str(loaded.cls_token), str(loaded.sep_token)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((cls, sep))],
    )
    return str(tokenizer.to_str())


TRANSLATIONS = {"EsmTokenizer": translate_esm, "RoCBertTokenizer": translate_roc_bert}
