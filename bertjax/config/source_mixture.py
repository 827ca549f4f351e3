"""Settings of how sources are mixed: by size, temperature or weights, within limits of epochs."""

from __future__ import annotations

import dataclasses
import math
import re

from bertjax.config.fields import Settings, phase_setting
from bertjax.errors import UserError

EPOCHS = r"(\d+(?:\.\d+)?)?\.\.(\d+(?:\.\d+)?)?"
"""Regular expression of MIN..MAX, both optional."""
Limits = tuple[float, float]


def parse_epochs(text: str, where: str) -> Limits:
    """Returns the fewest and most epochs of `MIN..MAX`, 0 and infinity where left out; errors begin with `where`."""
    match = re.fullmatch(EPOCHS, text)
    if match is None:
        raise UserError(f"{where}: epochs are MIN..MAX, such as 1..4 or ..4, not {text!r}")
    minimum, maximum = float(match[1] or 0), float(match[2] or math.inf)
    if minimum > maximum or maximum == 0:
        raise UserError(f"{where}: MAX of epochs {text} must be above 0 and at least MIN")
    return minimum, maximum


@dataclasses.dataclass(frozen=True)
class SourceMixtureConfig(Settings, group="data"):
    """Shares of the sources of a run; the order is another one as soon as a key is set."""

    mixture_alpha: float | None = phase_setting(
        None,
        at_least=0.0,
        at_most=1.0,
        help="Sources are mixed in proportion to size ** alpha, the inverse of a temperature: 1 by size, 0 equally. "
        "None: by @WEIGHT, or by size without weights.",
    )
    mixture_unit: str = phase_setting(
        "sequences",
        choices=("sequences", "tokens"),
        help="What sizes and shares count: sequences, or their tokens without padding.",
    )
    mixture_epochs: str = phase_setting(
        "..",
        help="MIN..MAX, fewest and most epochs of a source over all steps with these `data` settings, unless the "
        "source has its own (@MIN..MAX); the other sources fill up. alpha 0 with a maximum is UniMax.",
    )

    def check(self) -> None:
        _ = self.limits

    @property
    def limits(self) -> Limits:
        """Fewest and most epochs of a source that has no limits of its own."""
        return parse_epochs(self.mixture_epochs, "data.mixture_epochs")
