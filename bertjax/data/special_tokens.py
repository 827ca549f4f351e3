"""Special tokens of every model family: their order and roles.

Sources: the released vocabularies and tokenizer classes of BERT, RoBERTa, ALBERT, XLNet, DeBERTa and ModernBERT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bertjax.errors import UserError, require_one_of

ROLES = ("pad", "unk", "cls", "sep", "mask")


@dataclasses.dataclass(frozen=True)
class TokenizerFamily:
    """Special tokens of a family. `first` tokens take ids 0, 1, ...; `last` tokens take the highest ids.

    `roles` maps pad, unk, cls, sep, mask (and bos, eos where Hugging Face expects them); `single` and `pair` are the
    layouts of one and of two texts as `TOKEN:TYPE` words.
    """

    model: str  # what the family trains: wordpiece, bpe or unigram
    first: tuple[str, ...]
    roles: dict[str, str]
    single: str
    pair: str
    last: tuple[str, ...] = ()
    lowercase: bool = False
    token_types: bool = True
    padding_side: str = "right"
    huggingface_class: str = "PreTrainedTokenizerFast"
    sentencepiece_file: str = "spiece.model"

    @property
    def special(self) -> tuple[str, ...]:
        return self.first + self.last


_BERT_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_BERT_SINGLE = "[CLS]:0 $A:0 [SEP]:0"
_BERT_PAIR = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
_FLAT_PAIR = "[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0"

_BERT = TokenizerFamily(
    "wordpiece",
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    _BERT_ROLES,
    _BERT_SINGLE,
    _BERT_PAIR,
    lowercase=True,
    huggingface_class="BertTokenizer",
)
_ROBERTA = TokenizerFamily(
    "bpe",
    ("<s>", "<pad>", "</s>", "<unk>"),
    {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>", "bos": "<s>", "eos": "</s>"},
    "<s>:0 $A:0 </s>:0",
    "<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0",
    last=("<mask>",),
    token_types=False,
)
_MODERNBERT = TokenizerFamily(
    "bpe",
    (),
    _BERT_ROLES,
    _BERT_SINGLE,
    _FLAT_PAIR,
    last=("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"),
    token_types=False,
)
# GPT-2 has one special token for everything and no mask token: its mask id is -1
_GPT2 = TokenizerFamily(
    "bpe",
    (),
    {name: "<|endoftext|>" for name in ("pad", "unk", "cls", "sep", "bos", "eos")},
    "$A:0",
    "$A:0 $B:0",
    last=("<|endoftext|>",),
    token_types=False,
)
_ALBERT = TokenizerFamily(
    "unigram",
    ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    {**_BERT_ROLES, "pad": "<pad>", "unk": "<unk>", "bos": "[CLS]", "eos": "[SEP]"},
    _BERT_SINGLE,
    _BERT_PAIR,
    lowercase=True,
)
_DEBERTA = TokenizerFamily(
    "bpe", ("[PAD]", "[CLS]", "[SEP]", "[UNK]"), _BERT_ROLES, _BERT_SINGLE, _BERT_PAIR, last=("[MASK]",)
)
_DEBERTA_V2 = dataclasses.replace(_DEBERTA, model="unigram", sentencepiece_file="spm.model")
_XLNET = TokenizerFamily(
    "unigram",
    ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"),
    {"pad": "<pad>", "unk": "<unk>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>", "bos": "<s>", "eos": "</s>"},
    "$A:0 <sep>:0 <cls>:2",
    "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
    padding_side="left",
)

FAMILIES: dict[str, TokenizerFamily] = {
    "bert": _BERT,
    "electra": _BERT,
    "spanbert": dataclasses.replace(_BERT, lowercase=False),
    "distilbert": dataclasses.replace(_BERT, token_types=False),
    "roberta": _ROBERTA,
    "modernbert": _MODERNBERT,
    "gpt2": _GPT2,
    "albert": _ALBERT,
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA_V2,
    "deberta-v3": _DEBERTA_V2,
    "xlnet": _XLNET,
}


def family_of(name: str) -> TokenizerFamily:
    """The family of that name; raises `UserError` with the names there are."""
    require_one_of("tokenizer family", name, FAMILIES)
    return FAMILIES[name]


def guess_family(tokens: Sequence[str], kind: str, where: str) -> str:
    """Returns the family of a vocabulary by its special tokens.

    Args:
        tokens: Tokens of the vocabulary.
        kind: wordpiece, bpe or unigram.
        where: Path, for the message.

    Raises:
        UserError: No family fits.
    """
    held = set(tokens)
    order = {"wordpiece": ["bert"], "unigram": ["xlnet", "albert", "deberta-v2"], "bpe": ["roberta", "modernbert"]}[
        kind
    ]
    if kind == "bpe" and tokens[0] == "[PAD]":
        order = ["deberta"]
    for name in [*order, *FAMILIES]:
        roles = FAMILIES[name].roles
        needed = set(roles.values()) - set(FAMILIES[name].last if kind == "unigram" else ())
        if needed <= held:
            return name
    raise UserError(
        f"{where} does not have the special tokens of a known family (for BERT: {', '.join(_BERT.first)}); "
        "add them, or train a tokenizer with `bertjax tokenizer`"
    )
