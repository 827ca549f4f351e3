"""The launchers of `scripts/launch`: their syntax, the commands that they run, and when they restart."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

LAUNCHERS = Path(__file__).parents[1] / "scripts" / "launch"
OURS = ["--config", "bert:base", "--workdir", "/shared/a run", "--config.data.sources=text:/t/*.txt,b"]
GPUS = ["--name", "bert", "--image", "registry/bertjax:1", "--hosts", "4", "--claim", "disk", "--gpu", "h100"]
TPUS = [*GPUS[:-2], "--tpu", "tpu-v5-lite-podslice", "--topology", "4x4", "--chips", "4"]

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to run them")


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = ["bash", str(LAUNCHERS / script), *arguments]
    options = {"env": os.environ | environment, "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run(command, check=False, **options)


def printed(script: str, *arguments: str) -> str:
    done = run(script, "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(LAUNCHERS.glob("*.sh")), ids=lambda path: path.stem)
def test_their_syntax_is_right_and_they_explain_themselves(path: Path) -> None:
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    assert os.access(path, os.X_OK)
    shown = run(path.name, "--help")
    assert shown.returncode == 0 and f"scripts/launch/{path.name} [--dry-run]" in shown.stdout
    assert run(path.name, "--nodse", "3").returncode == 2
    assert run(path.name, "--dry-run").returncode == 2  # no variable for bertjax
    if shutil.which("shellcheck"):
        assert subprocess.run(["shellcheck", path], check=False).returncode == 0


def test_slurm_gets_one_process_a_gpu() -> None:
    command = shlex.split(printed("slurm.sh", "--nodes", "2", "--gpus", "4", "--partition", "big", "--", *OURS))
    assert command[0] == "sbatch" and command[-len(OURS) :] == OURS and command[-len(OURS) - 1].endswith("slurm.sh")
    assert {"--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--partition=big", "--requeue"} <= set(command)
    assert "--signal=TERM@120" in command  # saved before the time limit


def fake(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("status", "again"), [(0, False), (1, False), (2, False), (75, True), (134, True), (143, True)]
)
def test_a_slurm_job_is_queued_again_when_that_helps(tmp_path: Path, status: int, again: bool) -> None:
    """Not after an error in the config, not at the end, and not without limit."""
    fake(tmp_path, "srun", f'printf "%s|" "$@" >"{tmp_path}/srun.txt"; exit {status}')
    fake(tmp_path, "scontrol", f'echo "$@" >>"{tmp_path}/scontrol.txt"')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BERTJAX_JOB": "1", "SLURM_JOB_ID": "7"}
    assert run("slurm.sh", *OURS, **environment).returncode == status
    assert (tmp_path / "srun.txt").read_text().split("|")[:-1] == ["--kill-on-bad-exit=1", "bertjax", "pretrain", *OURS]
    calls = tmp_path / "scontrol.txt"
    assert (calls.read_text().strip() if calls.exists() else "") == ("requeue 7" if again else "")
    run("slurm.sh", *OURS, **environment, SLURM_RESTART_COUNT="50")
    assert not again or calls.read_text().count("\n") == 1


def test_a_tpu_slice_gets_the_same_command_on_all_hosts() -> None:
    command = shlex.split(printed("tpu_pod.sh", "--name", "slice", "--zone", "us-x", "--project", "p", "--", *OURS))
    assert command[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "slice"]
    assert {"--zone=us-x", "--worker=all", "--project=p"} <= set(command)
    (remote,) = (each.removeprefix("--command=") for each in command if each.startswith("--command="))
    expected = ["cd", "bertjax", "&&", "exec", ".venv/bin/bertjax", "pretrain", *OURS, "--config.platform=tpu"]
    assert shlex.split(remote) == expected


def test_a_tpu_run_starts_again_after_a_lost_host_and_ends_with_a_mistake(tmp_path: Path) -> None:
    fake(tmp_path, "gcloud", f'echo x >>"{tmp_path}/calls"; [ "$(wc -l <"{tmp_path}/calls")" = 1 ] && exit 75; exit 2')
    fake(tmp_path, "sleep", "")
    arguments = ["--name", "s", "--zone", "z", "--", *OURS]
    assert run("tpu_pod.sh", *arguments, PATH=f"{tmp_path}:{os.environ['PATH']}").returncode == 2
    assert (tmp_path / "calls").read_text().count("x") == 2


@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_gke_gets_a_job_set_with_one_pod_a_host(kind: str) -> None:
    yaml = pytest.importorskip("yaml")
    options = [*GPUS, "--gpus", "8"] if kind == "gpu" else TPUS
    job_set = yaml.safe_load(printed("gke.sh", *options, "--", *OURS))
    assert (job_set["kind"], job_set["metadata"]["name"]) == ("JobSet", "bert")
    (replicated,) = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["completionMode"]) == (4, 4, "Indexed")
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    words = shlex.split(container["args"][0])
    assert words[: 3 + len(OURS)] == ["exec", "bertjax", "pretrain", *OURS]
    assert f"--config.platform={kind}" in words
    named = [word for word in words if word.startswith("--config.distributed.")]
    if kind == "gpu":  # no other variable names the process
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert named[0].endswith("=bert-workers-0-0.bert:8476")
        assert [word.partition("=")[2] for word in named[1:]] == ["4", "$JOB_COMPLETION_INDEX"]
    else:
        assert container["resources"]["limits"] == {"google.com/tpu": 4} and not named
        assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "disk"
