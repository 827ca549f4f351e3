"""Servers of object stores on the loopback, for tests: moto's S3 and an emulator of Google Cloud Storage."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

SECRET = "loopback-secret-key"
S3_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "loopback-access-key",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
}
_START = "from moto.server import main; import sys; main(sys.argv[1:])"


def free_port() -> int:
    """Returns a port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Starts an S3 server in a process of its own; gives the environment variables that lead to it."""
    port = free_port()
    command = [sys.executable, "-c", _START, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port, process)
        yield S3_SETTINGS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def gcs_server() -> Iterator[dict[str, str]]:
    """Starts an emulator of Google Cloud Storage; gives the environment variables that lead to it."""
    from gcp_storage_emulator.server import create_server

    port = free_port()
    server: Any = create_server("127.0.0.1", port, in_memory=True)
    server.start()
    try:
        yield {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "FSSPEC_GS_TOKEN": "anon"}
    finally:
        server.stop()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None and time.monotonic() < end, "the server did not start"
        time.sleep(0.05)


def make_bucket(url: str) -> str:
    """Makes the bucket of a URL; returns the URL."""
    from bertjax.storage import filesystem

    fs = filesystem(url)
    fs.mkdir(url.split("://")[1].split("/")[0])
    return url


def use_servers(settings: dict[str, str], patch: Any) -> None:
    """Sets the environment variables of a server, for this process and those that it starts."""
    import fsspec

    for name, value in settings.items():
        patch.setenv(name, value)
    if "FSSPEC_GS_TOKEN" in settings:
        patch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        patch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    for each in ("s3", "gs"):
        with contextlib.suppress(ImportError):
            fsspec.get_filesystem_class(each).clear_instance_cache()


os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # read on import: the emulator has no gRPC
os.environ.pop("AWS_ENDPOINT_URL", None)  # tests talk to servers of their own
