"""Dynamic and static masking of a batch: pure functions on the device, no loop whose length grows with the sequence.

`corrupt.mask_batch` is the whole corruption of a batch. Every random number is a function of the key of its example and
of its position in the example, hence the same on any device and in any sequence, packed or alone.

`tokens.py` finds tokens and words, `corrupt.py` computes how many tokens of an example are masked,
`selection.py` selects them, and `corrupt.py` draws their replacements.
"""
