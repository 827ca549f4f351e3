"""Runs a case in bertjax and in `transformers`, in both directions, and measures the differences."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models import encoder_decoder
from bertjax.models.model import abstract_params
from bertjax.types import Params
from parity.cases import Arrays, Case, draw_batch, draw_target

DIRECTIONS = ("theirs -> ours", "ours -> theirs")
# Quantities that are right (0) or wrong (inf, with a note). The last is reported only if it is wrong.
EXACT = NAMES, CONFIG, REFUSED = "names", "config", "loaded"
_VOCABULARY_PADDING = 37  # rows of the word embeddings that training adds and an export must not hold
_NEEDED = "comparing with transformers needs {}, which is not installed: pip install torch transformers"

# Suffix of a class name -> {field of its output: our output}; the first match applies.
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
    "ForMultipleChoice": {"logits": "choice_logits"},
    "ForQuestionAnswering": {"start_logits": "start_logits", "end_logits": "end_logits"},
    "ForQuestionAnsweringSimple": {"start_logits": "start_logits", "end_logits": "end_logits"},
    "": {"logits": "mlm_logits", "pooler_output": "pooler_output"},
}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Difference of one quantity.

    Args:
        family: family of the case.
        case: its name.
        model_class: class of `transformers`.
        direction: from `DIRECTIONS`.
        padding: none, right or left.
        quantity: logits, pooler_output, hidden_states[0], names, ...; those of a further call begin with its name.
        max_abs_diff: infinite if the quantity is missing or wrong.
        tolerance: largest difference that agrees.
        note: what is wrong.
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
        """True if the difference is within the tolerance."""
        return self.max_abs_diff <= self.tolerance

    def __str__(self) -> str:
        where = f"{self.model_class} ({self.case}), {self.direction}, padding {self.padding}"
        return f"{where}: {self.quantity} {self.max_abs_diff:.2g} > {self.tolerance:.0e} {self.note}".rstrip()


Differences = Iterator[tuple[str, str, float, str]]
"""padding, quantity, max_abs_diff, note"""


def compare(case: Case, model_class: str, direction: str) -> list[Measurement]:
    """Measures every quantity of one class in one direction, with and without padding.

    Args:
        case: configuration and inputs.
        model_class: class of `transformers`.
        direction: from `DIRECTIONS`.

    Raises:
        UserError: torch or transformers is not installed. A folder that is refused is a measurement.
    """
    _transformers()
    run = _theirs_to_ours if direction == DIRECTIONS[0] else _ours_to_theirs
    with tempfile.TemporaryDirectory() as scratch, _fast_compilation():
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
            for padding, quantity, difference, note in _with_refusal(run(case, model_class, Path(scratch)))
        ]


def _with_refusal(differences: Differences) -> Differences:
    try:
        yield from differences
    except UserError as error:
        yield "none", REFUSED, math.inf, str(error)


def _theirs_to_ours(case: Case, model_class: str, scratch: Path) -> Differences:
    """`transformers` saves, bertjax loads."""
    model = random_transformers_model(case, model_class)
    model.save_pretrained(scratch)
    yield from _differences(case, load_pretrained(scratch), model)


def _ours_to_theirs(case: Case, model_class: str, scratch: Path) -> Differences:
    """bertjax saves, `transformers` loads and saves again: the same names, tensors and config."""
    random_transformers_model(case, model_class).save_pretrained(scratch / "sample")
    _save_random(load_pretrained(scratch / "sample"), scratch / "ours", case.zero_pad)
    architectures = json.loads((scratch / "ours" / "config.json").read_text())["architectures"]
    expected = model_class.replace(*case.written_as, 1)
    if architectures != [expected]:
        yield "none", NAMES, math.inf, f"the class written is {architectures[0]}"
        return
    loaded, info = getattr(_transformers(), expected).from_pretrained(
        scratch / "ours", output_loading_info=True, trust_remote_code=False
    )
    errors = [f"{kind}: {_some(names)}" for kind, names in info.items() if names]
    loaded.save_pretrained(scratch / "theirs")
    errors += _tensor_errors(scratch / "ours", scratch / "theirs")
    yield "none", NAMES, math.inf if errors else 0.0, "; ".join(errors)
    errors = _config_errors(scratch / "ours", scratch / "theirs", case.unwritten)
    yield "none", CONFIG, math.inf if errors else 0.0, "; ".join(errors)
    # Loaded from the folder instead of memory: equal bit by bit without vocabulary padding, and the compiled program of
    # the other direction is reused.
    yield from _differences(case, load_pretrained(scratch / "ours"), loaded.eval())


def _save_random(sample: PretrainedModel | PretrainedEncoderDecoder, folder: Path, zero_pad: bool = False) -> None:
    """Saves a model of the same config with random parameters and a padded vocabulary."""

    def padded(config: EncoderConfig) -> EncoderConfig:
        return dataclasses.replace(config, padded_vocab_size=config.vocab_size + _VOCABULARY_PADDING)

    if isinstance(sample, PretrainedModel):
        config = padded(sample.config)
        params = random_params(config, sample.heads)
        if zero_pad:
            words = params["encoder"]["embeddings"]["word_embeddings"]
            words["embedding"] = words["embedding"].at[config.pad_token_id].set(0.0)
        save_pretrained(folder, params, config, heads=sample.heads)
        return
    encoder, decoder = padded(sample.config.encoder), padded(sample.config.decoder)
    pair = dataclasses.replace(sample.config, encoder=encoder, decoder=decoder)
    params = draw_like(encoder_decoder.abstract_params(pair))
    dataclasses.replace(sample, config=pair, params=params).save_pretrained(folder)


def random_transformers_model(case: Case, model_class: str, seed: int = 0) -> Any:
    """Returns a model of `transformers` with random parameters: a swapped name shows only if no two tensors are equal.

    Args:
        case: configuration.
        model_class: class of `transformers`.
        seed: seed of the draws.
    """
    torch, transformers = _torch(), _transformers()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        config = getattr(transformers, case.config_class)(**case.config)
        model = getattr(transformers, model_class)(config).eval()
        biases = [buffer for name, buffer in model.named_buffers() if name == "final_logits_bias"]
        for parameter in (*(each for each in model.parameters() if each.requires_grad), *biases):
            parameter.add_(torch.randn_like(parameter) * 0.08)
        if case.zero_pad:
            model.get_input_embeddings().weight[config.pad_token_id] = 0.0
    return model


def random_params(config: EncoderConfig, heads: tuple[str, ...], seed: int = 2) -> Params:
    """Returns random parameters of a bertjax model.

    Args:
        config: architecture.
        heads: heads of the model.
        seed: seed of the draws.
    """
    return draw_like(abstract_params(config, heads), seed, 0.0 if config.norm_zero_centered else 1.0)


def draw_like(shapes: Params, seed: int = 2, scales: float = 1.0) -> Params:
    """Returns random parameters; norm scales are around `scales`, else all tokens would look alike."""
    draw = np.random.default_rng(seed).standard_normal

    def random(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        center = scales if path[-1].key == "scale" else 0.0
        return (center + 0.1 * draw(leaf.shape)).astype(leaf.dtype)

    return jax.device_put(jax.tree_util.tree_map_with_path(random, shapes))


def run_transformers(model: Any, inputs: Arrays, **options: Any) -> Any:
    """Returns the output of a model of `transformers` for numpy inputs."""
    torch = _torch()
    with torch.no_grad():
        return model(**{name: torch.from_numpy(array) for name, array in inputs.items()}, **options)


def library_versions() -> dict[str, str]:
    """Returns the versions of transformers and torch; raises `UserError` if one is not installed."""
    return {"transformers": _transformers().__version__, "torch": _torch().__version__}


def _differences(case: Case, ours: PretrainedModel | PretrainedEncoderDecoder, theirs: Any) -> Differences:
    for padding in case.paddings:
        if isinstance(ours, PretrainedModel):
            batch = _batch(case, padding, ours.config)
        else:
            batch = _batch(case, padding, ours.config.encoder) | draw_target(
                case, padding, ours.config.decoder.vocab_size
            )
        results = [("", _transformers_arrays(theirs, batch, case), _bertjax_arrays(ours, batch))]
        results += [
            (f"{call.name}: ", call.transformers(theirs, batch), call.bertjax(ours, batch)) for call in case.calls
        ]
        compares_padding = case.compare_padding and not case.reads_padding
        for prefix, expected, actual in results:
            for name in sorted(expected.keys() | actual.keys()):
                if prefix == "" and name == "pooler_output" and name not in expected:
                    continue  # transformers returns it from the bare model only, bertjax from every model with a pooler
                difference, note = _difference(expected.get(name), actual.get(name), batch, compares_padding)
                yield padding, f"{prefix}{name}", difference, note


def _batch(case: Case, padding: str, config: EncoderConfig) -> Arrays:
    types = config.type_vocab_size if case.num_token_types is None else case.num_token_types
    return draw_batch(case, padding, config.vocab_size, config.max_position_embeddings, types, config.pad_token_id)


def _transformers_arrays(model: Any, batch: Arrays, case: Case) -> Arrays:
    if case.reads_padding and not batch["attention_mask"].all():
        return _without_padding(model, batch, case)
    is_choice = type(model).__name__.endswith("ForMultipleChoice")  # takes [B, C, S]; the sequences are choices of one
    inputs = {name: array[None] for name, array in batch.items()} if is_choice else batch
    out = run_transformers(model, inputs, output_hidden_states=True)
    if "decoder_input_ids" in batch:
        arrays = {"logits": out.logits.numpy()}
        return arrays | _by_layer(out, lambda state: state.numpy(), "encoder_hidden_states", "decoder_hidden_states")
    fields = next(fields for suffix, fields in OUTPUT_FIELDS.items() if type(model).__name__.endswith(suffix))
    arrays = {ours: out[theirs].numpy() for theirs, ours in fields.items() if out.get(theirs) is not None}
    if is_choice:
        arrays = {name: array[0] for name, array in arrays.items()}
    states = out.get("hidden_states") or (*out.encoder_hidden_states, *out.decoder_hidden_states)
    states = states[:: case.states_per_layer]
    return arrays | {f"hidden_states[{index}]": state.numpy() for index, state in enumerate(states)}


def _without_padding(model: Any, batch: Arrays, case: Case) -> Arrays:
    """Returns what every row gets by itself, without padding, which is zero in outputs of tokens."""
    length, rows = batch["input_ids"].shape[1], list[Arrays]()
    for index, real in enumerate(batch["attention_mask"].sum(axis=1)):
        row = {name: array[index : index + 1, :real] for name, array in batch.items()}
        for name, array in (arrays := _transformers_arrays(model, row, case)).items():
            if name not in ("sequence_logits", "choice_logits"):
                widths = [(0, 0), (0, length - int(real)), *[(0, 0)] * (array.ndim - 2)]
                arrays[name] = np.pad(array, widths)
        rows.append(arrays)
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _by_layer(out: Any, convert: Callable[[Any], np.ndarray], *names: str) -> Arrays:
    """Returns the hidden states of each layer of an output by name and number."""
    return {f"{name}[{index}]": convert(state) for name in names for index, state in enumerate(getattr(out, name))}


def _bertjax_arrays(model: PretrainedModel | PretrainedEncoderDecoder, batch: Arrays) -> Arrays:
    inputs: dict[str, Any] = {**batch, "output_hidden_states": True}
    if isinstance(model, PretrainedEncoderDecoder):
        both = model(**inputs)
        return {"logits": np.asarray(both.logits)} | _by_layer(
            both, np.asarray, "encoder_hidden_states", "decoder_hidden_states"
        )
    out = model(**inputs)._asdict()
    states = out.pop("hidden_states")
    last = np.asarray(out.pop("last_hidden_state"))
    if not np.array_equal(last, np.asarray(states[-1])):
        raise UserError("the last hidden state is not the last of the hidden states")
    arrays = {name: np.asarray(value) for name, value in out.items() if value is not None}
    return arrays | {f"hidden_states[{index}]": np.asarray(state) for index, state in enumerate(states)}


def _difference(
    expected: np.ndarray | None, actual: np.ndarray | None, batch: Arrays, with_padding: bool
) -> tuple[float, str]:
    """Returns the largest absolute difference and a note; infinity if the arrays cannot be compared."""
    if expected is None or actual is None:
        return math.inf, "only ours has it" if expected is None else "only theirs has it"
    if expected.shape != actual.shape:
        return math.inf, f"theirs is {list(expected.shape)}, ours {list(actual.shape)}"
    gap = np.abs(expected.astype(np.float64) - actual.astype(np.float64))
    mask = batch["attention_mask"]
    if not with_padding and gap.shape[:2] == mask.shape:
        gap = gap[mask > 0]
    worst = float(gap.max())
    return (worst, "") if math.isfinite(worst) else (math.inf, "not finite")


def _tensor_errors(ours: Path, theirs: Path) -> list[str]:
    from safetensors.numpy import load_file

    written, back = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    changed = [name for name in written.keys() & back.keys() if written[name].tobytes() != back[name].tobytes()]
    errors = {
        "only theirs holds": back.keys() - written.keys(),
        "only ours holds": written.keys() - back.keys(),
        "changed on the way:": changed,
    }
    return [f"{title} {_some(names)}" for title, names in errors.items() if names]


def _config_errors(ours: Path, theirs: Path, unwritten: tuple[str, ...]) -> list[str]:
    written, back = (_flat(json.loads((folder / "config.json").read_text())) for folder in (ours, theirs))
    absent = object()
    return [
        f"config.json: {key} = {value!r} comes back as {back.get(key)!r}"
        for key, value in written.items()
        if back.get(key, absent) != value and key not in unwritten
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a config.json with the keys of nested configs below their names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _some(names: Any) -> str:
    return comma_list(sorted(map(str, names)), 4)


@contextlib.contextmanager
def _fast_compilation() -> Iterator[None]:
    """Skips expensive compiler passes: every case is a model that runs twice."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


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
