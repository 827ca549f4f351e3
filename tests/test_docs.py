"""Every command and snippet of README.md, CONTRIBUTING.md and docs/: checked, and run where its page says so.

Comments in the pages say how a block is tested; CONTRIBUTING.md, section "Pages", lists them.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import os
import random
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands.lab import load_script
from ml_collections import ConfigDict

from bertjax.cli import parse
from bertjax.config.defaults import base_config
from bertjax.config.objectives import objective_class
from bertjax.config.overrides import apply_overrides, copy_config, flatten, load_config
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.abstract_inputs import placeholder_vocabulary
from bertjax.experiment.config import parse as check
from bertjax.storage import ObjectInfo

ROOT = Path(__file__).parents[1]
follow = load_script(ROOT / "scripts" / "follow_tutorials.py")
PAGES = follow.read_pages()
RESOLVED: set[str] = set()
LANGUAGES = {"bash", "python", "text", "diff", "json", "yaml", "toml", "mermaid"}
SHELL = {
    "cd",
    "cat",
    "cp",
    "echo",
    "printf",
    "mkdir",
    "mv",
    "rm",
    "ls",
    "head",
    "tail",
    "wc",
    "wait",
    "kill",
    "sleep",
    "grep",
}
SHELL |= {"sort", "true", "test", "[", ":", "python"}
TOOLS = {"pytest", "ruff", "mypy", "mkdocs"}  # of the extras that the test environment has
SEPARATORS = {
    ";",
    "&&",
    "||",
    "|",
    "&",
    "(",
    ")",
    "{",
    "}",
    "do",
    "done",
    "then",
    "else",
    "fi",
    "if",
    "while",
    "until",
    "!",
}
_ARRAY = re.compile(r"^(\w+)=\((.*?)\)$", re.MULTILINE)
_VARIABLE = re.compile(r"\"?\$\{(?P<array>\w+)\[@\]\}\"?|\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)|\$\(+[^)]*\)+|\$[!?$]")
_WRITTEN = re.compile(r"^cat > (\w+\.py) <<'EOF'\n(.*?\n)EOF$", re.DOTALL | re.MULTILINE)
_HEREDOC = re.compile(r"<<-?\s*'?\"?(\w+)'?\"?([^\n]*)\n(.*?)\n\1(?=\n|$)", re.DOTALL)


def split_shell(text: str, variables: dict[str, str]) -> Iterator[list[str]]:
    """The words of every simple command; `variables` of the page so far are used, and set."""

    def value(match: re.Match[str]) -> str:
        array, name, default, other = match.groups()
        if array:
            return _VARIABLE.sub(value, variables[array])
        return variables.get(name or other, "1" if default is None else default)

    text = _HEREDOC.sub(r"\2", text).replace("\\\n", " ")
    variables |= dict(_ARRAY.findall(text))
    for statement in _statements(_ARRAY.sub("", text)):
        lexer = shlex.shlex(_VARIABLE.sub(value, statement), posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        words: list[str] = []
        for token in itertools.chain(itertools.takewhile(lambda token: not token.startswith("#"), lexer), ";"):
            if token in SEPARATORS or set(token) <= set(";&|()"):
                yield from _command(words, variables)
                words = []
            else:
                words.append(token)


def _statements(text: str) -> Iterator[str]:
    """Lines, joined where a quotation goes on."""
    statement = ""
    for line in text.split("\n"):
        statement += line
        try:
            shlex.split(statement, comments=True)
        except ValueError:
            statement += "\n"
            continue
        yield statement
        statement = ""
    assert not statement, f"no closing quotation in {statement!r}"


def _command(words: list[str], variables: dict[str, str]) -> Iterator[list[str]]:
    words = [word for index, word in enumerate(words) if not _redirects(words, index)]
    if words[:1] == ["for"]:
        variables[words[1]] = words[3] if len(words) > 3 else "0"
        return
    if words[:1] == ["export"]:
        words = words[1:]
    while words and (match := re.fullmatch(r"(\w+)=(.*)", words[0], re.DOTALL)):
        variables[match[1]] = match[2]
        words = words[1:]
    if words:
        yield words


def _redirects(words: list[str], index: int) -> bool:
    """Whether a word belongs to a redirection: `2>&1 >file`."""
    around = [words[index - 1] if index else "", words[index], *words[index + 1 : index + 2], ""]
    before, word, after = (bool(each) and set(each) <= set("<>&") for each in around[:3])
    return before or word or (after and around[1] in "12")


def check_command(words: list[str], needs: bool) -> None:
    """Raises AssertionError or UserError for a command that does not exist, or options that it does not have."""
    names = [Path(word).name for word in words]
    if "bertjax" in names[:1] or ("bertjax" in names and needs and not names[0].endswith("docker")):
        check_bertjax(words[names.index("bertjax") + 1 :])
    elif words[0].startswith("scripts/launch/"):
        assert (ROOT / words[0]).is_file(), f"{words[0]} does not exist"
        if "--" in words:
            check_bertjax(["pretrain", *words[words.index("--") + 1 :]])
    elif words[0] in ("python", "python3") and words[1:2] and words[1].startswith(("scripts/", "tests/")):
        check_script(words[1], words[2:])
    else:
        known = words[0] in SHELL or names[0] in TOOLS or (ROOT / words[0]).is_file()
        assert needs or known, f"{words[0]} may be missing: say `<!-- block: needs {words[0]} -->`"


def check_script(path: str, arguments: list[str]) -> None:
    """A script and its flags are there; keys of a config are those that there are."""
    assert (ROOT / path).is_file(), f"{path} does not exist"
    source = (ROOT / path).read_text(encoding="utf-8")
    keys = [word for word in arguments if word.startswith("--config.")]
    flags = [word.partition("=")[0] for word in arguments if word.startswith("--") and word not in keys]
    missing = [flag for flag in flags if f'"{flag}"' not in source and not (flag == "--config" and keys)]
    assert not missing, f"{path} has no {missing[0]}"
    apply_overrides(base_config(), keys)


def provide(words: list[str]) -> None:
    """Creates the files and folders that a config names, empty: a reader has them."""
    of_phases = re.findall(r"data\.sources=(.*?)(?=,\s*(?:[\w.]+=|\d+%?:)|$)", "\n".join(words), re.M)
    for word in (*words, *(f"--config.data.sources={sources}" for sources in of_phases)):
        match = re.fullmatch(
            r"--config\.(data\.(?:eval_)?sources|task\.(?:train|eval)|data\.tokenizer|init_from)=(.+)", word
        )
        for source in match[2].split(",") if match else []:
            kind, _, where = source.rpartition(":")
            path = Path(re.sub(r"[#@].*", "", where).replace("**/", "").replace("*", "x"))
            if kind in ("", "hub", "builtin"):
                if kind == "" and match and match[1] in ("data.tokenizer", "init_from"):
                    path.mkdir(parents=True, exist_ok=True)
            elif not kind.startswith(("hub:", "builtin:")) and not where.startswith("//"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()


def check_bertjax(words: list[str]) -> None:
    """The words are a command line of bertjax; `...` stands for arguments that do not matter."""
    elided = "..." in words
    words = [word for word in words if word != "..."]
    has_config = any(word.partition("=")[0] == "--config" for word in words)
    if elided and not has_config:
        words += ["--config", "configs/bert.py:base"]
    try:
        options, rest = parse(words)
    except SystemExit as stopped:
        assert stopped.code == 0, f"bertjax does not accept {shlex.join(words)}"
        return
    if options.signature.takes_config and options.config is not None:
        provide(rest)
        cfg = apply_overrides(load_config(options.config), rest)
        check(cfg)
        if options.command == "pretrain":
            resolve(cfg)
    elif options.signature.takes_overrides:
        apply_overrides(base_config(), rest)
    else:
        assert [word for word in rest if word.startswith("--")] == [], f"unknown argument in {shlex.join(words)}"


def resolve(cfg: ConfigDict) -> None:
    """Makes what a run would train, by shapes alone; once for runs that differ in their text, length or hardware."""
    cfg = copy_config(cfg)
    cfg.platform, cfg.model.unroll = "any", 1
    remaining = {"model", "generator", "decoder", "objective", "optimizer", "mesh"}
    values = {key: value for key, value in flatten(cfg).items() if key.partition(".")[0] in remaining}
    key = repr((values, cfg.data.vocab_size, cfg.data.seq_len, cfg.data.example_format, cfg.data.packing))
    if key not in RESOLVED and not objective_class(cfg.objective.name).uses_teacher:
        build.make_experiment(cfg, placeholder_vocabulary(cfg.data.vocab_size)).abstract_state()
    RESOLVED.add(key)


def check_python(text: str) -> None:
    """The text is Python, and what it takes from bertjax exists."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "bertjax":
                    importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bertjax":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and (path := _dotted(node)) and path[0] == "bertjax":
            functools.reduce(getattr, path[1:], importlib.import_module("bertjax"))


def _dotted(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    return [*before, node.attr] if isinstance(node, ast.Attribute) and (before := _dotted(node.value)) else []


def find_examples(site: Path) -> Path:
    """Puts the package of examples into a directory, with its entry points, as an installation would."""
    folder = ROOT / "examples" / "bertjax_extras"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = site / "bertjax_extras-0.dist-info"
    metadata.mkdir(parents=True)
    (site / "bertjax_extras").symlink_to(folder / "bertjax_extras")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = [
        (group, f"{name} = {path}") for group, each in project["entry-points"].items() for name, path in each.items()
    ]
    (metadata / "entry_points.txt").write_text("".join(f"[{group}]\n{line}\n" for group, line in groups))
    return site


@pytest.mark.parametrize("path", PAGES)
def test_every_block_is_right(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(find_examples(tmp_path / "site")))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in _WRITTEN.findall("\n".join(block.text for block in PAGES[path].blocks)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("bertjax.config.source_files.expand_url", lambda url: {url: ObjectInfo(1, "")})
    for name in ("configs", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    variables: dict[str, str] = {}
    wrong = []
    for block in PAGES[path].blocks:
        try:
            check_block(block.language, block.text, block.mode.startswith("needs"), variables)
        except (AssertionError, UserError, SyntaxError, ImportError, AttributeError, ValueError) as error:
            message = str(error).partition("\nassert")[0]
            wrong.append(f"{block.name}: {type(error).__name__}: {message}")
    assert not wrong, "\n".join(wrong)


def check_block(language: str, text: str, needs: bool, variables: dict[str, str]) -> None:
    """Raises an error that says what is wrong in a block."""
    assert language in LANGUAGES, f"write one of {', '.join(sorted(LANGUAGES))} after the fence"
    if language == "python":
        check_python(text)
    elif language == "bash":
        for words in split_shell(text, variables):
            check_command(words, needs)


@pytest.mark.parametrize(
    ("language", "text", "message"),
    [
        ("", "bertjax config", "after the fence"),
        ("bash", "echo a; bertjax evaluat --workdir w", "does not accept"),
        ("bash", "bertjax evaluate --workdir w --stepp 3", "unknown argument|does not accept"),
        ("bash", "S=1; bertjax pretrain --config configs/quickstart.py --config.train.num_step=$S", "num_steps"),
        ("bash", "bertjax pretrain --config configs/quickstart.py \\\n  --config.model.num_heads=5", "num_heads"),
        ("bash", "for i in 0 1; do gcloud x; done", "may be missing"),
        ("bash", "python scripts/chaos.py --kils 3", "no --kils"),
        ("bash", "scripts/launch/slurm.sh --nodes 2 -- --config.train.num_step=3 ...", "num_steps"),
        ("python", "import bertjax\nbertjax.load_pretraine('x')", "load_pretraine"),
        ("python", "from bertjax.errors import Error", "Error"),
    ],
)
def test_mistakes_are_refused(language: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises((AssertionError, UserError, SyntaxError, ImportError, AttributeError), match=message):
        check_block(language, text, False, {})


def test_comments_say_how_a_block_is_tested(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- blocks: run after docs/a.md -->\n```bash\nA=1\n```\n<!-- block: needs b -->\n```bash\nc\n```\n"
    )
    read = follow.read_page(page, tmp_path)
    assert read.after == "docs/a.md" and [block.mode for block in read.blocks] == ["run", "needs b"]
    assert [block.line for block in read.to_run] == [2]
    for wrong in ("<!-- block: ran -->", "<!-- block: check -->\ntext", "```bash\nno end"):
        page.write_text(wrong)
        with pytest.raises(ValueError, match=r"page.md:1|stands before no block"):
            follow.read_page(page, tmp_path)


# What a page runs with in the tests: its sizes, and local text in place of downloads.
SMALL: dict[str, dict[str, str]] = {
    "first-model": {"STEPS": "4"},
    "own-objective": {"STEPS": "4"},
    "your-language": {
        "TEXT": "text:../texts/zh.txt",
        "VOCAB": "200",
        "STEPS": "4",
        "TRAIN": "tsv:../texts/zh/train.tsv",
        "DEV": "tsv:../texts/zh/dev.tsv",
        "EPOCHS": "0.2",
    },
    "continue": {
        "MODEL": "../first-model/runs/first/export",
        "TEXT": "text:../texts/en.txt",
        "HELD_OUT": "text:../texts/en-held-out.txt",
        "STEPS": "4",
        "TRAIN": "tsv:../texts/en/train.tsv",
        "COLUMN": "sentence",
        "DEV": "tsv:../texts/en/dev.tsv",
        "EPOCHS": "0.2",
        "LENGTH": "32",
    },
    "finetune": {
        "LENGTH": "32",
        "MODEL": "../continue/runs/after/export",
        "DATA": "../texts/en",
        "EXAMPLES": "60",
        "EPOCHS": "0.5",
        "SEEDS": "0,1",
    },
    "many-hosts": {"STEPS": "32"},
}
EXPECTED = {
    "first-model": ["guessing by frequency", "modernbert ['", "(1, 3, 128)"],
    "your-language": ["0 unknown", "documents", "runs/reviews-from-scratch"],
    "continue": ["words added as", "0 fresh", "runs/task-after"],
    "finetune": ["wrong; the most confident", "'label': ", "(3, 128) tensor"],
    "many-hosts": ["4 x cpu of 2 processes", "ended with status 75", "resuming at step"],
}
LONG = ("docs/tutorials/first-model.md",)  # other pages run once a week
RUNNING = [
    pytest.param(path, marks=pytest.mark.long if path in LONG else pytest.mark.weekly)
    for path, page in PAGES.items()
    if page.to_run
]
WORDS = {
    "zh": (
        "今天 昨天 我们 他们 老师 朋友",
        "在 北京 上海 学校 书店 房间",
        "看到 买了 喜欢 找到 听说",
        "一本 两个 新的 漂亮的",
        "书 电影 酒店 早餐 朋友",
    ),
    "en": (
        "the a this",
        "company bank trader customer",
        "reports sees expects loses",
        "higher lower quarterly",
        "profits losses sales",
    ),
}


def write_texts(folder: Path) -> None:
    """Writes sentences of a small grammar, and such with labels: the first word of the last group or another one."""
    for language, groups in WORDS.items():
        draw, space = random.Random(0), "" if language == "zh" else " "
        end = "。" if language == "zh" else "."

        def sentence(
            space: str = space, end: str = end, draw: random.Random = draw, groups: tuple[str, ...] = groups
        ) -> str:
            return space.join(draw.choice(group.split()) for group in groups) + end

        for name, count in {f"{language}.txt": 100, f"{language}-held-out.txt": 30}.items():
            documents = ("\n".join(sentence() for _ in range(6)) for _ in range(count))
            (folder / name).write_text("\n\n".join(documents), encoding="utf-8")
        (folder / language).mkdir()
        label, column = groups[2].split()[0], "sentence" if language == "en" else "text"
        for split, count in {"train": 120, "dev": 40}.items():
            lines = [f"{each}\t{int(label in each)}" for each in (sentence() for _ in range(count))]
            (folder / language / f"{split}.tsv").write_text("\n".join([f"{column}\tlabel", *lines]), encoding="utf-8")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[tuple]]:
    """Runs a page once, after the pages that it needs, and returns its blocks with their output."""
    top = tmp_path_factory.mktemp("reader")
    (top / "texts").mkdir()
    write_texts(top / "texts")
    quick = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])  # of few steps
    environment = follow.reader_environment(top / "bin", top / "home", quick.strip())
    environment |= {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    needs = {"continue": ["first-model"], "finetune": ["first-model", "continue"]}

    @functools.cache
    def run(path: str) -> list[tuple]:
        page, name = PAGES[path], Path(path).stem
        before = [f"docs/tutorials/{each}.md" for each in needs.get(name, [])] if page.after is None else [page.after]
        for each in before:
            run(each)
        folder = top / (name if page.after is None else Path(page.after).stem)
        folder.mkdir(exist_ok=True)
        return follow.run_blocks(page.to_run, folder, environment | SMALL.get(name, {}), timeout=600)

    return run


@pytest.mark.parametrize("path", RUNNING)
def test_a_page_runs_from_an_empty_directory(path: str, reader: Callable[[str], list[tuple]]) -> None:
    pytest.importorskip("transformers")
    done = reader(path)
    printed = "".join(f"== {each.block.name} ({each.seconds:.1f} s)\n{each.output}" for each in done)
    assert done[-1].status == 0 and len(done) == len(PAGES[path].to_run), printed[-6000:]
    for expected in EXPECTED.get(Path(path).stem, []):
        assert expected in printed, f"{expected!r} is missing in\n{printed[-6000:]}"
