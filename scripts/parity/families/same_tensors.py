"""Families with the tensors of BERT or RoBERTa, at the sizes of those cases: equal maths need one compiled program."""

from __future__ import annotations

import dataclasses
from typing import Any

from parity.cases import Case
from parity.families import bert, roberta


def _like(base: Case, family: str, stem: str, classes: str, name: str = "", **config: Any) -> Case:
    """Returns a case of another family.

    Args:
        base: case whose sizes and classes are taken.
        family: name of the family in the table.
        stem: what the names of the other classes begin with.
        classes: what the names of these classes begin with.
        name: what is unusual besides.
        **config: further keyword arguments of the config.
    """
    return dataclasses.replace(
        base,
        family=family,
        name=f"{base.name}{name and ', '}{name}",
        config_class=f"{classes}Config",
        config={**base.config, **config},
        classes=tuple(each.replace(stem, classes) for each in base.classes),
    )


def _read_as_roberta(base: Case, family: str, classes: str, **config: Any) -> Case:
    """Returns a case of a family that is written as RoBERTa; transformers does not tie the output table of LUKE."""
    case = _like(base, family, "Roberta", classes, **config)
    read = tuple(name for name in case.classes if name != "LukeForMaskedLM")  # tests/hf/test_read_as_roberta.py
    return dataclasses.replace(case, classes=read, written_as=(classes, "Roberta"))


CASES = (
    *(
        _like(case, family, "Roberta", classes)
        for family, classes in (
            ("xlm-roberta", "XLMRoberta"),
            ("camembert", "Camembert"),
            ("data2vec-text", "Data2VecText"),
            ("xlm-roberta-xl", "XLMRobertaXL"),
        )
        for case in roberta.CASES
    ),
    *(
        _read_as_roberta(case, family, classes, **config)
        for family, classes, config in (
            ("luke", "Luke", dict(entity_vocab_size=11, entity_emb_size=7)),
            ("ibert", "IBert", dict(hidden_act="gelu")),
        )
        for case in roberta.CASES
    ),
    _like(roberta.CASES[0], "roberta-prelayernorm", "Roberta", "RobertaPreLayerNorm"),
    _like(bert.CASES[0], "ernie", "Bert", "Ernie"),
    _like(bert.CASES[1], "ernie", "Bert", "Ernie", "a table of tasks", use_task_id=True, task_type_vocab_size=4),
    *(_like(case, "megatron-bert", "Bert", "MegatronBert") for case in bert.CASES[:2]),
)
