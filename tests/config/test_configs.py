"""Every config of `configs/`, at every size: the training step by shapes alone, and published parameter counts.

`python tests/config/test_configs.py` writes the facts that `bertjax configs` prints.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path

import jax
import pytest
from ml_collections import ConfigDict

from bertjax.config.catalog import CATALOG, config_files, stored_facts
from bertjax.config.model import EncoderConfig, differences, encoder_config
from bertjax.config.overrides import flatten, load_config
from bertjax.config.presets import preset
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, placeholder_vocabulary
from bertjax.experiment.config import parse
from bertjax.hf.keymaps import FAMILIES
from bertjax.models import encoder_decoder
from bertjax.models.model import abstract_params, count_params
from bertjax.objectives.base import Network
from bertjax.objectives.distillation.objective import Distillation

PRETRAINING = [file for file in config_files() if not file.name.startswith("finetune/")]
SPECS = [f"{file.name}:{size}" if size else file.name for file in PRETRAINING for size in file.sizes]

# ForPreTraining, tied weights once (google-research/bert:README.md sizes; counted with Hugging Face's classes).
PUBLISHED = {
    "tiny": 4_433_468,
    "mini": 11_267_900,
    "small": 29_058_876,
    "medium": 41_668_412,
    "base": 110_106_428,
    "base-cased": 108_932_934,
    "large": 336_226_108,
    "large-cased": 334_661_958,
}


def teacher_of(cfg: ConfigDict) -> Network | None:
    """Returns the teacher of a distillation config: BERT-base, or the run of bert:smoke."""
    if cfg.objective.name != "distillation":
        return None
    name = "bert:base" if cfg.model.num_layers == "preset" or cfg.data.seq_len > 32 else "bert:smoke"
    return Network(
        dataclasses.replace(encoder_config(load_config(name)), vocab_size=cfg.data.vocab_size),
        ("pooler", "mlm", "pair"),
    )


@pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=pytest.mark.long) if re.search(r":\d+x\d+$", spec) else spec for spec in SPECS]
)
def test_every_length_of_a_run(spec: str) -> None:
    cfg = load_config(spec)
    for steps in (1, 5, 11, 89):
        cfg.train.num_steps = steps
        schedule = parse(cfg).schedule
        assert 0 <= schedule.warmup_steps <= steps and schedule.decay >= 1


# One size of every family that the mission names, those with steps of their own in the ordinary suite; other sizes are
# weekly.
MAIN_FAMILIES = (
    "albert",
    "bert",
    "deberta",
    "distilbert",
    "electra",
    "modernbert",
    "roberta",
    "spanbert",
    "transformer",
)
TRACED = ["quickstart", *(f"{name}:smoke" for name in (*MAIN_FAMILIES, "gpt2", "t5", "xlnet"))]
ORDINARY = ["quickstart", *(f"{name}:smoke" for name in ("bert", "electra", "modernbert", "t5", "xlnet"))]
EVERY = [
    spec if spec in ORDINARY else pytest.param(spec, marks=pytest.mark.long if spec in TRACED else pytest.mark.weekly)
    for spec in SPECS
]

NAMES = {"model.preset", "generator.preset", "decoder.preset", "data.tokenizer", "data.sources", "init_from"}


@functools.cache
def settings_of(spec: str) -> dict[str, object]:
    """Returns what the train step of a config depends on besides sizes: words, switches, and numbers that are such."""
    cfg = load_config(spec)
    values = {f"config.{name}": value for name, value in flatten(cfg).items() if name not in NAMES}
    values |= {f"encoder.{name}": value for name, value in dataclasses.asdict(encoder_config(cfg)).items()}
    return {
        name: value if isinstance(value, str) or value in (False, True, -1, None) else type(value)
        for name, value in values.items()
    }


def differs_in_sizes_alone(spec: str) -> bool:
    """Returns whether an earlier size of the same file has the same settings."""
    others = [other for other in SPECS[: SPECS.index(spec)] if other.partition(":")[0] == spec.partition(":")[0]]
    return any(settings_of(other) == settings_of(spec) for other in others)


@pytest.mark.parametrize("spec", EVERY)
def test_the_whole_train_step_has_its_shapes(spec: str) -> None:
    """The step is traced once for sizes of equal settings, and for every size of the ordinary suite."""
    cfg = load_config(spec)
    parse(cfg)
    cfg.model.unroll = 1
    experiment = build.make_experiment(cfg, placeholder_vocabulary(cfg.data.vocab_size), teacher_of(cfg))
    if isinstance(experiment.objective, Distillation):
        experiment.frozen = {"teacher": abstract_params(*experiment.objective.teacher_network)}
    state = experiment.abstract_state()
    assert count_all(experiment) == stored_facts()[spec].parameters
    if spec not in TRACED and differs_in_sizes_alone(spec):
        return
    with jax.set_mesh(experiment.mesh):
        new_state, metrics = jax.eval_shape(experiment.train_step, state, experiment.frozen, abstract_batch(experiment))
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (state, new_state)]
    assert shapes[0] == shapes[1]
    assert metrics["loss"].shape == ()


def count_all(experiment: build.Experiment) -> int:
    both = experiment.objective.encoder_decoder
    return count_params(*experiment.network) if both is None else encoder_decoder.count_params(both)


def test_parameter_counts_are_the_published_ones() -> None:
    assert {size: stored_facts()[f"bert:{size}"].parameters for size in PUBLISHED} == PUBLISHED
    assert {name for name, facts in stored_facts().items() if facts.parameters is not None} == set(SPECS)


@pytest.mark.long
def test_the_catalog_is_that_of_the_configs() -> None:
    """`bertjax configs` reads it in place of the configs; the docstring of this file says how to write it."""
    facts = [file.read_facts(size) for file in config_files() for size in file.sizes]
    assert {each.name: each for each in facts} == stored_facts()


def test_a_decoder_becomes_an_encoder_of_its_sizes(tmp_path: Path) -> None:
    """llm2vec takes the architecture of a folder, with bidirectional attention."""
    model = EncoderConfig(**{**preset("eurobert-610m"), "family": "llama", "causal": True, "pad_token_id": 0})
    values = FAMILIES["llama"].render_config(dataclasses.replace(model, classifier_dense="none"), "LlamaForCausalLM")
    (tmp_path / "config.json").write_text(json.dumps(values))
    cfg = load_config(f"llm2vec:{tmp_path}")
    result = encoder_config(cfg)
    assert (result.kv_heads, result.num_heads, result.num_layers, result.causal) == (6, 18, 26, False)
    assert cfg.init_from == cfg.data.tokenizer == str(tmp_path) and cfg.objective.mlm.masked_next_token
    assert differences(result, FAMILIES["llama"].parse_config(values | {"is_causal": False})) == []


if __name__ == "__main__":
    lines = []
    for facts in sorted((file.read_facts(size) for file in config_files() for size in file.sizes), key=str):
        values = dataclasses.asdict(facts)
        if values.pop("name") in SPECS:
            config = load_config(facts.name)
            vocabulary = placeholder_vocabulary(config.data.vocab_size)
            values["parameters"] = count_all(build.make_experiment(config, vocabulary, teacher_of(config)))
        lines.append(f"{json.dumps(facts.name)}: {json.dumps(values)}")
    CATALOG.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
