"""What the tests of extensions share: where the installed examples are, and the arguments of their run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

EXTRAS = Path(__file__).parents[2] / "examples" / "bertjax_extras"
TEXT = "the a model learns text from many small files and every token is read once by this layer of heads"
WORDS = TEXT.split(" ")


class Extras(NamedTuple):
    """Where the package is installed, and where its runs are."""

    site: Path
    folder: Path

    @property
    def pretrain(self) -> list[str]:
        """Arguments of a run with the objective, the attention and the source of the examples."""
        keys = [
            *("objective.name=rts", "objective.rts.rate=0.3", "data.example_format=block", "platform=cpu"),
            *("model.preset=bert-tiny", "model.hidden_size=32", "model.num_heads=4", "model.intermediate_size=48"),
            *("model.attention_class=alibi", "model.alibi.trainable=true", "model.position_embedding=none"),
            *(f"data.sources=sqlite:{self.folder}/corpus.db#body", "data.eval_fraction=0.2", "data.vocab_size=100"),
            *("data.seq_len=32", "train.batch_size=8", "train.num_steps=2", "train.phases=", "eval.num_batches=1"),
            *(f"data.cache_dir={self.folder}/cache", "eval.fill_mask=", "logging.tensorboard=false", "mesh.data=1"),
            *("report.enabled=false", "compile_cache=false"),
        ]
        return ["--config", "bert:smoke", *(f"--config.{key}" for key in keys)]
