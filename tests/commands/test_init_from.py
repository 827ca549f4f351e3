"""Runs that start from another model's weights: another vocabulary, length, position scheme or objective."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lab import Finished, Lab

import bertjax
from bertjax.checkpoint.surgery import collapse_paths, replace_leaves
from bertjax.cli import main
from bertjax.config.model import EncoderConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.data.vocab_transfer import match_tokens
from bertjax.errors import UserError
from bertjax.experiment import pretrain as pretraining
from bertjax.experiment.init_from import architecture_changes, describe_tables, fill_network, resize_tables
from bertjax.experiment.load import SourceModel, load_source_model
from bertjax.hf.pretrained import PretrainedModel
from bertjax.io.tree_paths import flatten_tree
from bertjax.models.disentangled_attention import attention_span, distance_bucket
from bertjax.models.model import abstract_params
from bertjax.objectives.masking.settings import Masking
from bertjax.objectives.rtd.objective import Rtd
from bertjax.training import loop
from bertjax.training.run_context import RunContext
from bertjax.training.state import TrainState
from bertjax.types import Params

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"), "bad"]
SMALL = EncoderConfig(
    vocab_size=len(TOKENS),
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=20,
    max_position_embeddings=12,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
HEADS = ("pooler", "mlm", "pair")
WORDS = "encoder/embeddings/word_embeddings/embedding"
POSITIONS = "encoder/embeddings/position_embeddings/embedding"


def drawn(shapes: Params, seed: int = 0) -> Params:
    rng = np.random.default_rng(seed)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: rng.normal(float(path[-1].key == "scale"), 0.3, leaf.shape).astype(np.float32), shapes
    )


def random_params(config: EncoderConfig, heads: tuple[str, ...]) -> Params:
    return drawn(abstract_params(config, heads))


def wordpiece(folder: Path, tokens: list[str]) -> Tokenizer:
    path = folder / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return load_tokenizer(path, lowercase=True)


@pytest.fixture
def source(tmp_path: Path) -> SourceModel:
    return SourceModel(SMALL, HEADS, random_params(SMALL, HEADS), wordpiece(tmp_path, TOKENS))


def refitted(
    source: SourceModel, config: EncoderConfig, tokenizer: Tokenizer | None = None, how: str = "tile"
) -> Params:
    return resize_tables(source, config, match_tokens(source.tokenizer, tokenizer or source.tokenizer), how)


def outputs(config: EncoderConfig, params: Params, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = PretrainedModel(config, jax.tree.map(jnp.asarray, params), HEADS)(ids)
    return np.asarray(out.last_hidden_state), np.asarray(out.mlm_logits)


def test_text_of_shared_tokens_is_read_as_before(source: SourceModel, tmp_path: Path) -> None:
    """The new vocabulary has the old tokens in another order, with others between them."""
    tokens = [*TOKENS[:5], "dead", *reversed(TOKENS[5:]), "##bed", "face"]
    new = wordpiece(tmp_path, tokens)
    config = dataclasses.replace(SMALL, vocab_size=new.size)
    params = refitted(source, config, new)
    shared = np.array([tokens.index(token) for token in TOKENS])
    ids = np.random.default_rng(1).integers(0, len(TOKENS), (3, 12))
    hidden, logits = outputs(SMALL, source.params, ids)
    new_hidden, new_logits = outputs(config, params, shared[ids])
    assert np.array_equal(new_hidden, hidden)
    assert np.allclose(
        new_logits[..., shared], logits, rtol=0, atol=1e-5
    )  # a matrix product with another number of columns
    table, bias = flatten_tree(params)[WORDS], params["mlm_head"]["bias"]
    old_table, old_bias = flatten_tree(source.params)[WORDS], source.params["mlm_head"]["bias"]
    assert np.array_equal(table[shared], old_table) and np.array_equal(bias[shared], old_bias)
    for token, parts in {"dead": ["d", "##e", "##a", "##d"], "##bed": ["##b", "##e", "##d"]}.items():
        ids = [TOKENS.index(part) for part in parts]
        assert np.allclose(table[tokens.index(token)], old_table[ids].mean(axis=0), atol=1e-7)
        assert np.allclose(bias[tokens.index(token)], old_bias[ids].mean(), atol=1e-7)


def test_rows_without_a_token_are_dropped_in_words(source: SourceModel) -> None:
    larger = source._replace(config=dataclasses.replace(SMALL, vocab_size=SMALL.vocab_size + 1028))
    match = match_tokens(source.tokenizer, source.tokenizer)
    [line] = describe_tables(larger, SMALL, match, "tile")
    rows = SMALL.vocab_size + 1028
    assert line == f"embeddings: {rows:,} rows there for {SMALL.vocab_size} tokens: the last 1,028 are dropped"
    assert describe_tables(source, SMALL, match, "tile") == []


def test_a_tiled_table_leaves_short_rows_as_they_were(source: SourceModel) -> None:
    long = dataclasses.replace(SMALL, max_position_embeddings=30)
    ids = np.random.default_rng(2).integers(0, len(TOKENS), (2, 12))
    before, _ = outputs(SMALL, source.params, ids)
    tiled, _ = outputs(long, refitted(source, long), ids)
    assert np.array_equal(tiled, before)
    table = flatten_tree(refitted(source, long))[POSITIONS]
    assert np.array_equal(table, flatten_tree(source.params)[POSITIONS][np.arange(30) % 12])
    spread = refitted(source, long, how="interpolate")  # here only the first token has its old position
    old, new = flatten_tree(source.params)[POSITIONS], flatten_tree(spread)[POSITIONS]
    assert np.array_equal(new[[0, 29]], old[[0, 11]]) and not np.allclose(new[1], old[1])


def test_positions_after_an_offset_and_of_the_decoder(tmp_path: Path) -> None:
    heads = ("mlm",)
    offset = dataclasses.replace(SMALL, position_offset=2)
    decoder = dataclasses.replace(SMALL, position_embedding="none", enhanced_decoder=True)
    for config, path in ((offset, POSITIONS), (decoder, "decoder_positions/embedding")):
        source = SourceModel(config, heads, random_params(config, heads), wordpiece(tmp_path, TOKENS))
        old = flatten_tree(source.params)[path]
        first = config.position_offset
        for length in (7, 20):
            new = flatten_tree(refitted(source, dataclasses.replace(config, max_position_embeddings=length)))[path]
            assert np.array_equal(new, old[[*range(first), *(first + np.arange(length) % 12)]])


@pytest.mark.parametrize("buckets", [0, 8])
def test_far_distances_share_the_outermost_row(buckets: int, tmp_path: Path) -> None:
    disentangled = {"attention_position": "disentangled", "position_embedding": "none", "position_buckets": buckets}
    old = dataclasses.replace(SMALL, **disentangled, max_relative_positions=16)
    new = dataclasses.replace(old, max_relative_positions=40)
    source = SourceModel(old, ("mlm",), random_params(old, ("mlm",)), wordpiece(tmp_path, TOKENS))
    path = "encoder/relative/embedding"
    before, after = flatten_tree(source.params)[path], flatten_tree(refitted(source, new))[path]
    assert np.array_equal(flatten_tree(refitted(source, old))[path], before)
    assert len(after) == 2 * attention_span(new)
    # with one row per distance, all rows; with buckets, the rows that exist in both tables
    near = np.arange(-40, 40) if not buckets else np.arange(-4, 5)
    assert np.array_equal(after[distance_bucket(near, new)], before[distance_bucket(near, old)])
    ends = np.array([-39, 39])
    assert np.array_equal(after[distance_bucket(ends, new)], before[distance_bucket(ends, old)])


def test_token_types_are_cut_or_drawn(source: SourceModel) -> None:
    path = "encoder/embeddings/token_type_embeddings/embedding"
    old = flatten_tree(source.params)[path]
    fewer = dataclasses.replace(SMALL, type_vocab_size=1)
    assert np.array_equal(flatten_tree(refitted(source, fewer))[path], old[:1])
    more = dataclasses.replace(SMALL, type_vocab_size=3)
    assert np.array_equal(flatten_tree(refitted(source, more))[path], old)  # merging draws the third


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("num_heads", 4), ("hidden_size", 32), ("num_layers", 3), ("norm_placement", "pre"), ("hidden_act", "relu")),
        *(("position_offset", 2), ("embedding_scale", True), ("attention_position", "rotary")),
    ],
)
def test_weights_that_would_mean_something_else_are_refused(field: str, value: object) -> None:
    changed = dataclasses.replace(SMALL, **{field: value})
    with pytest.raises(UserError, match=f"init_from=there is another model: {field} ") as caught:
        architecture_changes("init_from=there", SMALL, changed)
    assert f"{field} {getattr(SMALL, field)} there, {value} here" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_allowed_changes_are_reported() -> None:
    changed = dataclasses.replace(SMALL, causal=True, layer_norm_eps=1e-5, hidden_dropout=0.5, vocab_size=99)
    assert architecture_changes("init_from=there", SMALL, changed) == [
        "causal False there, True here",
        "layer_norm_eps 1e-12 there, 1e-05 here",
    ]
    assert architecture_changes("init_from=there", dataclasses.replace(SMALL, hidden_act="gelu"), SMALL) == []


@pytest.mark.parametrize("sharing", ["embeddings", "gdes", "none", "all"])
def test_the_first_of_several_networks_is_filled(sharing: str, source: SourceModel) -> None:
    """ELECTRA's discriminator from an encoder; the generator shares weights with it and draws the rest."""
    padded = dataclasses.replace(SMALL, padded_vocab_size=64)
    generator = padded if sharing == "all" else dataclasses.replace(padded, intermediate_size=8)
    settings = Rtd(Masking(max_predictions=3), embedding_sharing=sharing)
    objective = settings.build({"generator": generator, "model": padded}, source.tokenizer.vocabulary())
    fresh = drawn(jax.eval_shape(objective.init, jax.random.key(0)), 1)
    zeros = {path: np.zeros_like(leaf) for path, leaf in flatten_tree(fresh).items() if path.endswith("/delta")}
    params, filled = fill_network(objective, replace_leaves(fresh, zeros), "discriminator", refitted(source, SMALL))
    result = flatten_tree(jax.device_get(objective.network_params(params, "discriminator")))
    for path, leaf in flatten_tree(source.params).items():
        if path.startswith("encoder"):
            assert np.array_equal(result[path][: len(leaf)], leaf), path
    fresh_paths = collapse_paths(params, set(flatten_tree(params)) - filled)
    assert "discriminator/rtd_head" in fresh_paths
    assert ("generator" in fresh_paths) == (sharing in ("embeddings", "none", "all"))
    words = objective.network_params(params, "generator")["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    same = np.array_equal(words[: len(TOKENS)], flatten_tree(source.params)[WORDS])
    assert same == (sharing != "none")


def test_a_folder_and_its_run_are_the_same_model(finished: Finished, tmp_path: Path) -> None:
    run, folder = load_source_model(finished.workdir), load_source_model(finished.workdir / "export")
    assert run.heads == folder.heads and run.tokenizer.tokens == folder.tokenizer.tokens
    assert all(isinstance(leaf, np.ndarray) for leaf in flatten_tree(run.params).values())
    ours, theirs = flatten_tree(run.params), flatten_tree(folder.params)
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(UserError, match="holds no model: give a Hugging Face folder"):
        load_source_model(tmp_path)


FIRST: dict[str, float] = {}


def only_evaluated(run: RunContext, state: TrainState) -> tuple[TrainState, dict]:
    """Replaces training: evaluates the initial weights of a run."""
    program = run.programs[0]
    with jax.set_mesh(run.mesh):
        metrics = dict(program.evaluate(state.params, run.frozen))
    FIRST.update(metrics)
    return state, metrics


@pytest.mark.long
def test_other_vocabulary_other_length_other_objective(
    lab: Lab, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Masked words and pairs of WordPiece in 32 tokens, then masked words alone of byte-level BPE in 80."""
    monkeypatch.setattr(loop, "train", only_evaluated)
    other = [
        "data.example_format=block",
        "data.tokenizer=bpe",
        "data.tokenizer_family=roberta",
    ]
    other += ["data.vocab_size=400", "data.seq_len=80", "model.max_position_embeddings=80"]
    other += ["eval.fill_mask=", "export.at_end=false"]
    arguments = [f"--config.{setting}" for setting in other]
    assert lab.run("pretrain", "--workdir", tmp_path / "fresh", *arguments) == 0
    fresh = dict(FIRST)
    begin = [*arguments, f"--config.init_from={finished.workdir}"]
    assert lab.run("pretrain", "--workdir", tmp_path / "refused", *begin) == 2
    assert "--config.init_embeddings=remap" in capsys.readouterr().err
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *begin, "--config.init_embeddings=remap") == 0
    printed = capsys.readouterr().out
    assert f"weights from {finished.workdir}; unused: pair_head, pooler" in printed
    result = re.search(r"tokens: (\d+) of (\d+) kept, (\d+) composed of old ones, (\d+) fresh", printed)
    assert result and int(result[1]) > 60 and int(result[2]) == int(result[1]) + int(result[3]) + int(result[4])
    assert "positions: 64 there, 80 here: resized (init_positions=tile)" in printed
    assert FIRST["eval/mlm_loss"] < fresh["eval/mlm_loss"] - 0.2
    assert math.isclose(fresh["eval/mlm_loss"], math.log(int(result[2])), rel_tol=0.1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["init_embeddings"] == "remap"


def test_a_folder_without_a_model_is_refused_at_once(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("the corpus was prepared first")

    monkeypatch.setattr(pretraining, "prepare_on_first_process", never)
    assert lab.run("pretrain", "--workdir", tmp_path / "run", f"--config.init_from={tmp_path}") == 2
    message = capsys.readouterr().err
    assert "holds no model" in message and message.count("\n") == 1 and not (tmp_path / "run").exists()


def test_a_way_that_there_is_not_is_refused(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.run("pretrain", "--workdir", tmp_path / "run", "--config.init_positions=stretch") == 2
    assert "init_positions must be one of tile, interpolate, not 'stretch'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "objective"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "mlm"),
        ({"model_type": "bert", "architectures": ["BertForPreTraining"]}, "mlm"),  # no head for pairs is begun afresh
        ({"model_type": "bert", "architectures": ["BertModel"], "max_position_embeddings": 64}, "mlm"),
        ({"model_type": "electra", "architectures": ["ElectraForPreTraining"]}, "rtd"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "clm"),
        ({"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"]}, "plm"),
    ],
)
def test_a_model_is_continued_by_the_objective_of_its_class(
    values: dict[str, object], objective: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values))
    cfg = bertjax.continue_config(tmp_path, {"train.num_steps": 50})
    assert cfg.objective.name == objective and cfg.data.example_format == "full_sentences"
    assert cfg.init_from == cfg.data.tokenizer == str(tmp_path)
    assert (cfg.schedule.warmup_steps, cfg.optimizer.learning_rate) == (5, 5e-5)
    assert cfg.data.seq_len == min(128, values.get("max_position_embeddings", 128))


def test_a_config_may_be_the_recipe_of_what_continues(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 7}))
    recipe, mini = bertjax.continue_config(tmp_path, config="bert:mini"), bertjax.load_config("bert:mini")
    assert recipe.train.num_steps == mini.train.num_steps and recipe.data.example_format == mini.data.example_format
    assert recipe.model.num_layers == 7


def test_what_cannot_be_continued_is_named(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "fnet", "architectures": ["X"]}))
    sources = f"--config.data.sources=text:{lab.corpus}"
    model, workdir = str(finished.workdir), ("--workdir", str(tmp_path / "run"))
    for arguments, message in (
        (("--continue", model), "--config.data.sources is missing: the text to continue with"),
        ((), "give a config with --config, or a model with --continue"),
        (("--continue", str(tmp_path), sources), "'fnet' is not a model of transformers that bertjax reads"),
        (("--continue", model, "--config", "bert:mini", "--config.train.nun_steps=1"), "train.num_steps"),
        (("--continue", model, sources, "--config.train.nun_steps=1"), "train.num_steps"),
        (
            ("--config", "bert:mini", f"--config.init_from={model}", sources),
            "set --config.model.hidden_size=32 --config.model.num_layers=",  # ready to paste, before text is read
        ),
    ):
        assert main(["pretrain", *workdir, *arguments]) == 2
        printed = capsys.readouterr()
        assert message in printed.err and "tokenized" not in printed.out


@pytest.mark.long
@pytest.mark.parametrize("source", ["run", "export"])
def test_a_model_is_continued_in_one_line(
    source: str, lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = finished.workdir if source == "run" else finished.workdir / "export"
    command = ["pretrain", "--continue", str(model), f"--config.data.sources=text:{lab.corpus}"]
    command += ["--workdir", str(tmp_path / "run"), "--config.train.num_steps=2", "--config.platform=cpu"]
    command += [f"--config.data.cache_dir={tmp_path}/cache", "--config.mesh.data=1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"continuing {model}, objective mlm: 2 steps of 32 x ")
    assert (tmp_path / "run" / "export" / "model.safetensors").is_file()
    assert main(command) == 0 and "nothing is left to train" in capsys.readouterr().out
