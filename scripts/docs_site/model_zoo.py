"""The model zoo: every preset with its sizes, parameters, source, config and Hugging Face classes."""

from __future__ import annotations

import functools
import re
from collections import defaultdict

import jax

from bertjax.config.model import EncoderConfig
from bertjax.config.names import shipped_configs, sizes_of
from bertjax.config.overrides import load_config
from bertjax.config.presets import PRESETS, preset
from bertjax.hf.keymaps import FAMILIES
from bertjax.models.model import abstract_params

# Presets (the first pattern that matches) -> vocabulary where no config has it, title, source
SOURCES: list[tuple[str, int | None, str, str]] = [
    (r"bert-(tiny|mini|small|medium|base|large)", None, "BERT", "arXiv:1810.04805, 1908.08962"),
    (r"bert-\d+x\d+", None, "BERT miniatures", "arXiv:1908.08962"),
    (r"spanbert-", None, "SpanBERT", "arXiv:1907.10529"),
    (r"distilroberta", None, "DistilRoBERTa", "arXiv:1910.01108"),
    (r"roberta-prelayernorm", 50_265, "RoBERTa, norms before the blocks", "arXiv:2202.08005"),
    (r"roberta-", None, "RoBERTa", "arXiv:1907.11692"),
    (r"xlm-roberta-xx?l", None, "XLM-R XL and XXL", "arXiv:2105.00572"),
    (r"xlm-roberta-", None, "XLM-R", "arXiv:1911.02116"),
    (r"xlm-en-", 30_145, "XLM", "arXiv:1901.07291"),
    (r"flaubert-", 68_729, "FlauBERT", "arXiv:1912.05372"),
    (r"bert-generation-", 50_358, "BertGeneration", "arXiv:1907.12461"),
    (r"splinter-", 30_522, "Splinter", "arXiv:2101.00438"),
    (r"squeezebert", 30_522, "SqueezeBERT", "arXiv:2006.11316"),
    (r"gpt-bert-small", 8_192, "GPT-BERT", "arXiv:2410.24159"),
    (r"gpt-bert-base", 16_384, "GPT-BERT", "arXiv:2410.24159"),
    (r"convbert-", 30_522, "ConvBERT", "arXiv:2008.02496"),
    (r"mobilebert", 30_522, "MobileBERT", "arXiv:2004.02984"),
    (r"xmod-", 250_002, "X-MOD", "arXiv:2205.06266"),
    (r"camembert-", None, "CamemBERT", "arXiv:1911.03894"),
    (r"data2vec-text-", 50_265, "data2vec", "arXiv:2202.03555"),
    (r"ernie-3.0-", 40_000, "ERNIE 3.0", "arXiv:2107.02137"),
    (r"megatron-bert-", 29_056, "Megatron-BERT", "arXiv:1909.08053"),
    (r"albert-", None, "ALBERT", "arXiv:1909.11942"),
    (r"distilbert", None, "DistilBERT", "arXiv:1910.01108"),
    (r"electra-", 30_522, "ELECTRA", "arXiv:2003.10555"),
    (r"deberta-v3-", None, "DeBERTa v3", "arXiv:2111.09543"),
    (r"deberta-v2-", None, "DeBERTa v2", "arXiv:2006.03654"),
    (r"deberta-", None, "DeBERTa", "arXiv:2006.03654"),
    (r"xlnet-", None, "XLNet", "arXiv:1906.08237"),
    (r"modernbert-", None, "ModernBERT", "arXiv:2412.13663"),
    (r"mpnet-", None, "MPNet", "arXiv:2004.09297"),
    (r"nomic-bert-", None, "NomicBERT", "arXiv:2402.01613"),
    (r"gte-", 250_048, "GTE", "arXiv:2407.19669"),
    (r"jina-embeddings-v2-", 30_528, "Jina v2", "arXiv:2310.19923"),
    (r"jina-", 250_002, "Jina v3", "arXiv:2409.10173"),
    (r"mosaic-bert-", 30_528, "MosaicBERT", "arXiv:2312.17482"),
    (r"dnabert-2-", 4_096, "DNABERT-2", "arXiv:2306.15006"),
    (r"ettin-", None, "Ettin", "arXiv:2507.11412"),
    (r"mmbert-", None, "mmBERT", "arXiv:2509.06888"),
    (r"eurobert-", None, "EuroBERT", "arXiv:2503.05500"),
    (r"neobert", None, "NeoBERT", "arXiv:2502.19587"),
    (r"bigbird-", 50_358, "BigBird", "arXiv:2007.14062"),
    (r"rembert", 250_300, "RemBERT", "arXiv:2010.12821"),
    (r"roformer-", 50_000, "RoFormer", "arXiv:2104.09864"),
    (r"gemma-\d+b", 256_000, "Gemma", "arXiv:2403.08295"),
    (r"t5gemma-", 256_000, "T5Gemma's encoder", "arXiv:2504.06225"),
    (r"gemma-2-", 256_000, "Gemma 2", "arXiv:2408.00118"),
    (r"gemma-3-", 262_144, "Gemma 3", "arXiv:2503.19786"),
    (r"embeddinggemma-", 262_144, "EmbeddingGemma", "arXiv:2509.20354"),
    (r"esm2-", None, "ESM-2", "doi:10.1126/science.ade2574"),
    (r"esmc-", 64, "ESM C", "ESM Cambrian (EvolutionaryScale, 2024)"),
    (r"esm1b", 33, "ESM-1b", "doi:10.1073/pnas.2016239118"),
    (r"gpt2", None, "GPT-2", "GPT-2's report (2019)"),
    (r"transformer-", None, "Encoder of the first Transformer", "arXiv:1706.03762"),
    (r"t5-", 32_128, "Encoders of T5 and T5 v1.1", "arXiv:1910.10683"),
    (r"bart-", 50_265, "Encoders of BART", "arXiv:1910.13461"),
    (r"m2m100-", 128_112, "Encoders of M2M-100", "arXiv:2010.11125"),
    (r"nllb-", 256_206, "Encoders of NLLB", "arXiv:2207.04672"),
]
_NOT_THE_MODEL = re.compile(r"smoke|^(?:shoot_out|quickstart|llm2vec)")
"""Configs that train another size or another tokenizer."""


@functools.cache  # `mkdocs serve` builds the site at every change
def all_models() -> str:
    """Returns one table of presets per title of `SOURCES`, and the families that are read from folders."""
    configs = _configs_by_preset()
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    families: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for name in PRESETS:
        _, vocab, *title = next(each for each in SOURCES if re.match(each[0], name))
        group = (title[0], title[1])
        groups[group].append(_row(name, configs.get(name, []), vocab))
        families[group][EncoderConfig(**preset(name)).family] = None
    parts = []
    for (title, source), rows in groups.items():
        families_of = list(families[title, source])
        parts.append(f"## {title}\n\n{_links(source)}. {_classes(families_of)}\n\n" + _table(rows))
    named = {family for each in families.values() for family in each}
    folders = [f"- `{name}`: {_class_list(name)}" for name in FAMILIES if name not in named]
    return "\n\n".join(
        [
            *parts,
            "## From a folder\n\nSizes and weights of these come from a folder or from the Hub:",
            "\n".join(folders),
        ]
    )


def _row(name: str, configs: list[tuple[str, int]], vocab: int | None) -> str:
    vocab = configs[0][1] if configs else vocab
    if vocab is None:
        raise ValueError(f"{name} has neither a config nor a vocabulary in SOURCES")
    model = EncoderConfig(vocab_size=vocab, **preset(name))
    params = abstract_params(model, ("mlm",))
    counts = [f"{sum(leaf.size for leaf in jax.tree.leaves(tree)):,}" for tree in (params["encoder"], params)]
    named = " ".join(f"`{spec}`" for spec, _ in configs) or "-"
    cells = [f"`{name}`", model.num_layers, model.hidden_size, model.num_heads, f"{vocab:,}", *counts, named]
    return "| " + " | ".join(map(str, cells)) + " |"


def _table(rows: list[str]) -> str:
    head = "| preset | layers | width | heads | vocabulary | encoder | with LM head | configs |"
    return "\n".join([head, "| --- |" + " ---: |" * 6 + " --- |", *rows])


def _classes(families: list[str]) -> str:
    known = [name for name in families if name in FAMILIES and FAMILIES[name].written]
    if not known:
        return "Exported with PyTorch code of its own ([export](../export.md))."
    return "Exported as " + "; as ".join(f"`{name}`: {_class_list(name)}" for name in known) + "."


def _class_list(family: str) -> str:
    classes = *FAMILIES[family].architectures, *FAMILIES[family].last_token_classes
    return ", ".join(f"`{name}`" for name in classes)


def _links(source: str) -> str:
    return re.sub(r"(?:arXiv:)?(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", source)


def _configs_by_preset() -> dict[str, list[tuple[str, int]]]:
    """Returns (name, vocabulary) of the configs that train a preset, those of its authors first."""
    configs_of = defaultdict(list)
    for file, path in shipped_configs().items():
        for size in sizes_of(path):
            name = f"{file}:{size}"
            config = load_config(name)
            changed = [key for key in ("num_layers", "hidden_size", "family") if config.model[key] != "preset"]
            if not changed and not _NOT_THE_MODEL.search(name):
                configs_of[config.model.preset].append((name, config.data.vocab_size))
    for name, configs in configs_of.items():
        configs.sort(key=lambda each: not each[0].replace(":", "-").replace("_", "-").endswith(name))
    return configs_of
