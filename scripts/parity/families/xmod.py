"""X-MOD: `transformers.XmodConfig`. RoBERTa's cases with adapters, norms after and before the blocks."""

from __future__ import annotations

import dataclasses

from parity.families.roberta import CASES as ROBERTA

_CHANGES = (
    ("adapters of a third", dict(languages=["en_XX"], default_language="en_XX", adapter_reduction_factor=3)),
    (
        "norms before the blocks",
        dict(
            languages=["de_DE"],
            default_language="de_DE",
            pre_norm=True,
            adapter_layer_norm=True,
            adapter_reuse_layer_norm=False,
            ln_before_adapter=False,
        ),
    ),
)


CASES = tuple(
    dataclasses.replace(
        base,
        family="xmod",
        name=f"{base.name}, {name}",
        config_class="XmodConfig",
        config={**base.config, **changes},
        classes=tuple(each.replace("Roberta", "Xmod") for each in base.classes),
    )
    for base, (name, changes) in zip(ROBERTA, _CHANGES, strict=True)
)
