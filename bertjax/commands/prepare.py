"""`bertjax tokenizer` and `bertjax prepare`: what `pretrain` does first, on its own."""

from __future__ import annotations

from pathlib import Path

from ml_collections import ConfigDict

from bertjax.data import corpora
from bertjax.errors import UserError


def train_tokenizer(cfg: ConfigDict, out: Path) -> None:
    """Trains (or copies) the tokenizer of a config into `out`, as files that we and `transformers` read."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty; give a new folder")
    tokenizer = corpora.load_or_train_tokenizer(cfg)
    tokenizer.save(out)
    tokenizer.save_huggingface(out, cfg.data.seq_len)
    print(f"{tokenizer.kind} tokenizer of {tokenizer.size:,} pieces ({tokenizer.family}) in {out}")
    sample = ", ".join(tokenizer.pieces[:: max(1, tokenizer.size // 12)][:12])
    print(f"some pieces: {sample}")


def prepare(cfg: ConfigDict) -> None:
    """Tokenises the corpus of a config into the cache and says what is there."""
    prepared = corpora.prepare(cfg)
    pipeline = corpora.training_pipeline(cfg, prepared)
    for name, corpus in prepared.training.items():
        size = corpus.splits["train"]
        print(
            f"{name}: {size.documents:,} documents, {size.sentences:,} sentences, {size.tokens:,} tokens, "
            f"{pipeline.rows_per_epoch[name]:,} rows an epoch; {corpus.folder}"
        )
        for line in corpora.losses(corpus) if corpus.reused else ():  # else it was told just now
            print(f"  {line}")
    rows = sum(pipeline.rows_per_epoch.values())
    for line in corpora.few_rows_warning(cfg, prepared, rows):
        print(line)
    for name, corpus in prepared.held_out.items():
        size = corpus.splits["eval"]
        print(f"{name}, held out: {size.documents:,} documents, {size.tokens:,} tokens")
