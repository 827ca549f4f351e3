"""Unsupervised SimCSE: a trained encoder learns to embed sentences (arXiv:2104.08821).

    bertjax pretrain --config simcse:base --workdir runs/simcse --config.init_from=bert-base-uncased/ \\
        --config.data.tokenizer=bert-base-uncased/ --config.data.sources=lines:wiki1m_for_simcse.txt
    bertjax export --workdir runs/simcse --out embedder/ --sentence-transformers --pooling cls

Sizes: base and large of BERT, and smoke, which goes on from the run of `bert:smoke` (a minute on a CPU):

    bertjax pretrain --config simcse:smoke --workdir runs/simcse --config.init_from=runs/bert \\
        --config.data.tokenizer=runs/bert/tokenizer

`lines:` reads every line as one text, as in the authors' file of a million sentences. An export embeds
by the first token, without the dense layer that it was trained with: what the authors found best.

Hardware and time: not measured here. Result: by its authors, an average of 76.3 on seven STS tasks (base).

No difference is known, except that the authors keep the best of a run by STS-B's development set, this the last.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "large", "smoke")
NEEDS_INIT_FROM = SIZES


def get_config(size: str = "base") -> ConfigDict:
    """The authors' optimizer (princeton-nlp/SimCSE:README.md, "Unsup. BERT") for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "bert-large" if size == "large" else "bert-base"
    config.model.hidden_act = "gelu"

    config.data.example_format = "block"
    config.data.seq_len = 32
    config.objective.name = "contrastive"
    config.objective.contrastive.mlm_weight = 0.0

    config.train.num_steps = 15_625  # one epoch of a million sentences
    config.train.batch_size = 64
    config.optimizer.learning_rate = 1e-5 if size == "large" else 3e-5
    config.optimizer.eps = 1e-8
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.0
    config.schedule.name = "linear"
    config.schedule.warmup_steps = 0
    if size == "smoke":
        make_smoke(config)
        config.model.num_layers = 3
        config.model.hidden_dropout = 0.1  # what makes the two views differ
        config.model.attention_dropout = 0.1
        config.model.hidden_act = "preset"
        config.data.seq_len = 32
        config.train.num_steps = 300
        config.optimizer.learning_rate = 1e-4
    return config
