"""Classes of texts or of pairs of texts, as BERT's authors finetune (google-research/bert: run_classifier.py).

    bertjax finetune --config configs/finetune/classification.py --workdir runs/sst2 --config.init_from=FOLDER \\
        --config.task.train=tsv:train.tsv --config.task.eval=tsv:dev.tsv --config.task.text=sentence

`--config.task.pair=COLUMN` names the second text of pairs.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.base_config import base_config


def get_config() -> ConfigDict:
    config = base_config()
    config.objective.name = "task"
    config.task.kind = "classification"
    config.task.batch_size = 32
    config.task.epochs = 3.0
    config.optimizer.learning_rate = 2e-5
    config.schedule.name = "bert"
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 10
    config.export.at_end = True
    return config
