"""The table of tokenizers by family, from `bertjax.data.special_tokens`."""

from __future__ import annotations

from bertjax.data.special_tokens import FAMILIES


def tokenizer_families() -> str:
    """Returns the special tokens and layouts of every value of `data.tokenizer_family`."""
    rows = ["| family | kind | special tokens | one text | two texts |", "| --- | --- | --- | --- | --- |"]
    for name, family in FAMILIES.items():
        tokens = " ".join(f"`{token}`".replace("|", "\\|") for token in family.special)
        single, pair = (text.replace("$", "") for text in (family.single, family.pair))
        rows.append(f"| `{name}` | {family.model} | {tokens} | `{single}` | `{pair}` |")
    return "\n".join(rows)
