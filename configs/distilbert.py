"""DistilBERT: half of BERT's layers, taught by BERT, no token types, no pooler (arXiv:1910.01108).

    bertjax pretrain --config distilbert:base --workdir runs/distil \\
        --config.objective.distillation.teacher=bert-base-uncased/ --config.data.tokenizer=bert-base-uncased/ \\
        --config.data.sources='text:corpus/*.txt'

The teacher is any folder that Hugging Face or we wrote, with the same tokens: base and base-cased start as layers 0, 2,
4, 7, 9 and 11 of BERT-base. `smoke` (minutes on a CPU) is taught by the run of `bert:smoke`:

    bertjax pretrain --config distilbert:smoke --workdir runs/distil \\
        --config.objective.distillation.teacher=runs/bert --config.data.tokenizer=runs/bert/tokenizer

Hardware and time: by the paper, 90 hours on 8 V100 GPUs; not measured here. Result: by its authors, GLUE dev average
77.0 (uncased).

As with the authors: 5 x soft targets at temperature 2, at all tokens, + 2 x masked tokens + 1 x cosine of the last
states; rare tokens are masked more often than frequent ones.

Where this differs: 15 % of every sequence is masked (the authors draw 15 % of all tokens of a batch at once, so
sequences with many rare words lose more); the student also starts with the teacher's dense layer before the scores (an
option of theirs); positions are trained; norms are not decayed.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "base-cased", "smoke")


def get_config(size: str = "base") -> ConfigDict:
    """The authors' optimizer (huggingface/transformers-research-projects:distillation/train.py) for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "distilbert"

    config.data.example_format = "block"
    config.data.tokenizer_family = "distilbert"
    config.data.lowercase = size != "base-cased"
    config.data.vocab_size = 28996 if size == "base-cased" else 30522
    config.data.seq_len = 512
    config.objective.name = "distillation"
    config.objective.distillation.teacher_layers = (0, 2, 4, 7, 9, 11)
    config.objective.distillation.kd_weight = 5.0
    config.objective.distillation.mlm_weight = 2.0
    config.objective.distillation.cosine_weight = 1.0
    config.objective.masking.mask_unit = "frequency"
    config.objective.masking.mask_rounding = "random"
    config.objective.masking.allow_mask_unk = False

    config.train.num_steps = 100_000  # three epochs of books and Wikipedia at this batch size, roughly
    config.train.batch_size = 4096
    config.optimizer.learning_rate = 5e-4
    config.optimizer.b2 = 0.98
    config.optimizer.bias_correction = True
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 5.0
    config.schedule.name = "linear"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 20
    if size == "smoke":
        make_smoke(config)
        config.data.seq_len = 32
        config.objective.distillation.teacher_layers = (0, 2)
    return config
