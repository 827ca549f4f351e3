"""Folders of tokenizers that others wrote: the ids of `transformers.AutoTokenizer`, or a refusal that says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from folders_lab import LAYOUTS, SCRIPTS, Layout, lines, variants, wordpiece, write_folder

from bertjax.data import foreign_tokenizer
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer, save_tokenizer
from bertjax.errors import UserError

BERT = next(layout for layout in LAYOUTS if layout.kind == "BertTokenizer")
ROBERTA = next(layout for layout in LAYOUTS if layout.kind == "RobertaTokenizer")


def compare(folder: Path, *more: str) -> tuple[Tokenizer, Any]:
    """Compares ids, roles, layouts and sides with those of `AutoTokenizer`, and returns both tokenizers."""
    from transformers import AutoTokenizer

    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    texts = [*lines(), *more]
    marked = theirs(texts, verbose=False)["input_ids"]
    assert [encoding.ids for encoding in ours.engine.encode_batch(texts)] == marked
    plain = theirs(list(lines()), add_special_tokens=False, verbose=False)["input_ids"]
    assert [ids.tolist() for ids in ours.encode_batch(lines())] == plain
    pair = theirs(*lines()[:2], verbose=False)
    encoding = ours.engine.encode(*lines()[:2])
    assert encoding.ids == pair["input_ids"] and ours.spec.token_types == ("token_type_ids" in pair)
    assert not ours.spec.token_types or encoding.type_ids == pair["token_type_ids"]
    assert (ours.spec.padding_side, ours.spec.truncation_side) == (theirs.padding_side, theirs.truncation_side)
    for role in ("pad", "unk", "cls", "sep", "mask"):
        index = getattr(theirs, f"{role}_token_id")
        assert index is None or getattr(ours, f"{role}_id") == index, role
    return ours, theirs


def contradictions(layout: Layout) -> dict[str, Any]:
    """Returns the settings of a class set unlike their defaults."""
    usual = {"do_lower_case": True, "tokenize_chinese_chars": True, "legacy": True}
    lower = layout.kind not in ("XLNetTokenizer", "RemBertTokenizer", "DebertaV2Tokenizer")
    return {name: not usual.get(name) or (name == "do_lower_case" and not lower) for name in layout.settings}


def test_lines_are_in_ten_scripts() -> None:
    text = "".join(lines())
    assert len(lines()) == 200 and len(SCRIPTS) == 10
    assert all(len({*text} & {*letters}) > 15 for letters in SCRIPTS.values())


def test_transformers_reads_the_same_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_folder(BERT, tmp_path / "model", {})
    first = load_tokenizer(folder)
    (cached,) = (tmp_path / "cache").rglob("*.json")
    with monkeypatch.context() as patched:
        patched.setattr(foreign_tokenizer, "_open", lambda *_: pytest.fail("transformers was asked again"))
        again = load_tokenizer(folder)
    assert again.spec == first.spec and again.tokens == first.tokens
    assert [*map(list, again.encode_batch(lines()))] == [*map(list, first.encode_batch(lines()))]
    for damage in ("", "[]", '{"tokenizer": "{}", "facts": {}}'):
        cached.write_text(damage)
        assert load_tokenizer(folder).spec == first.spec and cached.read_text() != damage
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "zyzzyva\n")
    assert load_tokenizer(folder).size == first.size + 1  # other files: another entry
    assert len([*cached.parent.iterdir()]) == 2


@pytest.mark.long
def test_every_class(tmp_path: Path) -> None:
    assert len({layout.kind for layout in LAYOUTS}) == 31
    for layout in LAYOUTS:
        compare(write_folder(layout, tmp_path / layout.kind, contradictions(layout)))


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.kind for layout in LAYOUTS])
def test_every_setting_of_every_class(layout: Layout, tmp_path: Path) -> None:
    """Also what is stored and exported of them."""
    from transformers import AutoTokenizer

    for number, settings in enumerate(variants(layout, every=len(layout.settings) < 3)):
        ours, _ = compare(write_folder(layout, tmp_path / str(number), settings))
    save_tokenizer(ours, tmp_path / "saved")
    save_huggingface_tokenizer(ours, tmp_path / "export", 64)
    expected = ours.encode_flat(lines())[1].tolist()
    for again in (load_tokenizer(tmp_path / "saved"), load_tokenizer(tmp_path / "export")):
        assert again.encode_flat(lines())[1].tolist() == expected
        assert (again.tokens, again.spec) == (ours.tokens, ours.spec)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "export")
    assert theirs(list(lines()), verbose=False)["input_ids"] == [ours.encode_with_specials(line) for line in lines()]


def test_settings_next_to_tokenizer_json(tmp_path: Path) -> None:
    """What tokenizer_config.json, special_tokens_map.json and added_tokens.json say of a tokenizer.json counts."""
    from transformers import AutoTokenizer

    for layout, settings in (
        (BERT, [{"do_lower_case": False}, {"strip_accents": False, "tokenize_chinese_chars": False}]),
        (ROBERTA, [{"add_prefix_space": True}, {"truncation_side": "left", "padding_side": "left"}]),
    ):
        source, folder = write_folder(layout, tmp_path / f"{layout.kind}-source", {}), tmp_path / layout.kind
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        ids = set()
        declared = json.loads((folder / "tokenizer_config.json").read_text())
        extra = [{"mask_token": "<ent>"}, {"additional_special_tokens": ["<ent>", "<b>"]}]
        for change in ({}, *settings, *extra):
            (folder / "tokenizer_config.json").write_text(json.dumps(declared | change))
            ours, _ = compare(folder, "The <ent> in <b>")
            ids.add(tuple(ours.encode_with_specials("The <ent> in <b>É中国")))
        assert len(ids) >= 4
        (folder / "tokenizer_config.json").write_text(json.dumps(declared))
        save_tokenizer(load_tokenizer(folder), tmp_path / "saved")
        assert load_tokenizer(tmp_path / "saved").spec == load_tokenizer(folder).spec


def test_added_tokens_of_the_old_layout(tmp_path: Path) -> None:
    for layout in (BERT, ROBERTA):
        folder = write_folder(layout, tmp_path / layout.kind, {"do_lower_case": True})
        size = load_tokenizer(folder).size
        text = "some <ent> and nextword, word"
        (folder / "added_tokens.json").write_text(json.dumps({"<ent>": size, "nextword": size + 1}))
        assert {size, size + 1} <= {*compare(folder, text)[0].encode_with_specials(text)}
        (folder / "special_tokens_map.json").write_text(json.dumps({"extra_special_tokens": ["<ent>"]}))
        ours, _ = compare(folder, text)
        assert size in ours.special_ids and size not in ours.encode_batch([text])[0]
        (folder / "added_tokens.json").unlink()
        (folder / "special_tokens_map.json").unlink()
        flags = {"lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["added_tokens_decoder"] = {str(size): {"content": "<ent>", **flags}}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        assert compare(folder, text)[0].size == size + 1
        config["added_tokens_decoder"] = {"7": {"content": "<ent>", **flags}}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=r"tokenizer_config\.json: '<ent>' has id 7, which is that of '"):
            load_tokenizer(folder)


def test_tokens_that_are_spaces(tmp_path: Path) -> None:
    """Google's Chinese vocabulary: `transformers` leaves their ids without a token, and so does a repeated token."""
    tokens = [
        "[PAD]",
        "\u2028",
        "\u3000",
        "\x85",
        "\xa0",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        *wordpiece(),
        "the",
    ]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8", newline="\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    ours, theirs = compare(tmp_path, "the [MASK]\u3000中\u2028国")
    assert (ours.size, len(set(ours.tokens)), len(theirs)) == (len(tokens), len(tokens), len(tokens) - 5)
    assert (ours.pad_id, ours.unk_id, ours.mask_id) == (0, 5, 8) and ours.vocabulary().size == len(tokens)
    save_tokenizer(ours, tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").tokens == ours.tokens


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tokenizer_class": "ByT5Tokenizer"}, r"tokenizer_config\.json: tokenizer_class=ByT5Tokenizer is Python code"),
        ({"tokenizer_class": "LayoutLMv2Tokenizer"}, r"LayoutLMv2Tokenizer reads no plain text"),
        ({"tokenizer_class": "RobertaTokenizer"}, r"RobertaTokenizer of transformers finds no vocabulary in"),
        ({"tokenizer_class": "BertModel"}, r"cannot read tokenizer_config\.json, vocab\.txt .*its tokenizer_class in"),
        ({}, r"cannot read tokenizer_config\.json, vocab\.txt .*name its tokenizer_class in tokenizer_config"),
        ({"split_special_tokens": True}, r"tokenizer_config\.json: split_special_tokens=true is not supported"),
        ({"fast_tokenizer_files": ["../tokenizer.5.0.0.json"]}, r"fast_tokenizer_files=.* is not supported"),
        ({"auto_map": {"AutoTokenizer": ["a.B", None]}}, r"auto_map names code, which is never run"),
        ([], r"tokenizer_config\.json: a JSON object is expected"),
    ],
)  # fmt: skip
def test_refusals_name_file_and_setting(config: Any, message: str, tmp_path: Path) -> None:
    folder = write_folder(BERT, tmp_path / "bert", {"do_lower_case": True})
    (folder / "config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_code_of_a_class_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tokenizer.json is read alone where the class is code of the folder."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(write_folder(BERT, tmp_path / "source", {})).save_pretrained(tmp_path / "strange")
    config = json.loads((tmp_path / "strange/tokenizer_config.json").read_text())
    expected = compare(tmp_path / "strange")[0].encode_flat(lines())[1].tolist()
    config |= {"tokenizer_class": "StrangeTokenizer", "auto_map": {"AutoTokenizer": [None, "strange.StrangeTokenizer"]}}
    (tmp_path / "strange/tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "strange/strange.py").write_text("raise SystemExit('executed')\n")
    assert load_tokenizer(tmp_path / "strange").encode_flat(lines())[1].tolist() == expected
    assert "auto_map names code, which is not run" in caplog.text


ALONE = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
sys.modules["torch"] = None  # as if it were not installed
from test_tokenizer import corpus
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer, save_tokenizer
from bertjax.data.tokenizer_training import train_tokenizer
for family, model in (("bert", "wordpiece"), ("albert", "unigram")):
    tokenizer = train_tokenizer(corpus(), model=model, family=family, vocab_size=400)
    save_tokenizer(tokenizer, Path({folder!r}, family))
    save_huggingface_tokenizer(tokenizer, Path({folder!r}, family + "-export"), 64)
    for name in (family, family + "-export"):
        assert load_tokenizer(Path({folder!r}, name)).tokens == tokenizer.tokens
assert "transformers" not in sys.modules
(Path({folder!r}) / "bert-export/special_tokens_map.json").unlink()
assert load_tokenizer(Path({folder!r}) / "bert-export").size == 400
assert "transformers" in sys.modules and not sys.modules["torch"]
"""


@pytest.mark.long
def test_only_foreign_folders_need_transformers_and_none_needs_torch(tmp_path: Path) -> None:
    script = ALONE.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert not run.stderr
