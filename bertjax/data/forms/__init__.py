"""Forms: how text becomes rows. The host knows forms, never losses."""

from __future__ import annotations

import functools
from collections.abc import Callable

from bertjax.data.corpus import Corpus
from bertjax.data.forms.base import Form, FormSettings, SpecialIds
from bertjax.data.forms.blocks import Blocks
from bertjax.data.forms.pairs import Pairs
from bertjax.data.forms.segments import Segments, Stream
from bertjax.types import UserError

FORMS: dict[str, Callable[[Corpus, FormSettings], Form]] = {
    "block": Blocks,
    "nsp_pairs": functools.partial(Pairs, rule="nsp"),
    "sop_pairs": functools.partial(Pairs, rule="sop"),
    "segments": Segments,
    "stream": Stream,
}

__all__ = ["FORMS", "Form", "FormSettings", "SpecialIds", "make_form"]


def make_form(
    name: str,
    corpus: Corpus,
    *,
    seq_len: int,
    seed: int,
    special_ids: SpecialIds,
    short_seq_prob: float = 0.1,
    dupe_factor: int = 1,
    sop_strict: bool = False,
    batch_size: int = 1,
    reuse_len: int = 0,
    bi_data: bool = False,
    end_id: int = -1,
) -> Form:
    """The form `name` over a corpus; `special_ids` is a tokenizer or `Vocabulary`; raises `UserError`."""
    if name not in FORMS:
        raise UserError(f"data.form {name!r} is unknown; known are {', '.join(sorted(FORMS))}")
    for role in ("pad_id", "cls_id", "sep_id"):
        if getattr(special_ids, role) < 0:
            raise UserError(f"data.form {name} needs a tokenizer with a {role[:3]} piece; this one has none")
    if dupe_factor < 1:
        raise UserError(f"dupe_factor must be at least 1, not {dupe_factor}")
    if not 0 <= short_seq_prob <= 1:
        raise UserError(f"short_seq_prob must lie in [0, 1], not {short_seq_prob}")
    settings = FormSettings(
        seq_len=seq_len,
        seed=seed,
        pad_id=special_ids.pad_id,
        cls_id=special_ids.cls_id,
        sep_id=special_ids.sep_id,
        short_seq_prob=short_seq_prob,
        dupe_factor=dupe_factor,
        sop_strict=sop_strict,
        batch_size=batch_size,
        reuse_len=reuse_len,
        bi_data=bi_data,
        end_id=end_id,
    )
    return FORMS[name](corpus, settings)
