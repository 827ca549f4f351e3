"""Special tokens of every model family: their order and roles.

Sources: the released vocabularies and tokenizer classes of BERT, RoBERTa, XLM-R, CamemBERT, ALBERT, XLNet, DeBERTa and
ModernBERT. Tokenizers of no such family (Llama, Gemma, Qwen) have the roles that their files declare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from bertjax.errors import require_one_of

SENTINEL = "<extra_id_{}>"
"""Tokens that stand for dropped spans, numbered from 0; in T5's vocabulary the first one has the highest id."""

ROLES = ("pad", "unk", "cls", "sep", "mask")
DECLARED = "declared"
"""Name of the family of a tokenizer whose own files declare its special tokens."""


@dataclasses.dataclass(frozen=True)
class TokenizerFamily:
    """Special tokens of a family. `first` tokens take ids 0, 1, ...; `last` tokens take the highest ids.

    `roles` maps pad, unk, cls, sep, mask (and bos, eos where Hugging Face expects them); `single` and `pair` are the
    layouts of one and of two texts as `TOKEN:TYPE` words.
    """

    model: str  # what the family trains, a value of `data.tokenizer`
    first: tuple[str, ...]
    roles: dict[str, str]
    single: str
    pair: str
    last: tuple[str, ...] = ()
    lowercase: bool = False
    token_types: bool = True
    padding_side: str = "right"
    truncation_side: str = "right"
    huggingface_class: str = "PreTrainedTokenizerFast"
    sentencepiece_file: str = "spiece.model"
    file_first: tuple[str, ...] = ()  # first tokens of that file where its ids are not those of the model (fairseq)
    sentinels: tuple[str, ...] = ()  # T5's, added after all others

    @property
    def special(self) -> tuple[str, ...]:
        """All special tokens."""
        return self.first + self.last + self.sentinels


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
_XLM_ROBERTA = dataclasses.replace(
    _ROBERTA, model="unigram", sentencepiece_file="sentencepiece.bpe.model", file_first=("<unk>", "<s>", "</s>")
)
# fairseq wrote its own <s>, </s> and <unk> before those of the file, which are the ones that CamemBERT uses
_CAMEMBERT = dataclasses.replace(
    _XLM_ROBERTA, first=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>")
)
# fairseq's tokens around BERT's vocabulary, whose [UNK] WordPiece needs
_MPNET = dataclasses.replace(
    _ROBERTA,
    model="wordpiece",
    first=("<s>", "<pad>", "</s>", "<unk>", "[UNK]"),
    roles=_ROBERTA.roles | {"unk": "[UNK]"},
    lowercase=True,
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
# facebookresearch/esm:esm/data.py, whose alphabet begins and ends with these; <eos> also stands between two proteins
_ESM = TokenizerFamily(
    "protein",
    ("<cls>", "<pad>", "<eos>", "<unk>"),
    {"pad": "<pad>", "unk": "<unk>", "cls": "<cls>", "sep": "<eos>", "mask": "<mask>", "eos": "<eos>"},
    "<cls>:0 $A:0 <eos>:0",
    "<cls>:0 $A:0 <eos>:0 $B:0 <eos>:0",
    last=("<null_1>", "<mask>"),
    token_types=False,
    huggingface_class="EsmTokenizer",
)

FAMILIES: dict[str, TokenizerFamily] = {
    "bert": _BERT,
    "electra": _BERT,
    "spanbert": dataclasses.replace(_BERT, lowercase=False),
    "distilbert": dataclasses.replace(_BERT, token_types=False),
    "roberta": _ROBERTA,
    "xlm-roberta": _XLM_ROBERTA,
    "camembert": _CAMEMBERT,
    "modernbert": _MODERNBERT,
    "gpt2": _GPT2,
    "albert": _ALBERT,
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA_V2,
    "deberta-v3": _DEBERTA_V2,
    "xlnet": _XLNET,
    "mpnet": _MPNET,
    "esm": _ESM,
}


def family_of(name: str) -> TokenizerFamily:
    """The family of that name; raises `UserError` with the names there are."""
    require_one_of("tokenizer family", name, FAMILIES)
    return FAMILIES[name]


_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "bos": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>", "<|cls|>"),
    "sep": ("[SEP]", "<sep>", "<|sep|>"),
}


def find_family(spec: TokenizerFamily, any_types: bool = False) -> tuple[str, TokenizerFamily]:
    """Returns the family whose roles and layouts a vocabulary has, else `DECLARED`, and the exact special tokens.

    Args:
        spec: what its files declare.
        any_types: nothing declares whether models read token types: they are the family's.
    """
    for name in sorted(FAMILIES, key=lambda name: FAMILIES[name].model != spec.model):
        family = FAMILIES[name]
        others = family.roles.keys() - {*ROLES}
        if any(family.roles.get(role) != spec.roles.get(role) for role in ROLES):
            continue
        if any(spec.roles.get(role, family.roles[role]) != family.roles[role] for role in others):
            continue
        layouts = (spec.single, spec.pair), (family.single, family.pair)
        if _without_types(layouts[0]) != _without_types(layouts[1]):
            continue
        same = {*spec.special} <= {*family.special} and (any_types or family.token_types == spec.token_types)
        same &= layouts[0] == layouts[1] or not family.token_types
        same &= (family.padding_side, "right") == (spec.padding_side, spec.truncation_side)
        return name, family if same else spec
    return DECLARED, spec


def _without_types(layouts: tuple[str, ...]) -> list[list[str]]:
    return [[word.rpartition(":")[0] for word in layout.split()] for layout in layouts]


def declared_family(
    tokens: Sequence[str], kind: str, special: Iterable[str], declared: Mapping[str, str] | None
) -> TokenizerFamily:
    """Returns the special tokens of a vocabulary, without layouts.

    The text begins with the declared [CLS] or else begin token, and ends with [SEP] or the end token; padding, which no
    token attends to, may be the end token. Roles without a token stay absent: `Tokenizer.complete` adds them.

    Args:
        tokens: Tokens of the vocabulary.
        kind: wordpiece, wordlevel, bpe or unigram.
        special: Tokens that the file marks as special.
        declared: Tokens by role; None: a bare file, whose special tokens have their usual names.
    """
    special = list(special)
    if declared is None:
        roles = {role: name for role, names in _NAMES.items() for name in [n for n in names if n in special][:1]}
    else:
        held = set(tokens)
        roles = {role: token for role, token in declared.items() if token in held}
    for role, others in {"cls": ["bos"], "sep": ["eos"], "pad": ["eos", "sep"]}.items():
        for token in [roles[other] for other in others if other in roles][:1]:
            roles.setdefault(role, token)
    both = dict.fromkeys([*special, *roles.values()])
    return TokenizerFamily(kind, (), roles, "$A:0", "$A:0 $B:0", tuple(both), token_types=False)


def complete_family(family: TokenizerFamily, absent: Sequence[str], sentinels: int = 0) -> TokenizerFamily:
    """Returns a family with tokens for absent roles, spelled like its others, and texts between [CLS] and [SEP].

    Args:
        family: A family.
        absent: Roles that it lacks and gets; afterwards it has cls and sep.
        sentinels: Number of sentinels that it gets.
    """
    style = next(
        (form for form in ("<|{}|>", "[{}]") if any(_is_like(token, form) for token in family.special)), "<{}>"
    )
    added = {role: style.format(role.upper() if style[0] == "[" else role) for role in absent}
    roles = family.roles | added
    last = (*family.last, *(token for token in added.values() if token not in family.special))
    single = f"{roles['cls']}:0 $A:0 {roles['sep']}:0"
    return dataclasses.replace(
        family,
        roles=roles,
        last=last,
        single=single,
        pair=f"{single} $B:0 {roles['sep']}:0",
        token_types=False,
        sentinels=tuple(SENTINEL.format(number) for number in reversed(range(sentinels))),
    )


def _is_like(token: str, form: str) -> bool:
    before, after = form.split("{}")
    return token.startswith(before) and token.endswith(after)
