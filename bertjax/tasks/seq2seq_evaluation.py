"""Evaluation of sequence to sequence: the loss of all held-out targets, and metrics of generated texts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.generation import GenerationConfig
from bertjax.config.model import float32_config
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.metrics import add_sums, mean_metrics
from bertjax.models.generation import generate
from bertjax.objectives.base import StepInputs
from bertjax.tasks.batches import length_steps
from bertjax.tasks.evaluate import Evaluator
from bertjax.tasks.features import Features
from bertjax.tasks.metrics.generated_text import metric_names, require_libraries
from bertjax.training.sharding import host_copy, put_batch
from bertjax.types import Batch, Params, Sum

_NUM_LENGTHS = 3  # of sources: each is a program to compile


class GenerationEvaluator(Evaluator):
    """Loss of all held-out targets given the tokens before, and metrics of the texts that the model generates."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        require_libraries(self.config.spec.text_metrics)
        exact = float32_model(self.objective.seq2seq_model)
        objective = self.objective.targets.with_model(exact, self.objective.vocabulary)

        def step(params: Params, batch: Batch) -> dict[str, Sum]:
            key = jax.random.key(0)
            return objective.loss(params, StepInputs({}, {}), objective.corrupt(batch, key, jnp.int32(0)), key, False)[
                0
            ]

        search = generation_config(self.config, exact, self.tokenizer)
        self._generator = TextGenerator(exact, self.tokenizer, search, self.config.batch_size)
        self._step = jax.jit(step, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

    def __call__(self, params: Params, frozen: Any) -> dict[str, float]:
        with jax.default_matmul_precision("float32"):
            sums = [self._step(params, put_batch(batch, self.mesh)) for batch in self.batches]
        metrics = self._loss_metrics(add_sums(jax.device_get(sums)))
        settings = self.config.spec
        if settings.text_metrics:
            count = settings.num_generated or len(self.examples)
            texts, length = self._generator(one_device(params, self.mesh), self.data.features, count)
            result = self.config.spec.compute_metrics(self.config, self.examples, self.data, texts, ())
            self.on_result(result)
            metrics |= result.metrics | {"generated_length": length}
        return {f"eval/{name}": value for name, value in metrics.items()}

    def names(self) -> list[str]:
        sums = {name: Sum(0.0, 1.0) for name in ("seq2seq", "seq2seq_nll", "seq2seq_accuracy")}
        names = [*self._loss_metrics(sums), *metric_names(self.config.spec.text_metrics)]
        return [f"eval/{name}" for name in names]

    def _loss_metrics(self, sums: dict[str, Sum]) -> dict[str, float]:
        means = mean_metrics(sums, self.objective.loss_weights)
        return means | {"perplexity": math.exp(min(means["seq2seq_nll"], 700.0))}


class TextGenerator:
    """Generates the texts of windows, those of similar length together.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        settings: settings of the search.
        batch_size: windows at a time.
    """

    def __init__(
        self, model: EncoderDecoderConfig, tokenizer: Tokenizer, settings: GenerationConfig, batch_size: int
    ) -> None:
        self._model, self._tokenizer, self._settings, self._batch_size = model, tokenizer, settings, batch_size

    def __call__(self, params: Params, features: Features, count: int) -> tuple[list[str], float]:
        """Returns the texts of the first windows, and their mean number of tokens.

        Args:
            params: parameters on one device.
            features: the windows.
            count: number of windows.
        """
        lengths = features.lengths[:count]
        order = np.argsort(-lengths, kind="stable")
        size = min(self._batch_size, len(order))
        steps = length_steps((int(-(-lengths.max() // 8) * 8),), _NUM_LENGTHS)
        ids: list[Sequence[int]] = [()] * len(order)
        for begin in range(0, len(order), size):
            numbers = order[begin : begin + size]
            width = min(step for (step,) in steps if step >= lengths[numbers].max())
            inputs = self._inputs(features, numbers, size, width)
            with jax.default_matmul_precision("float32"):
                result = jax.device_get(generate(params, self._model, inputs, self._settings))
            for row, number in enumerate(numbers):
                ids[number] = result.sequences[row, 0, : int(result.lengths[row, 0])].tolist()
        return self._tokenizer.decode_texts(ids), float(np.mean([len(each) for each in ids]))

    def _inputs(self, features: Features, numbers: np.ndarray, size: int, width: int) -> dict[str, np.ndarray]:
        """Returns the windows as rows; those that fill the last batch repeat the first one."""
        ids = np.full((size, width), self._tokenizer.pad_id, np.int32)
        mask = np.zeros((size, width), np.int32)
        for row in range(size):
            number = numbers[row] if row < len(numbers) else numbers[0]
            tokens = features.tokens[features.offsets[number] : features.offsets[number + 1]]
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        return {"input_ids": ids, "attention_mask": mask}


def generation_config(config: TaskConfig, model: EncoderDecoderConfig, tokenizer: Tokenizer) -> GenerationConfig:
    """Returns the settings of the search, as an export stores them.

    Args:
        config: settings of the task.
        model: the model, with its start token.
        tokenizer: its tokenizer.
    """
    return GenerationConfig(
        **config.spec.generation,
        decoder_start_token_id=model.decoder_start_token_id,
        eos_token_id=(tokenizer.sep_id,),
        pad_token_id=tokenizer.pad_id,
    )


def float32_model(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Returns the model that computes in float32, as an export is read, whatever the dtype of training."""
    encoder, decoder = (
        dataclasses.replace(float32_config(network), padded_vocab_size=network.padded_vocab_size)
        for network in (config.encoder, config.decoder)
    )
    return dataclasses.replace(config, encoder=encoder, decoder=decoder)


def one_device(params: Params, mesh: Mesh) -> Params:
    """Returns parameters of a mesh on one device, where every process generates all texts."""
    return params if mesh.size == 1 else jax.tree.map(jnp.asarray, host_copy(params))
