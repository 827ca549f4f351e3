"""RoBERTa: BERT without pairs, byte-level tokens, long sequences, large batches (arXiv:1907.11692, table 9).

    bertjax pretrain --config roberta:base --workdir runs/roberta --config.data.sources='text:corpus/*.txt'

Sizes: base large distilroberta, and smoke (two layers, minutes on a CPU); XLM-R's xlm-roberta-base xlm-roberta-large
xlm-roberta-xl xlm-roberta-xxl (arXiv:1911.02116, 2105.00572) and CamemBERT's camembert-base camembert-large
(arXiv:1911.03894): other tokens and lengths of training, CamemBERT with whole words.

Hardware and time: not measured here. Result: by fairseq's README, GLUE dev MNLI 87.6 for base and 90.2 for large after
500,000 steps of 8,192 sequences on 160 GB of text.

As in fairseq, sequences are as many whole sentences as fit, across documents (format `full_sentences`); special
tokens may be masked and predicted as well, and the number of predictions is random.

Where this differs from fairseq: `</s>` follows every document of a sequence and ends it, but does not follow every
sentence; a sentence that is longer than a sequence is cut. XLM-R's papers give no learning rates: those of RoBERTa are
taken, of the large one for XL and XXL. Its languages are sources with weights (`@WEIGHT`): the authors draw them in
proportion to their share of the text to the power of 0.3.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = (
    *("base", "large", "distilroberta", "smoke"),
    *("xlm-roberta-base", "xlm-roberta-large", "xlm-roberta-xl", "xlm-roberta-xxl"),
    *("camembert-base", "camembert-large"),
)


def get_config(size: str = "base") -> ConfigDict:
    """The recipe of table 9, or that of XLM-R or CamemBERT, for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    large, multilingual, french = (
        not size.endswith(("base", "smoke", "distilroberta")),
        size.startswith("xlm"),
        size.startswith("cam"),
    )
    config.model.preset = {"base": "roberta-base", "large": "roberta-large", "smoke": "roberta-base"}.get(size, size)

    config.data.example_format = "full_sentences"
    config.data.tokenizer = "bpe"
    config.data.tokenizer_family = "roberta"
    config.data.lowercase = False
    config.data.vocab_size = 50265
    if multilingual or french:
        config.data.tokenizer = "unigram"
        config.data.tokenizer_family = "xlm-roberta" if multilingual else "camembert"
        config.data.vocab_size = 32_005 if french else 250_880 if size.endswith("xl") else 250_002
    config.data.seq_len = 512
    config.objective.masking.mask_rounding = "random"  # fairseq/data/mask_tokens_dataset.py, for these three
    config.objective.masking.allow_mask_special = True
    config.objective.masking.min_random_id = 7 if french else 4  # what precedes are special tokens
    config.objective.masking.mask_unit = "whole_word" if french else "token"

    config.train.num_steps = 1_500_000 if multilingual else 100_000 if french else 500_000
    config.train.batch_size = 8192
    config.optimizer.learning_rate = 7e-4 if french else 4e-4 if large else 6e-4
    config.optimizer.b2 = 0.98
    config.optimizer.bias_correction = True
    config.optimizer.clip_norm = 0.0
    config.optimizer.decay_exclude = ()  # fairseq decays every parameter (fairseq/optim/adam.py; one list)
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") * (100 if french else 60 if large else 48) // 1000
    if size == "smoke":
        make_smoke(config)
    return config
