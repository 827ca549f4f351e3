"""Which layers run as one scan. Needs no jax."""

from __future__ import annotations

import dataclasses
import itertools

from bertjax.config.model import EncoderConfig


@dataclasses.dataclass(frozen=True)
class Segment:
    """Consecutive layers that run as one scan: `repeats` times the `pattern` (True = local), from layer `start` on.

    `group` names the shared parameters; None = layers with their own.
    """

    start: int
    repeats: int
    pattern: tuple[bool, ...]
    group: int | None = None

    @property
    def stop(self) -> int:
        return self.start + self.repeats * len(self.pattern)


def segments(config: EncoderConfig, start: int = 0, stop: int | None = None) -> list[Segment]:
    """Layers `start` to `stop` as scans over whole periods of the local/global pattern, and what is left over.

    Cuts fall where a layer differs from the next in more than the pattern: behind layer 0 where that has no norm or is
    followed by a convolution, and between groups of shared parameters.
    """
    stop = config.num_layers if stop is None else stop
    cuts = {start, stop}
    if not config.first_attention_norm or config.conv_kernel_size:
        cuts.add(1)
    if config.num_groups is not None:
        cuts |= {i for i in range(1, config.num_layers) if config.group_of(i) != config.group_of(i - 1)}
    period = config.global_every if config.window else 1
    found = []
    for low, high in itertools.pairwise(sorted(cut for cut in cuts if start <= cut <= stop)):
        group = None if config.num_groups is None else config.group_of(low)
        whole = low + (high - low) // period * period
        for first, count, width in ((low, (whole - low) // period, period), (whole, 1, high - whole)):
            if count and width:
                pattern = tuple(config.is_local(layer) for layer in range(first, first + width))
                found.append(Segment(first, count, pattern, group))
    return found
