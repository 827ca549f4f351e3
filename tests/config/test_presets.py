"""Published sizes have the published numbers of parameters."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import PRESETS, preset
from bertjax.errors import UserError
from bertjax.models.model import abstract_params, count_params

# As Hugging Face counts them, with tied weights once: BertModel, BertForPreTraining, BertForMaskedLM.
COUNTS = [
    ("bert-tiny", 30522, 4_385_920, 4_433_468, 4_416_698),
    ("bert-mini", 30522, 11_170_560, 11_267_900, 11_201_594),
    ("bert-small", 30522, 28_763_648, 29_058_876, 28_795_194),
    ("bert-medium", 30522, 41_373_184, 41_668_412, 41_404_730),
    ("bert-base", 30522, 109_482_240, 110_106_428, 109_514_298),
    ("bert-base", 28996, 108_310_272, 108_932_934, 108_340_804),
    ("bert-large", 30522, 335_141_888, 336_226_108, 335_174_458),
    ("bert-large", 28996, 333_579_264, 334_661_958, 333_610_308),
]


# (preset, vocabulary, heads) -> Hugging Face's count for the class with these heads
OTHERS = [
    ("bert-base", 30873, ("pooler",), 109_751_808),  # FinBERT uncased
    ("spanbert-base", 28996, ("pooler",), 108_310_272),
    ("spanbert-large", 28996, ("pooler",), 333_579_264),
    ("roberta-base", 50265, ("mlm",), 124_697_433),
    ("roberta-base", 50265, ("pooler",), 124_645_632),
    ("roberta-base", 50265, (), 124_055_040),
    ("roberta-large", 50265, ("mlm",), 355_412_057),
    ("roberta-large", 50265, ("pooler",), 355_359_744),
    ("roberta-large", 50265, (), 354_310_144),
    ("distilroberta", 50265, ("mlm",), 82_170_201),
    ("roberta-prelayernorm", 50265, ("mlm",), 355_414_105),  # roberta-large plus one norm
    ("xlm-roberta-base", 250_002, ("mlm",), 278_295_186),
    ("xlm-roberta-base", 250_002, ("pooler",), 278_043_648),
    ("xlm-roberta-large", 250_002, ("mlm",), 560_142_482),
    ("xlm-roberta-large", 250_002, ("pooler",), 559_890_432),
    ("xlm-roberta-xl", 250_880, ("mlm",), 3_482_741_760),
    ("xlm-roberta-xxl", 250_880, ("mlm",), 10_712_994_816),
    ("xmod-base", 250_002, ("mlm",), 285_386_898),  # with the adapter of one language
    ("xmod-large-prenorm", 250_002, ("mlm",), 572_807_314),
    ("camembert-base", 32_005, ("mlm",), 110_655_493),
    ("camembert-large", 32_005, ("mlm",), 336_695_557),
    ("data2vec-text-base", 50_265, ("mlm",), 124_697_433),
    ("data2vec-text-large", 50_265, ("mlm",), 355_412_057),
    ("ernie-3.0-xbase", 40_000, ("pooler",), 296_037_376),
    ("ernie-3.0-base", 40_000, ("mlm",), 117_984_064),
    ("ernie-3.0-medium", 40_000, ("mlm",), 75_456_832),
    ("ernie-3.0-mini", 40_000, ("mlm",), 26_984_128),
    ("ernie-3.0-micro", 40_000, ("mlm",), 23_435_200),
    ("ernie-3.0-nano", 40_000, ("mlm",), 17_947_864),
    ("megatron-bert-345m", 29_056, ("pooler", "mlm", "pair"), 334_723_458),
    *(
        (f"albert-{size}-{version}", 30000, heads, count)
        for version in ("v1", "v2")
        for size, counts in {
            "base": (11_683_584, 11_813_810, 11_221_680),
            "large": (17_683_968, 17_847_474, 16_795_824),
            "xlarge": (58_724_864, 59_021_490, 54_821_040),
            "xxlarge": (222_595_584, 223_158_450, 206_368_944),
        }.items()
        for heads, count in zip((("pooler",), ("pooler", "mlm", "pair"), ("mlm",)), counts, strict=True)
    ),
    ("distilbert", 30522, (), 66_362_880),
    ("distilbert", 30522, ("mlm",), 66_985_530),
    ("distilbert", 28996, (), 65_190_912),
    ("distilbert", 28996, ("mlm",), 65_812_036),
    ("electra-small", 30522, (), 13_483_008),
    ("electra-small", 30522, ("rtd",), 13_549_057),
    ("electra-base", 30522, ("rtd",), 109_483_009),
    ("electra-large", 30522, ("rtd",), 335_142_913),
    ("electra-small-generator", 30522, ("mlm",), 4_620_026),
    ("electra-small-generator-released", 30522, ("mlm",), 13_546_682),
    ("electra-base-generator", 30522, ("mlm",), 33_740_602),
    ("electra-large-generator", 30522, ("mlm",), 51_295_290),
    ("deberta-base", 50265, (), 138_601_728),
    ("deberta-large", 50265, (), 405_163_008),
    ("deberta-xlarge", 50265, (), 757_804_032),
    ("deberta-v2-xlarge", 128100, (), 884_593_152),
    ("deberta-v2-xxlarge", 128100, (), 1_564_549_632),
    ("deberta-v3-xsmall", 128100, (), 70_682_112),
    ("deberta-v3-small", 128100, (), 141_304_320),
    ("deberta-v3-base", 128100, (), 183_831_552),
    ("deberta-v3-large", 128100, (), 434_012_160),
    ("xlnet-base", 32000, ("mlm",), 116_750_336),
    ("xlnet-large", 32000, ("mlm",), 360_300_800),
    ("modernbert-base", 50368, (), 149_014_272),
    ("modernbert-base", 50368, ("mlm",), 149_655_232),
    ("modernbert-large", 50368, ("mlm",), 395_881_664),
    ("mpnet-base", 30_527, ("pooler",), 109_486_464),
    ("mpnet-base", 30_527, ("mlm",), 109_518_527),
    ("nomic-bert-2048", 30_528, (), 136_731_648),
    ("nomic-bert-2048", 30_528, ("mlm",), 137_354_304),
    ("gte-multilingual-base", 250_048, (), 305_368_320),
    ("mosaic-bert-base", 30_528, ("mlm",), 137_400_384),
    ("dnabert-2-117m", 4_096, ("mlm",), 117_074_176),
    ("jina-embeddings-v2-small", 30_528, ("pooler",), 32_690_688),
    ("jina-embeddings-v2-base", 30_528, ("pooler",), 137_368_320),
    ("jina-embeddings-v3", 250_002, ("pooler",), 559_364_096),
    *(
        (f"ettin-{kind}-{size}", 50368, ("mlm",), count)
        for kind in ("encoder", "decoder")
        for size, count in {
            "17m": 16_913_600,
            "32m": 32_081_344,
            "68m": 68_457_664,
            "150m": 149_655_232,
            "400m": 395_881_664,
            "1b": 1_031_314_112,
        }.items()
    ),
    ("mmbert-small", 256000, ("mlm",), 140_897_536),
    ("mmbert-base", 256000, ("mlm",), 307_786_240),
    ("eurobert-210m", 128256, ("mlm",), 310_266_624),
    ("eurobert-610m", 128256, ("mlm",), 755_625_600),
    ("eurobert-2.1b", 128256, ("mlm",), 2_403_092_736),
    ("neobert", 30522, ("mlm",), 245_136_954),
    *(
        (f"esm2-{size}", 33, ("mlm", "contact"), count)
        for size, count in {
            "8m": 7_512_474,
            "35m": 33_501_394,
            "150m": 148_140_154,
            "650m": 651_043_254,
            "3b": 2_839_005_634,
            "15b": 15_129_100_194,
        }.items()
    ),
    ("esm1b", 33, ("mlm", "contact"), 652_359_094),
    ("esmc-300m", 64, ("mlm",), 332_997_184),
    ("esmc-600m", 64, ("mlm",), 575_036_992),
    ("esmc-600m", 64, (), 573_632_640),
    ("esmc-6b", 64, ("mlm",), 6_352_005_184),
    ("bigbird-roberta-base", 50_358, ("pooler", "mlm", "pair"), 128_112_824),
    ("bigbird-roberta-base", 50_358, ("pooler",), 127_468_800),
    ("rembert", 250_300, ("mlm",), 993_263_548),
    ("rembert", 250_300, ("pooler",), 575_920_384),
    ("roformer-chinese-base", 50_000, ("mlm",), 124_099_664),
    ("gpt-bert-small", 8_192, ("mlm",), 29_953_496),
    ("gpt-bert-base", 16_384, ("mlm",), 119_576_920),
    ("convbert-small", 30_522, ("mlm",), 13_207_442),
    ("convbert-medium-small", 30_522, ("mlm",), 17_555_946),
    ("convbert-base", 30_522, (), 105_680_520),
    ("squeezebert", 30_522, ("pooler", "mlm"), 51_712_314),
    ("squeezebert", 30_522, ("pooler",), 51_089_664),
    ("bert-generation-large", 50_358, ("mlm",), 354_452_662),
    ("splinter-base", 30_522, ("question_answering",), 112_439_808),
    ("splinter-base", 30_522, (), 108_891_648),
    ("mobilebert", 30_522, ("pooler", "mlm", "pair"), 36_860_220),
    ("mobilebert", 30_522, ("pooler",), 24_844_544),
    ("xlm-en-2048", 30_145, ("mlm",), 667_119_041),
    ("flaubert-base", 68_729, ("mlm",), 138_301_817),
    ("gpt2", 50257, ("mlm",), 124_439_808),
    ("gpt2-medium", 50257, ("mlm",), 354_823_168),
    ("gpt2-large", 50257, ("mlm",), 774_030_080),
    ("gpt2-xl", 50257, ("mlm",), 1_557_611_200),
    ("gemma-2b", 256_000, ("mlm",), 2_506_172_416),
    ("gemma-7b", 256_000, ("mlm",), 8_537_680_896),
    ("gemma-2-2b", 256_000, ("mlm",), 2_614_341_888),
    ("gemma-2-9b", 256_000, ("mlm",), 9_241_705_984),
    ("gemma-2-27b", 256_000, ("mlm",), 27_227_128_320),
    ("t5gemma-2b", 256_000, (), 2_614_341_888),
    ("t5gemma-9b", 256_000, (), 9_241_705_984),
    ("gemma-3-270m", 262_144, ("mlm",), 268_098_176),
    ("gemma-3-1b", 262_144, ("mlm",), 999_885_952),
    ("embeddinggemma-300m", 262_144, (), 302_863_104),
]


@pytest.mark.parametrize(("name", "vocab_size", "heads", "count"), OTHERS)
def test_parameter_counts_of_every_family(name: str, vocab_size: int, heads: tuple[str, ...], count: int) -> None:
    assert count_params(EncoderConfig(vocab_size=vocab_size, **preset(name)), heads) == count


# but for bert-, these are counted in tests/models/test_encoder_decoder.py
SEQ2SEQ_PREFIXES = ("bert-", "transformer-", "t5-", "bart-", "m2m100-", "nllb-")


def test_every_published_size_is_counted() -> None:
    counted = {name for name, *_ in COUNTS + OTHERS}
    assert {name for name in PRESETS if not name.startswith(SEQ2SEQ_PREFIXES)} <= counted


@pytest.mark.parametrize(("name", "vocab_size", "bare", "pretraining", "masked_lm"), COUNTS)
def test_parameter_counts(name: str, vocab_size: int, bare: int, pretraining: int, masked_lm: int) -> None:
    config = EncoderConfig(vocab_size=vocab_size, **preset(name))
    assert count_params(config, ("pooler",)) == bare
    assert count_params(config, ("pooler", "mlm", "pair")) == pretraining
    assert count_params(config, ("mlm",)) == masked_lm


def test_padding_of_the_vocabulary_is_held_but_not_counted() -> None:
    config = EncoderConfig(**preset("bert-tiny"))
    padded = dataclasses.replace(config, padded_vocab_size=30528)
    assert count_params(padded, ("mlm",)) == count_params(config, ("mlm",))
    held = sum(leaf.size for leaf in jax.tree.leaves(abstract_params(padded, ("mlm",))))
    assert held == count_params(config, ("mlm",)) + 6 * (128 + 1)  # six rows of the table, six biases


def test_every_miniature_is_there_and_can_be_built() -> None:
    grid = {f"bert-{layers}x{hidden}" for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768)}
    assert grid < set(PRESETS)
    for name in grid:
        assert EncoderConfig(**preset(name)).head_dim == 64
        assert preset(name)["intermediate_size"] == 4 * preset(name)["hidden_size"]
    assert preset("bert-12x768") == preset("bert-base")


def test_a_preset_is_a_copy() -> None:
    preset("bert-tiny")["num_layers"] = 99
    assert preset("bert-tiny")["num_layers"] == 2


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(UserError, match=r"unknown model preset 'bert-huge'.*bert-tiny.*bert-large"):
        preset("bert-huge")
