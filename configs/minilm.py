"""MiniLM: a student learns how the last attention of its teacher relates tokens (arXiv:2002.10957, 2012.15828).

    bertjax pretrain --config minilm:6x384 --workdir runs/minilm --config.data.sources='text:corpus/*.txt' \\
        --config.objective.distillation.teacher=bert-base-uncased/ --config.data.tokenizer=bert-base-uncased/

Sizes: 6x768, 6x384 and 12x384 (layers x width) by the first paper: distributions of attention and relations of values,
head by head, so the teacher has 12 heads. v2-6x768 and v2-6x384 by the second: relations of queries, keys and values
with 48 relation heads, of any teacher; of a large one take `objective.distillation.relation_heads=64` and a layer
before the last (`objective.distillation.relation_layer`). smoke (minutes on a CPU) is taught by the run of
`bert:smoke`:

    bertjax pretrain --config minilm:smoke --workdir runs/minilm \\
        --config.objective.distillation.teacher=runs/bert --config.data.tokenizer=runs/bert/tokenizer

No tokens are predicted: the model has neither a masked-token head nor masked text.

Hardware and time: not measured here. Result: by its authors, 6x768 SQuAD 2.0 F1 76.4 and MNLI 84.0.

Where this differs: the papers say less of the second version's optimizer, so it has that of the first; students with
half of the teacher's layers and width learn from it at once, without the assistant between them.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("6x768", "6x384", "12x384", "v2-6x768", "v2-6x384", "smoke")


def get_config(size: str = "6x384") -> ConfigDict:
    """The authors' students and optimizer (section 4.1 of the first paper) for one of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "bert-base"
    config.model.hidden_act = "gelu"
    if size != "smoke":
        layers, width = map(int, size.removeprefix("v2-").split("x"))
        config.model.num_layers = layers
        config.model.hidden_size = width
        config.model.intermediate_size = 4 * width
        config.model.num_heads = 12

    config.data.example_format = "block"
    config.data.seq_len = 512
    config.objective.name = "distillation"
    config.objective.distillation.mask_inputs = False
    config.objective.distillation.kd_weight = 0.0
    config.objective.distillation.mlm_weight = 0.0
    config.objective.distillation.cosine_weight = 0.0
    config.objective.distillation.relations_weight = 1.0
    config.objective.distillation.relations = ("attention", "vv")
    if size.startswith("v2"):
        config.objective.distillation.relations = ("qq", "kk", "vv")
        config.objective.distillation.relation_heads = 48

    config.train.num_steps = 400_000
    config.train.batch_size = 1024 if size.endswith("6x768") else 256
    config.optimizer.learning_rate = 5e-4 if size.endswith("6x768") else 3e-4
    config.optimizer.bias_correction = True
    config.schedule.name = "linear"
    if size == "smoke":
        make_smoke(config)
        config.model.hidden_size = 64
        config.model.intermediate_size = 256
        config.data.seq_len = 32
    return config
