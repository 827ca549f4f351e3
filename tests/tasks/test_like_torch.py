"""Losses equal those of a training loop with transformers and torch.optim: packed rows here, padded rows there."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from models_lab import quick_compilation

from bertjax.config.distributed import MeshConfig
from bertjax.hf.pretrained import load_pretrained
from bertjax.tasks.batches import TaskBatches
from bertjax.tasks.features import Features
from bertjax.tasks.objective import TaskObjective
from bertjax.training.optimizer import Optimizer
from bertjax.training.schedule import Schedule
from bertjax.training.sharding import make_mesh, put_batch
from bertjax.training.state import new_state
from bertjax.training.step import compile_train_step
from bertjax.types import Vocabulary

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, WINDOWS, LONGEST, BATCH, STEPS, RATE = 53, 30, 14, 8, 20, 1e-3
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BASE: dict[str, Any] = {"vocab_size": VOCAB, "pad_token_id": 0, "max_position_embeddings": 40, "num_labels": 3}
QUIET: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
XLNET: dict[str, Any] = {
    "d_model": 32,
    "n_layer": 2,
    "n_head": 4,
    "d_inner": 48,
    "dropout": 0.0,
    "summary_last_dropout": 0,
    "vocab_size": VOCAB,
    "num_labels": 3,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "classification": ("BertForSequenceClassification", {**SIZES, **QUIET}),
    "multilabel": (
        "BertForSequenceClassification",
        {**SIZES, **QUIET, "problem_type": "multi_label_classification"},
    ),
    "regression": ("BertForSequenceClassification", {**SIZES, **QUIET, "num_labels": 1}),
    "tokens": ("BertForTokenClassification", {**SIZES, **QUIET}),
    "qa": ("BertForQuestionAnswering", {**SIZES, **QUIET, "num_labels": 2}),
    "roberta": ("RobertaForSequenceClassification", {**SIZES, **QUIET, "max_position_embeddings": 42}),
    "electra": ("ElectraForSequenceClassification", {**SIZES, **QUIET, "embedding_size": 16}),
    "deberta": ("DebertaV2ForSequenceClassification", {**SIZES, **QUIET, "relative_attention": True}),
    "xlnet": ("XLNetForSequenceClassification", {**XLNET}),
    "modernbert": ("ModernBertForTokenClassification", {**SIZES}),
}


MARKS = dict.fromkeys(("multilabel", "tokens", "qa", "classification"), pytest.mark.long) | {"regression": ()}


def features_of(kind: str, last: bool, has_types: bool) -> Features:
    """Returns random windows; with `last`, the summary is their last token (XLNet)."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(5, LONGEST + 1, WINDOWS)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = draw.integers(5, VOCAB, offsets[-1]).astype(np.int32)
    types = np.zeros(len(tokens), np.int8)
    for begin, end in itertools.pairwise(offsets):
        types[(begin + end) // 2 : end] = has_types
    summary_position = (lengths - 1 if last else np.zeros(WINDOWS)).astype(np.int32)
    start = draw.integers(0, lengths - 2)
    labels: dict[str, np.ndarray] = {
        "classification": {"class_labels": draw.integers(0, 3, WINDOWS).astype(np.int32)},
        "multilabel": {"multi_labels": draw.integers(0, 2, (WINDOWS, 3)).astype(np.float32)},
        "regression": {"score_labels": draw.normal(size=WINDOWS).astype(np.float32)},
        "tokens": {"token_labels": draw.integers(-1, 3, len(tokens)).astype(np.int32)},
        "qa": {"start_labels": start.astype(np.int32), "end_labels": (start + 2).astype(np.int32)},
    }[kind]
    return Features(tokens, offsets, types, np.arange(WINDOWS, dtype=np.int32), summary_position, labels)


def torch_losses(theirs: Any, kind: str, features: Features, orders: list[np.ndarray], left: bool) -> list[float]:
    """Returns the losses of Trainer's loop: padding to the longest, AdamW, linear decay, clipping."""
    plain = ("bias", "norm.weight", "LayerNorm.weight", "layer_norm.weight")
    named = list(theirs.named_parameters())
    groups = [
        {"params": [value for name, value in named if not name.endswith(plain)], "weight_decay": 0.01},
        {"params": [value for name, value in named if name.endswith(plain)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-8)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 4, STEPS)
    losses: list[float] = []
    while len(losses) < STEPS:
        order = orders[len(losses) // 4]
        for begin in range(0, len(order), BATCH):
            loss = torch_loss(theirs, kind, features, order[begin : begin + BATCH], left)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def torch_loss(theirs: Any, kind: str, features: Features, numbers: np.ndarray, left: bool) -> Any:
    lengths = features.lengths[numbers]
    size = (len(numbers), int(lengths.max()))
    arrays = {name: np.zeros(size, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    words = np.full(size, -100)
    for row, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
        source = slice(features.offsets[number], features.offsets[number + 1])
        here = slice(size[1] - length, size[1]) if left else slice(0, length)
        arrays["input_ids"][row, here] = features.tokens[source]
        arrays["token_type_ids"][row, here] = features.token_types[source]
        arrays["attention_mask"][row, here] = 1
        if kind == "tokens":
            words[row, here] = np.where(
                features.labels["token_labels"][source] < 0, -100, features.labels["token_labels"][source]
            )
    if type(theirs).__name__.startswith(("Roberta", "ModernBert")):
        del arrays["token_type_ids"]
    inputs = {name: torch.from_numpy(value) for name, value in arrays.items()}
    if kind == "qa":  # transformers allows answers on padding; here only the tokens of the window are compared
        result = theirs(**inputs)
        mask = torch.where(inputs["attention_mask"] > 0, 0.0, float("-inf"))
        sides = ((result.start_logits, "start_labels"), (result.end_logits, "end_labels"))
        each = [
            torch.nn.functional.cross_entropy(scores + mask, torch.from_numpy(features.labels[name][numbers]).long())
            for scores, name in sides
        ]
        return (each[0] + each[1]) / 2
    if kind == "tokens":
        return theirs(**inputs, labels=torch.from_numpy(words)).loss
    if kind == "multilabel":
        return theirs(**inputs, labels=torch.from_numpy(features.labels["multi_labels"][numbers])).loss
    if kind == "regression":
        return theirs(**inputs, labels=torch.from_numpy(features.labels["score_labels"][numbers])).loss
    return theirs(**inputs, labels=torch.from_numpy(features.labels["class_labels"][numbers]).long()).loss


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=MARKS.get(case, pytest.mark.weekly)) for case in CASES],
)
def test_first_twenty_losses(case: str, tmp_path: Path) -> None:
    """At dropout 0, with the same batches in the same order, to 1e-4 (the last batch of an epoch is smaller)."""
    architecture, sizes = CASES[case]
    kind = case if case in ("multilabel", "regression", "tokens", "qa") else "classification"
    kind = "tokens" if "Token" in architecture else kind
    torch.manual_seed(0)
    config_class = getattr(transformers, architecture.split("For")[0] + "Config")
    theirs = getattr(transformers, architecture)(config_class(**{**({} if case == "xlnet" else BASE), **sizes}))
    with torch.no_grad():
        for value in theirs.parameters():  # the initial heads are large enough to learn something in twenty steps
            if value.ndim > 1:
                value.mul_(3.0)
    theirs.save_pretrained(tmp_path)
    theirs.eval()  # dropout is 0: it makes no other difference
    features = features_of(kind, last=case == "xlnet", has_types=case not in ("roberta", "modernbert"))
    orders = [np.random.default_rng(epoch).permutation(WINDOWS) for epoch in range(5)]
    expected = torch_losses(theirs, kind, features, orders, left=case == "xlnet")
    result = our_losses(tmp_path, kind, features, orders, make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]))
    np.testing.assert_allclose(result, expected, atol=1e-4)
    assert np.ptp(expected) > 0.05  # the weights have changed


def our_losses(folder: Path, kind: str, features: Features, orders: list[np.ndarray], mesh: Mesh) -> list[float]:
    ours = load_pretrained(folder)
    config = TaskObjective(kind=kind)
    ids = {f"{name}_id": number for number, name in enumerate(("pad", "unk", "cls", "sep", "mask"))}
    counts = np.ones(VOCAB, np.int64)
    vocabulary = Vocabulary(VOCAB, VOCAB, **ids, special_ids=(0, 1, 2, 3, 4), starts_word=counts > 0, counts=counts)
    objective = config.build({"model": ours.config}, vocabulary)
    assert set(objective.heads) == set(ours.heads)
    batches = TaskBatches(
        features, batch_size=BATCH, epochs=5, seed=0, pad_id=0, vocab_size=VOCAB, seq_len=2 * LONGEST, orders=orders
    )
    assert batches.max_examples > 1 and batches.num_steps == STEPS
    schedule = Schedule("linear", learning_rate=RATE, warmup_steps=4, num_steps=STEPS).rate
    settings = Optimizer(learning_rate=RATE, eps=1e-8, bias_correction=True, weight_decay=0.01, clip_norm=1.0)
    optimizer = settings.make(schedule, ours.params)
    step = compile_train_step(mesh, objective, optimizer, microbatches=1, seed=0)
    losses = []
    with quick_compilation(), jax.set_mesh(mesh):
        state = new_state(ours.params, {}, optimizer)
        for cursor in range(STEPS):
            state, metrics = step(state, {}, put_batch(batches.batch(cursor), mesh))
            losses.append(float(metrics["loss"]))
    return losses


def test_thawed_parameters_move_as_in_torch() -> None:
    """`requires_grad` from step 5 on: Adam's bias correction begins there."""
    grads = np.random.default_rng(0).normal(size=(8, 3, 4)).astype(np.float32)
    params: Any = {name: {"kernel": np.ones((3, 4), np.float32)} for name in ("head", "body")}
    weight = torch.nn.Parameter(torch.ones(3, 4))
    theirs = torch.optim.AdamW([weight], lr=0.1, eps=1e-6, weight_decay=0.01)
    config = Optimizer(bias_correction=True, clip_norm=0.0, unfreeze=("body/.*=5",))
    optimizer = config.make(lambda step: 0.1, params)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step, grad in enumerate(grads):
        weight.grad = torch.from_numpy(grad) if step >= 5 else None
        theirs.step()
        updates, state = update({name: {"kernel": grad} for name in params}, state, params)
        params = jax.tree.map(np.add, params, updates)
    np.testing.assert_allclose(params["body"]["kernel"], weight.detach().numpy(), rtol=0, atol=1e-5)
