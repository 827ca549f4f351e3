"""Settings of generation, with the names and meanings of transformers' `GenerationConfig`. Needs no jax."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Self

from bertjax.config.fields import Settings, setting, settings_of
from bertjax.errors import UserError, comma_list

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "diversity_penalty": (0.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "begin_suppress_tokens": ([],),
    "guidance_scale": (1.0, 1),
    "min_p": (),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "renormalize_logits": (False,),
    "sequence_bias": (),
    "constraints": (),
    "dola_layers": (),
    "force_words_ids": (),
    "max_time": (),
    "token_healing": (False,),
    "watermarking_config": (),
    "stop_strings": (),
    "top_h": (),
    "typical_p": (1.0,),
}
"""Settings of `transformers` that would change the tokens and are not supported -> values that change nothing."""


def _token(help: str) -> Any:
    return setting(None, at_least=0, help=help)


@dataclasses.dataclass(frozen=True)
class GenerationConfig(Settings, group="generation"):
    """Settings of the choice of tokens and of the end of sequences; the defaults of `transformers`: greedy, 20 tokens.

    Attributes:
        bad_words_ids: sequences of tokens that may not occur.
    """

    max_new_tokens: int | None = setting(
        None, at_least=1, help="Most new tokens of a sequence, its end token included; None: as max_length says."
    )
    max_length: int | None = setting(
        None,
        at_least=1,
        help="Most tokens of a sequence with its start token or prompt, without max_new_tokens. None: 20 new tokens.",
    )
    min_new_tokens: int | None = setting(None, at_least=0, help="No end token before so many new tokens.")
    min_length: int = setting(0, at_least=0, help="The same, with the start token or prompt.")
    num_beams: int = setting(1, at_least=1, at_most=1024, help="Beams of the search; 1: none.")
    length_penalty: float = setting(
        1.0,
        help="Beam search: scores are divided by the number of new tokens to this power; above 0 favors long texts.",
    )
    early_stopping: str = setting(
        "false",
        choices=("false", "true", "never"),
        help="Beam search ends: true: as soon as num_beams sequences are finished; false: when the best running one is "
        "worse than all of them at its present length; never: at any length.",
    )
    do_sample: bool = setting(False, help="Draw tokens instead of taking the most probable one.")
    temperature: float = setting(1.0, above=0.0, help="Sampling: divides the logits.")
    top_k: int = setting(50, at_least=0, help="Sampling: only the k most probable tokens; 0: all.")
    top_p: float = setting(
        1.0,
        above=0.0,
        at_most=1.0,
        help="Sampling: only the most probable tokens that together reach this probability (arXiv:1904.09751).",
    )
    no_repeat_ngram_size: int = setting(0, at_least=0, help="No n-gram of this size occurs twice; 0: all may.")
    repetition_penalty: float = setting(
        1.0, above=0.0, help="Above 1: tokens that occurred become less probable (arXiv:1909.05858)."
    )
    num_return_sequences: int = setting(1, at_least=1, at_most=1024, help="Sequences per input.")
    use_cache: bool = setting(
        True, help="Keep keys and values of earlier tokens, where the attention can; false: compute them again."
    )
    decoder_start_token_id: int | None = _token("Token before the first of a target; None: bos_token_id.")
    bos_token_id: int | None = _token("First token of a text.")
    eos_token_id: tuple[int, ...] = setting(
        (), at_least=0, help="Tokens that end a sequence; none: only its length does."
    )
    pad_token_id: int | None = _token("Token after the end of a sequence; None: its end token.")
    forced_bos_token_id: int | None = _token("Token that every target begins with, such as its language.")
    forced_eos_token_id: int | None = _token("Last token of a sequence that reaches the greatest length.")
    suppress_tokens: tuple[int, ...] = setting((), at_least=0, help="Tokens that may not occur.")
    bad_words_ids: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("eos_token_id", "suppress_tokens"):
            value = getattr(self, name)
            value = () if value is None else (value,) if type(value) is int else value
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        if type(self.early_stopping) is bool:
            object.__setattr__(self, "early_stopping", str(self.early_stopping).lower())
        object.__setattr__(self, "bad_words_ids", _words(self.bad_words_ids))
        super().__post_init__()

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        if self.do_sample and self.num_beams > 1:
            raise UserError("do_sample and num_beams > 1 do not go together: beam search is not drawn")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise UserError(
                f"num_return_sequences={self.num_return_sequences} needs as many beams, not "
                f"num_beams={self.num_beams}, or do_sample=true"
            )
        if self.forced_eos_token_id is not None and self.forced_eos_token_id in self.suppress_tokens:
            raise UserError(f"forced_eos_token_id {self.forced_eos_token_id} is one of suppress_tokens")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads a generation_config.json, or arguments of transformers' `generate`; None means the default.

        Raises:
            UserError: a setting is unknown or has a wrong value, or would change the tokens and is not supported.
        """
        return cls().updated(values)

    def updated(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with other values, as `from_json` reads them.

        Raises:
            UserError: a setting has a wrong value or is not supported.
        """
        known = self.names() - {*_NEUTRAL}
        values = {name: value for name, value in values.items() if value is not None}
        refused = [name for name in values.keys() & _NEUTRAL.keys() if values[name] not in _NEUTRAL[name]]
        if refused:
            raise UserError(f"{comma_list(sorted(refused))} is not supported in generation; leave it out")
        return dataclasses.replace(self, **{name: value for name, value in values.items() if name in known})

    @classmethod
    def names(cls) -> set[str]:
        """Returns the names of all settings that change the tokens, supported or not."""
        return {*settings_of(cls), "bad_words_ids", *_NEUTRAL}

    @classmethod
    def require_names(cls, values: Mapping[str, Any]) -> None:
        """Raises `UserError` for a name that is not a setting of generation."""
        known = cls.names()
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; settings are {', '.join(settings_of(cls))}"
                raise UserError(f"generation has no setting {name!r}{hint}")

    @property
    def largest_token_id(self) -> int:
        """The largest id that the settings name, -1 without any."""
        ids = [self.decoder_start_token_id, self.bos_token_id, self.pad_token_id, *self.eos_token_id]
        ids += [self.forced_bos_token_id, self.forced_eos_token_id, *self.suppress_tokens]
        ids += [token for word in self.bad_words_ids for token in word]
        return max((each for each in ids if each is not None), default=-1)


def _words(value: Any) -> tuple[tuple[int, ...], ...]:
    words = tuple(tuple(word) if isinstance(word, (tuple, list)) else () for word in value)
    if not all(word and all(type(token) is int and token >= 0 for token in word) for word in words):
        raise UserError("generation.bad_words_ids expects lists of token ids, none of them empty")
    return words
