"""Training steps as they are lowered for GPUs and TPUs: kernels, float32 matmuls, arrays of scores, donated state.

`lowered_programs.json` has the facts of every recipe and platform. A change of a program changes them; look at the
difference, and write them again: `python tests/tools/test_lowered_programs.py`. It needs no device or compiler for one.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractDevice, AbstractMesh

from bertjax.config.overrides import load_config, set_values
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import abstract_batch, placeholder_vocabulary
from bertjax.models import attention_kernels, cudnn, dropout, linear
from bertjax.models.pallas import attention as fused_attention
from bertjax.models.pallas import norm as pallas_norm
from bertjax.objectives import vocab_loss
from bertjax.runtime import platform as runtime_platform
from bertjax.training import step

FACTS = Path(__file__).with_name("lowered_programs.json")
LAYERS = 2
GPU = "NVIDIA H100 80GB HBM3"
LAYERED = ("bert without attention dropout", "bert without attention dropout, pallas norms")
# sizes of the recipes, with few layers and little vocabulary: shapes per layer are those of the published models
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert:base", {}),
    "bert without attention dropout": ("bert:base", {"model.attention_dropout": 0.0}),
    "bert without attention dropout, pallas norms": (
        "bert:base",
        {"model.attention_dropout": 0.0, "train.dropout_prng": "hash", "model.norm_implementation": "pallas"},
    ),
    "bert, pallas": ("bert:base", {"model.attention_implementation": "pallas"}),
    "bert, scanned, remat=dots": ("bert:large", {"model.attention_dropout": 0.0, "model.remat": "dots"}),
    # fewer sequences than the recipe's, which needs several GPUs: cuDNN's offsets are 32-bit numbers
    "modernbert at 1,024": ("modernbert:base", {"train.batch_size": 768}),
    "deberta v3": ("deberta:v3-base", {"model.num_layers": 4}),  # two of them in the generator
    "deberta v3, pallas": ("deberta:v3-base", {"model.num_layers": 4, "model.attention_implementation": "pallas"}),
    "electra": ("electra:base", {}),
    "xlnet": ("xlnet:base", {}),
    "xlnet, pallas": ("xlnet:base", {"model.attention_implementation": "pallas"}),
    "t5": ("t5:base", {}),
}
KERNELS = ("bert without attention dropout", "bert, scanned, remat=dots", "modernbert at 1,024")
PROGRAMS = [  # without a kernel all platforms get one program
    *((name, "cuda") for name in RECIPES),
    *((name, "tpu") for name in (*KERNELS, "bert, pallas", "deberta v3, pallas", "xlnet, pallas")),
    ("bert without attention dropout", "rocm"),
]
MARKS = dict.fromkeys(
    [
        ("bert without attention dropout", "cuda"),
        ("bert", "cuda"),
        ("bert without attention dropout", "tpu"),
        ("bert without attention dropout, pallas norms", "cuda"),
        ("deberta v3, pallas", "cuda"),
    ],
    pytest.mark.long,
)
_FUNCTION = re.compile(r"^  func\.func \w+ @([\w.]+)\(", re.MULTILINE)
_CALL = re.compile(r"\bcall @([\w.]+)\(")
_KERNEL = re.compile(r"custom_call @([\w.$]*(?:cudnn|tpu_custom_call|triton)[\w.$]*)\(")
_MATMUL = re.compile(r"stablehlo\.dot_general .* : \((tensor<[^>]+>), (tensor<[^>]+>)\)")
_RESULT = re.compile(r"stablehlo\.(\w+).*tensor<([\dx]+)x(\w+)>(?: loc.*)?$", re.MULTILINE)
_NOT_ELEMENTWISE = {"dot_general", "broadcast_in_dim", "reshape", "constant", "custom_call", "iota", "return"}


def lowered(name: str, platform: str, **more: Any) -> tuple[str, build.Experiment]:
    """Returns the StableHLO of the step of the last phase, and its experiment; `more` are keys with __ for the dot."""
    config, values = RECIPES[name]
    cfg = load_config(config)
    cfg = set_values(cfg, {"model.num_layers": LAYERS, "mesh.data": 1} | values)
    cfg = set_values(cfg, {key.replace("__", "."): value for key, value in more.items()})
    jax.clear_caches()  # traces of other tests know another platform
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            attention_kernels,
            dropout,
            linear,
            fused_attention,
            pallas_norm,
            runtime_platform,
            step,
            vocab_loss,
        ):
            patch.setattr(module, "target_platform", lambda: platform)
        patch.setattr(cudnn, "target_device_kind", lambda: GPU if platform == "cuda" else platform)
        patch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
        exp = build.make_experiment(cfg, placeholder_vocabulary(cfg.data.vocab_size))
        last = exp.programs[-1]
        mesh = exp.mesh.abstract_mesh
        if platform == "cuda" and jax.__version_info__ >= (0, 12):  # it lowers Triton kernels for a known GPU alone
            device = AbstractDevice(GPU, None, "gpu")
            mesh = AbstractMesh(mesh.axis_sizes, mesh.axis_names, mesh.axis_types, abstract_device=device)
        with jax.sharding.use_abstract_mesh(mesh):
            traced = last.train_step.trace(exp.abstract_state(), exp.frozen, abstract_batch(exp, last))
        return traced.lower(lowering_platforms=(platform,)).as_text(), exp


def functions(text: str) -> dict[str, str]:
    """Returns the functions of a program by name."""
    starts = [*_FUNCTION.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {match[1]: text[match.start() : end] for match, end in zip(starts, ends, strict=True)}


def count(text: str, tokens: int, width: int, seq_len: int) -> Counter[str]:
    """Counts what a program does, with functions as often as they are called, and loops once."""
    bodies = functions(text)

    @functools.cache
    def total(name: str) -> Counter[str]:
        facts: Counter[str] = Counter()
        facts.update(f"kernel {kernel}" for kernel in _KERNEL.findall(bodies[name]))
        facts.update("matmul" for _ in _MATMUL.finditer(bodies[name]))
        facts.update(f"float32 matmul {a} {b}" for a, b in _MATMUL.findall(bodies[name]) if "f32>" in a or "f32>" in b)
        for operation, shape, dtype in _RESULT.findall(bodies[name]):
            sizes = [int(size) for size in shape.split("x")]
            if sizes[-2:] == [seq_len, seq_len] and len(sizes) == 4:  # [B, N, S, S]
                facts[f"scores {dtype}" if sizes[1] > 1 else f"mask {dtype}"] += 1
            large = functools.reduce(int.__mul__, sizes) >= tokens * width
            facts["elementwise"] += large and operation not in _NOT_ELEMENTWISE
        for callee in _CALL.findall(bodies[name]):
            facts += total(callee)
        return facts

    return total("main")


@functools.cache
def facts_of(name: str, platform: str) -> dict[str, int]:
    """Returns the facts of a program that `lowered_programs.json` holds."""
    text, exp = lowered(name, platform)
    shape = abstract_batch(exp, exp.programs[-1])["input_ids"].shape
    tokens, seq_len = shape[-2] * shape[-1], shape[-1]
    facts = count(text, tokens // exp.cfg.train.microbatches, exp.model.hidden_size, seq_len)
    state = len(jax.tree.leaves(exp.abstract_state()))
    donated = len(re.findall(r"tf\.aliasing_output|jax\.buffer_donor", text))
    return dict(sorted({**facts, "state": state, "donated": donated}.items()))


@pytest.mark.parametrize(
    ("name", "platform"), [pytest.param(*each, marks=MARKS.get(each, pytest.mark.weekly)) for each in PROGRAMS]
)
def test_programs_do_what_the_file_says(name: str, platform: str) -> None:
    known = json.loads(FACTS.read_text())
    expected = known[platform][name]
    if jax.__version_info__[:2] == (0, 11) and any("triton" in fact for fact in expected):
        pytest.skip("jax 0.11 lowers Triton kernels on a mesh of GPUs alone")
    facts = facts_of(name, platform)
    if jax.__version__ != known["jax"]:  # whose functions may consist of other operations
        facts, expected = ({**each, "elementwise": 0} for each in (facts, expected))
    assert facts == expected


def test_where_cudnn_computes_attention_there_is_no_mask_of_pairs() -> None:
    """Neither as a bias [B, 1, S, S] nor as its gradient: lengths and offsets of examples replace it."""
    by_cudnn = {name: facts for name, facts in json.loads(FACTS.read_text())["cuda"].items() if "cudnn" in str(facts)}
    assert set(by_cudnn) == {*KERNELS, *LAYERED}
    for facts in by_cudnn.values():
        assert not any(fact.startswith(("mask", "scores", "kernel __cudnn$fmhaScaleBias")) for fact in facts)


@pytest.mark.long
def test_elementwise_work_per_layer_is_known() -> None:
    """Of a layer, forward and backward, as the difference of two depths: it decides how many arrays a step moves."""
    known = json.loads(FACTS.read_text())
    if jax.__version__ != known["jax"]:
        pytest.skip("functions of this jax may consist of other operations")
    assert elementwise_per_layer() == known["elementwise per layer"]


@pytest.mark.long
def test_gradients_are_reduced_once_after_all_microbatches() -> None:
    """One all-reduce for every array of the step's result, each outside of the loop over microbatches."""
    text, exp = lowered("bert", "cuda", mesh__data=2, train__microbatches=2)
    lines = {name: re.findall(rf"^( *)%.*stablehlo\.{name}\b", text, re.MULTILINE) for name in ("while", "all_reduce")}
    arrays = len(jax.tree.leaves(exp.abstract_state().params))
    assert set(lines["all_reduce"]) == {min(lines["while"])}  # not inside of the loop
    assert arrays <= len(lines["all_reduce"]) <= arrays + 12  # the loss, sums and counts


@pytest.mark.long
def test_microbatches_add_up_the_gradients_of_each_layer() -> None:
    """Not those of the stack: only a layer's own addition can be part of the matmul of its gradient."""
    text, exp = lowered("bert", "cuda", mesh__data=2, train__microbatches=2)
    shape = f"{exp.model.hidden_size}x{exp.model.intermediate_size}xf32"
    assert len(re.findall(rf"stablehlo\.add .*tensor<{shape}>$", text, re.MULTILINE)) == exp.model.num_layers


def elementwise_per_layer() -> dict[str, int]:
    """Returns the elementwise operations that one more layer of BERT adds to programs for GPUs."""
    added = {}
    for name in LAYERED:
        text, exp = lowered(name, "cuda", model__num_layers=LAYERS + 1)
        batch_size, seq_len = abstract_batch(exp, exp.programs[-1])["input_ids"].shape
        deeper = count(text, batch_size * seq_len, exp.model.hidden_size, seq_len)
        added[name] = deeper["elementwise"] - facts_of(name, "cuda")["elementwise"]
    return added


if __name__ == "__main__":
    everything: dict[str, Any] = {"jax": jax.__version__}
    for recipe, target in PROGRAMS:
        everything.setdefault(target, {})[recipe] = facts_of(recipe, target)
    everything["elementwise per layer"] = elementwise_per_layer()
    FACTS.write_text(json.dumps(everything, indent=2) + "\n")
