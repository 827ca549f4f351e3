"""Texts that follow from texts: translations, summaries.

    bertjax finetune --config finetune/seq2seq:translation-small --workdir runs/en-de \\
        --config.task.train=parallel:train:en-de --config.task.eval=parallel:val:en-de

reads train.en and train.de line by line, trains a tokenizer on them, and a Transformer from scratch.

    bertjax finetune --config finetune/seq2seq:summarization --workdir runs/summaries \\
        --config.init_from=hub:facebook/bart-base \\
        --config.task.train=jsonl:train.jsonl --config.task.eval=jsonl:dev.jsonl \\
        --config.task.text_column=article --config.task.label_column=summary

Arguments: translation (the base model of arXiv:1706.03762), translation-small (4 + 4 layers of 256, for some ten
thousand pairs), translation-pretrained and summarization, which begin with the encoder or encoder-decoder of init_from.
bertjax/config/finetune_recipes.py has the sources of their values. The metrics need `bertjax[seq2seq]`.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import SEQ2SEQ_RECIPES, base_config, make_seq2seq

SIZES = tuple(SEQ2SEQ_RECIPES)


def get_config(recipe: str = "translation") -> ConfigDict:
    return make_seq2seq(base_config(), recipe)
