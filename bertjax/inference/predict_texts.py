"""Texts that an encoder-decoder generates for texts, as JSON records."""

from __future__ import annotations

from bertjax.config.generation import GenerationConfig
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import named
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.inference.predict import Predictions
from bertjax.inference.predict_inputs import PredictInputs
from bertjax.inference.text_batches import TOKENS_PER_BATCH
from bertjax.tasks.evaluate import EvalResult
from bertjax.tasks.features import TextData
from bertjax.tasks.seq2seq import TextGenerator

_MAX_NEW_TOKENS = 128


class TextPredictor:
    """Maps examples to records with the generated `text`; the search is that of generation_config.json.

    Args:
        model, tokenizer, config, tokens: as of `Predictor`.
    """

    def __init__(
        self, model: PretrainedEncoderDecoder, tokenizer: Tokenizer, config: TaskConfig, tokens: int = TOKENS_PER_BATCH
    ) -> None:
        self.config, self._model, self._tokenizer, self.num_truncated = config, model, tokenizer, 0
        self.num_truncated_words = 0
        ids = {"decoder_start_token_id": model.config.decoder_start_token_id, "eos_token_id": tokenizer.sep_id}
        length = {} if {"max_length", "max_new_tokens"} & set(model.generation) else {"max_new_tokens": _MAX_NEW_TOKENS}
        values = {**ids, "pad_token_id": tokenizer.pad_id, **model.generation, **length}
        settings = GenerationConfig.from_json(values)
        self._generator = TextGenerator(model.config, tokenizer, settings, max(1, tokens // config.max_length))

    @property
    def notes(self) -> list[str]:
        """Remarks on truncated examples."""
        count, limit = self.num_truncated, self.config.max_length
        return [f"{count:,} were longer than {limit:,} tokens, and cut ({named('max_length')})"] if count else []

    def __call__(self, inputs: PredictInputs) -> Predictions:
        """Returns the records of examples; raises `UserError` if one has no token."""
        data = self.config.spec.make_features(self.config, inputs.examples, self._tokenizer, (), False)
        assert isinstance(data, TextData)
        self.num_truncated += data.num_truncated
        texts, _ = self._generator(self._model.params, data.features, len(data.features))
        result = self.config.spec.records(self.config, inputs.examples, data, texts, (), None)
        records = [{"id": name, **record} for name, record in zip(inputs.ids, result, strict=True)]
        return Predictions(records, texts, data)

    def score(self, inputs: PredictInputs, predictions: Predictions) -> EvalResult:
        """Returns the metrics of examples that were read with their targets."""
        result: EvalResult = self.config.spec.compute_metrics(
            self.config, inputs.examples, predictions.data, predictions.scores, ()
        )
        return result
