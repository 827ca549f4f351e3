"""The plain Transformer encoder, a base for mixtures: positions, norms, feed-forward blocks (arXiv:1706.03762).

    bertjax pretrain --config transformer:base --workdir runs/plain --config.data.sources='text:corpus/*.txt'
        --config.model.attention_position=rotary --config.model.position_embedding=none
        --config.model.norm_placement=pre --config.model.feed_forward=glu

Sizes: base big (the encoder halves of table 3), and smoke (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: none is published for the encoder alone. Models that no Hugging Face
class can hold are exported in bertjax's own format.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

SIZES = ("base", "big", "smoke")


def get_config(size: str = "base") -> ConfigDict:
    """One of `SIZES`, trained to fill masks with BERT's optimizer."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "transformer-big" if size == "big" else "transformer-base"

    config.data.example_format = "block"
    config.schedule.name = "linear"
    if size == "smoke":
        make_smoke(config)
        config.model.embedding_scale = False  # positions of size 1 would drown next to words of size 0.05 * sqrt(128)
    return config
