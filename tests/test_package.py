"""The wheel: what is in it, and that it works where there is no clone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import bertjax
from bertjax.config.names import shipped_configs

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.long


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel and sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return {path.suffix: path for path in folder.iterdir()}


def test_wheel_and_sdist_hold_the_package_and_nothing_else(packages: dict[str, Path]) -> None:
    with zipfile.ZipFile(packages[".whl"]) as wheel, tarfile.open(packages[".gz"]) as sdist:
        info = f"bertjax-{bertjax.__version__}.dist-info"
        names = {name for name in wheel.namelist() if not name.startswith(info)}
        sources = {name.partition("/")[2] for name in sdist.getnames()}
        metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    package = {path for path in (ROOT / "bertjax").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    configs = {f"configs/{name}.py" for name in shipped_configs()}
    assert names == {path.relative_to(ROOT).as_posix() for path in package} | {f"bertjax/{name}" for name in configs}
    assert {name for name in sources if name.startswith("configs/")} == configs
    assert {name.partition("/")[0] for name in sources} == {
        *("bertjax", "configs", "constraints.txt", "pyproject.toml"),
        *("CHANGELOG.md", "LICENSE", "README.md", ".gitignore", "PKG-INFO"),
    }
    assert packages[".whl"].stat().st_size < 1_500_000
    assert (metadata["Version"], metadata["Requires-Python"]) == (bertjax.__version__, ">=3.11")
    assert metadata.get_payload().startswith("# bertjax") and metadata["License-Expression"] == "Apache-2.0"


def test_the_wheel_works_in_an_empty_directory(packages: dict[str, Path], tmp_path: Path) -> None:
    """Installed as a user does, except for its dependencies, which are those of the tests."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps")
    run(*pip, "--ignore-installed", packages[".whl"], cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()

    def bertjax_command(*arguments: str) -> str:
        return run(python.with_name("bertjax"), *arguments, cwd=empty)

    assert run(python, "-c", "import bertjax; print(bertjax.__file__)", cwd=empty).startswith(str(site))
    assert bertjax_command("configs").startswith("quickstart\n")
    assert "model.preset = bert-base\n" in bertjax_command("config", "--config", "bert:base", "model.preset")
    options = ("train.num_steps=2", "train.batch_size=8", "model.num_layers=1", "eval.num_batches=1")
    keys = [f"--config.{each}" for each in options]
    bertjax_command("pretrain", "--config", "quickstart", "--workdir", "runs/q", *keys)
    assert {"config.json", "report.html", "export"} <= {path.name for path in (empty / "runs" / "q").iterdir()}
    script = "import bertjax; print(bertjax.load_pretrained('runs/q/export').config.num_layers)"
    assert run(python, "-c", script, cwd=empty) == "1\n"
