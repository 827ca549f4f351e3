"""Runs a case here and in `transformers`, in both directions, and says how far apart the numbers are."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models.model import abstract_params
from bertjax.parity.cases import Arrays, Case, draw_batch
from bertjax.types import Params

DIRECTIONS = ("theirs -> ours", "ours -> theirs")
# Quantities that are right (0) or wrong (inf, with a note); the last is only there when it is wrong.
EXACT = NAMES, CONFIG, REFUSED = "names", "config", "loaded"
_VOCABULARY_PADDING = 37  # rows that training would add, and an export must not hold

# Ending of a class name -> {field of its output: our output}. The first that fits is taken.
OUTPUT_FIELDS: dict[str, dict[str, str]] = {
    "ForPreTraining": {
        "prediction_logits": "mlm_logits",
        "seq_relationship_logits": "pair_logits",
        "sop_logits": "pair_logits",
        "logits": "rtd_logits",
    },
    "ForNextSentencePrediction": {"logits": "pair_logits"},
    "ForSequenceClassification": {"logits": "sequence_logits"},
    "ForTokenClassification": {"logits": "token_logits"},
    "ForQuestionAnswering": {"start_logits": "start_logits", "end_logits": "end_logits"},
    "ForQuestionAnsweringSimple": {"start_logits": "start_logits", "end_logits": "end_logits"},
    "": {"logits": "mlm_logits", "pooler_output": "pooler_output"},
}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """How far one quantity lies apart; `note` says what is wrong with one that is no number.

    padding   none, right or left
    quantity  logits, pooler_output, hidden_states[0], names, ...; those of a further call begin with its name
    """

    family: str
    case: str
    model_class: str
    direction: str
    padding: str
    quantity: str
    max_abs_diff: float
    tolerance: float
    note: str = ""

    @property
    def agrees(self) -> bool:
        return self.max_abs_diff <= self.tolerance

    def __str__(self) -> str:
        where = f"{self.model_class} ({self.case}), {self.direction}, padding {self.padding}"
        return f"{where}: {self.quantity} {self.max_abs_diff:.2g} > {self.tolerance:.0e} {self.note}".rstrip()


def compare(case: Case, model_class: str, direction: str) -> list[Measurement]:
    """Every quantity of one class in one direction, on padded and unpadded rows."""
    _transformers()  # its absence is the user's to mend; a folder that is refused is a finding
    with tempfile.TemporaryDirectory() as scratch, _quick_compilation():
        run = _theirs_to_ours if direction == DIRECTIONS[0] else _ours_to_theirs
        return [
            Measurement(
                case.family,
                case.name,
                model_class,
                direction,
                padding,
                quantity,
                difference,
                0.0 if quantity in EXACT else case.tolerance,
                note,
            )
            for padding, quantity, difference, note in _refusals_found(run(case, model_class, Path(scratch)))
        ]


Found = Iterator[tuple[str, str, float, str]]


def _refusals_found(found: Found) -> Found:
    try:
        yield from found
    except UserError as error:
        yield "none", REFUSED, math.inf, str(error)


def _theirs_to_ours(case: Case, model_class: str, scratch: Path) -> Found:
    """They save, we load."""
    model = random_transformers_model(case, model_class)
    model.save_pretrained(scratch)
    yield from _compare(case, load_pretrained(scratch), model)


def _ours_to_theirs(case: Case, model_class: str, scratch: Path) -> Found:
    """We save, they load and save again: the same names, the same tensors, the same config."""
    random_transformers_model(case, model_class).save_pretrained(scratch / "sample")
    sample = load_pretrained(scratch / "sample")
    config = dataclasses.replace(sample.config, padded_vocab_size=sample.config.vocab_size + _VOCABULARY_PADDING)
    params = random_params(config, sample.heads)
    save_pretrained(scratch / "ours", params, config, heads=sample.heads)
    described = json.loads((scratch / "ours" / "config.json").read_text())["architectures"]
    if described != [model_class]:
        yield "none", NAMES, math.inf, f"the class written is {described[0]}"
        return
    loaded, info = getattr(_transformers(), model_class).from_pretrained(
        scratch / "ours", output_loading_info=True, trust_remote_code=False
    )
    faults = [f"{kind}: {_some(names)}" for kind, names in info.items() if names]
    loaded.save_pretrained(scratch / "theirs")
    faults += _tensor_faults(scratch / "ours", scratch / "theirs")
    yield "none", NAMES, math.inf if faults else 0.0, "; ".join(faults)
    faults = _config_faults(scratch / "ours", scratch / "theirs", case.unwritten)
    yield "none", CONFIG, math.inf if faults else 0.0, "; ".join(faults)
    # Read back, not as in memory: equal bit by bit but for the vocabulary's padding, and compiled once for both ways.
    yield from _compare(case, load_pretrained(scratch / "ours"), loaded.eval())


def random_transformers_model(case: Case, model_class: str, seed: int = 0) -> Any:
    """A model of `transformers` with no parameter at its initial value: zeros and ones would hide a swapped name."""
    torch, transformers = _torch(), _transformers()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        config = getattr(transformers, case.config_class)(**case.config)
        model = getattr(transformers, model_class)(config).eval()
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
    return model


def random_params(config: EncoderConfig, heads: tuple[str, ...], seed: int = 2) -> Params:
    """Random numbers in every parameter of ours; the scales of norms around one, lest all tokens look alike."""
    draw = np.random.default_rng(seed).standard_normal

    def random(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        centre = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(centre + 0.1 * draw(leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(random, abstract_params(config, heads))


def run_transformers(model: Any, inputs: Arrays, **options: Any) -> Any:
    """The output of a model of `transformers` for numpy inputs."""
    torch = _torch()
    with torch.no_grad():
        return model(**{name: torch.from_numpy(array) for name, array in inputs.items()}, **options)


def library_versions() -> dict[str, str]:
    """Of what is compared with; raises `UserError` where it is not installed."""
    return {"transformers": _transformers().__version__, "torch": _torch().__version__}


def _compare(case: Case, ours: PretrainedModel, theirs: Any) -> Found:
    for padding in case.paddings:
        batch = _batch(case, padding, ours.config)
        results = [("", _their_arrays(theirs, batch, case), _our_arrays(ours, batch))]
        results += [(f"{call.name}: ", call.theirs(theirs, batch), call.ours(ours, batch)) for call in case.calls]
        for prefix, expected, found in results:
            for name in sorted(expected.keys() | found.keys()):
                if prefix == "" and name == "pooler_output" and name not in expected:
                    continue  # ours is there for every model with a pooler, theirs only in the bare model
                difference, note = _difference(expected.get(name), found.get(name), batch, case.compare_padding)
                yield padding, f"{prefix}{name}", difference, note


def _batch(case: Case, padding: str, config: EncoderConfig) -> Arrays:
    types = config.type_vocab_size if case.num_token_types is None else case.num_token_types
    return draw_batch(case, padding, config.vocab_size, config.max_position_embeddings, types, config.pad_token_id)


def _their_arrays(model: Any, batch: Arrays, case: Case) -> Arrays:
    out = run_transformers(model, batch, output_hidden_states=True)
    reading = next(fields for ending, fields in OUTPUT_FIELDS.items() if type(model).__name__.endswith(ending))
    found = {ours: out[theirs].numpy() for theirs, ours in reading.items() if out.get(theirs) is not None}
    kept = out.hidden_states[:: case.states_per_layer]
    states = {f"hidden_states[{index}]": state.numpy() for index, state in enumerate(kept)}
    return found | states


def _our_arrays(model: PretrainedModel, batch: Arrays) -> Arrays:
    """Every output that is there; the last hidden state is among the hidden states."""
    inputs: dict[str, Any] = {**batch, "output_hidden_states": True}
    out = model(**inputs)._asdict()
    states = out.pop("hidden_states")
    last = np.asarray(out.pop("last_hidden_state"))
    if not np.array_equal(last, np.asarray(states[-1])):
        raise UserError("the last hidden state is not the last of the hidden states")
    found = {name: np.asarray(value) for name, value in out.items() if value is not None}
    return found | {f"hidden_states[{index}]": np.asarray(state) for index, state in enumerate(states)}


def _difference(
    expected: np.ndarray | None, found: np.ndarray | None, batch: Arrays, with_padding: bool
) -> tuple[float, str]:
    """(largest absolute difference, what is wrong if there is none to take)."""
    if expected is None or found is None:
        return math.inf, "only ours has it" if expected is None else "only theirs has it"
    if expected.shape != found.shape:
        return math.inf, f"theirs is {list(expected.shape)}, ours {list(found.shape)}"
    gap = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    mask = batch["attention_mask"]
    if not with_padding and gap.shape[:2] == mask.shape:
        gap = gap[mask > 0]
    worst = float(gap.max())
    return (worst, "") if math.isfinite(worst) else (math.inf, "not finite")


def _tensor_faults(ours: Path, theirs: Path) -> list[str]:
    from safetensors.numpy import load_file

    mine, back = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    faults = [f"only theirs holds {_some(back.keys() - mine.keys())}"] if back.keys() - mine.keys() else []
    faults += [f"only ours holds {_some(mine.keys() - back.keys())}"] if mine.keys() - back.keys() else []
    changed = [name for name in mine.keys() & back.keys() if mine[name].tobytes() != back[name].tobytes()]
    return faults + ([f"changed on the way: {_some(changed)}"] if changed else [])


def _config_faults(ours: Path, theirs: Path, unwritten: tuple[str, ...]) -> list[str]:
    mine, back = (json.loads((folder / "config.json").read_text()) for folder in (ours, theirs))
    absent = object()
    return [
        f"config.json: {key} = {value!r} comes back as {back.get(key)!r}"
        for key, value in mine.items()
        if back.get(key, absent) != value and (key in back or key not in unwritten)
    ]


def _some(names: Any, most: int = 4) -> str:
    return comma_list(sorted(map(str, names)), most)


class _quick_compilation:
    """Compiles without the dear passes: every case is a model of its own that runs twice."""

    def __enter__(self) -> None:
        self.before = jax.config.read("jax_disable_most_optimizations")
        jax.config.update("jax_disable_most_optimizations", True)

    def __exit__(self, *_: object) -> None:
        jax.config.update("jax_disable_most_optimizations", self.before)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UserError(_NEEDED.format("torch")) from None
    return torch


def _transformers() -> Any:
    _torch()
    try:
        import transformers
    except ImportError:
        raise UserError(_NEEDED.format("transformers")) from None
    transformers.utils.logging.disable_progress_bar()
    return transformers


_NEEDED = "comparing with transformers needs {}, which is not installed: pip install torch transformers"
