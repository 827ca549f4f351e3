"""Which tokens are hidden, and behind what: pure functions on the device, no loop whose length grows with the row.

`hide_batch` is the whole corruption of a batch. Every random number is a pure function of (key of its example, its
position in the example): the same on any device, in any row, packed or alone.

`tokens.py` looks at rows and their words, `budgets.py` says how many tokens an example hides, `greedy.py`, `ngrams.py`
and `spans.py` choose them, and `replace.py` says what stands in their place.
"""

from bertjax.objectives.masking.corrupt import gather_chosen, hide_batch, hide_tokens
from bertjax.objectives.masking.num_predictions import budgets, mask_rate_at

__all__ = ["budgets", "gather_chosen", "hide_batch", "hide_tokens", "mask_rate_at"]
