"""TinyBERT's general distillation: all layers, states and scores of attention (arXiv:1909.10351).

    bertjax pretrain --config tinybert:4x312 --workdir runs/tiny --config.data.sources='text:corpus/*.txt' \\
        --config.objective.distillation.teacher=bert-base-uncased/ --config.data.tokenizer=bert-base-uncased/

Sizes: 4x312 and 6x768 (layers x width), whose layers are spread evenly over the teacher's 12, and smoke (minutes on a
CPU), taught by the run of `bert:smoke`:

    bertjax pretrain --config tinybert:smoke --workdir runs/tiny \\
        --config.objective.distillation.teacher=runs/bert --config.data.tokenizer=runs/bert/tokenizer

No tokens are predicted: the model has no masked-token head. The text is not masked, as for the authors' second release.

Hardware and time: not measured here.

Where this differs: sequences are blocks of text (the authors' are pairs of segments); a student as wide as its teacher
has no projection of its states (theirs always has one); means leave out padding; the phase on a task, with its
augmented data, is not included.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

WIDTHS = {"4x312": (4, 312, 1200), "6x768": (6, 768, 3072), "smoke": (3, 64, 256)}
SIZES = tuple(WIDTHS)


def get_config(size: str = "4x312") -> ConfigDict:
    """The authors' students and optimizer (huawei-noah: TinyBERT/general_distill.py, README.md) for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "bert-base"
    config.model.hidden_act = "gelu"

    config.data.example_format = "block"
    config.data.seq_len = 128
    config.objective.name = "distillation"
    config.objective.distillation.mask_inputs = False
    config.objective.distillation.kd_weight = 0.0
    config.objective.distillation.mlm_weight = 0.0
    config.objective.distillation.cosine_weight = 0.0
    config.objective.distillation.hidden_states_weight = 1.0
    config.objective.distillation.attention_weight = 1.0

    config.train.num_steps = 300_000  # three epochs of books and Wikipedia, roughly
    config.train.batch_size = 256
    config.optimizer.learning_rate = 5e-5
    config.schedule.name = "bert"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 10
    if size == "smoke":
        make_smoke(config)
        config.data.seq_len = 32
    config.model.num_layers, config.model.hidden_size, config.model.intermediate_size = WIDTHS[size]
    return config
