"""FinBERT: BERT for financial text, on its own vocabulary or continued from BERT (arXiv:2006.08097, 1908.10063).

    bertjax pretrain --config configs/finbert.py:uncased --workdir runs/fin --config.data.sources='text:filings/*.txt'
    bertjax pretrain --config configs/finbert.py:continued --workdir runs/fin --config.init_from=bert-base-uncased/

Sizes: uncased and cased (from scratch, vocabularies of 30,873 and 28,573 pieces: yya518/FinBERT), continued (BERT's own
vocabulary; give its folder as `init_from`), and tiny (two layers, minutes on a CPU).

Hardware and time: not measured here. Result: by the authors, accuracy 0.872 (uncased vocabulary from scratch) against
BERT's 0.835 on the Financial PhraseBank; continued pretraining gave almost nothing in Araci's experiments (.86 against
.85).
"""

from ml_collections import ConfigDict

from bertjax.base_config import base_config, make_tiny
from bertjax.types import UserError

VOCAB_SIZES = {"uncased": 30873, "cased": 28573, "continued": 30522, "tiny": 4096}
SIZES = tuple(VOCAB_SIZES)


def get_config(size: str = "uncased") -> ConfigDict:
    """One of `SIZES`; the second phase with rows of 512 is not part of it."""
    if size not in SIZES:
        raise UserError(f"unknown size {size!r}; there are {', '.join(SIZES)}")
    config = base_config()
    config.model.preset = "bert-base"

    config.data.lowercase = size != "cased"
    config.data.vocab_size = VOCAB_SIZES[size]
    config.data.seq_len = 128
    config.objective.dynamic = False

    config.train.num_steps = 250_000 if size == "continued" else 1_000_000
    config.train.batch_size = 128
    config.optimizer.learning_rate = 2e-5 if size == "continued" else 1e-4
    if size == "tiny":
        make_tiny(config)
    return config
