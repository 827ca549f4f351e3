"""FinBERT: BERT for financial text, on its own vocabulary or continued from BERT (arXiv:2006.08097, 1908.10063).

    bertjax pretrain --config finbert:uncased --workdir runs/fin --config.data.sources='text:filings/*.txt'

Sizes: uncased and cased (from scratch, "FinVocab" of 30,873 and 28,573 tokens: yya518/FinBERT), continued ("BaseVocab":
BERT's weights and tokens), and smoke (two layers, minutes on a CPU). `continued` is a recipe for

    bertjax pretrain --continue bert-base-uncased/ --config finbert:continued --workdir runs/fin ...

or, for BERT's weights with a new vocabulary, whose embeddings start as the mean of BERT's tokens of their text, with

    --config.init_embeddings=remap --config.data.tokenizer=wordpiece --config.data.vocab_size=30873

With `--config.optimizer.layerwise_lr_decay=0.9` lower layers change more slowly, the embeddings slowest.

Hardware and time: not measured here. Result: by the authors, accuracy on the Financial PhraseBank 0.872 with FinVocab,
0.870 continued, 0.835 for BERT (all uncased); in Araci's experiments continued pretraining on 29M words of Reuters gave
almost nothing (.86 against .85).

Where this differs: the authors went from 128 to 512 tokens when the loss had converged; here it is at 90 % of the
steps.
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke
from bertjax.errors import require_one_of

VOCAB_SIZES = {"uncased": 30873, "cased": 28573, "continued": 30522, "smoke": 4096}
SIZES = tuple(VOCAB_SIZES)
NEEDS_INIT_FROM = ("continued",)


def get_config(size: str = "uncased") -> ConfigDict:
    """One of `SIZES`."""
    require_one_of("size", size, SIZES)
    config = base_config()
    config.model.preset = "bert-base"

    config.data.lowercase = size != "cased"
    config.data.vocab_size = VOCAB_SIZES[size]
    config.data.seq_len = 512
    config.train.phases = ("90%:data.seq_len=128",)
    config.objective.masking.dynamic = False

    config.train.num_steps = 250_000 if size == "continued" else 1_000_000
    config.train.batch_size = 128
    config.optimizer.learning_rate = 2e-5 if size == "continued" else 1e-4
    if size == "smoke":
        make_smoke(config)
    return config
