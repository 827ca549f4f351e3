"""Servers of object stores on the loopback, for tests: moto's S3 and an emulator of Google Cloud Storage."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

SECRET = "loopback-secret-key"
S3_SETTINGS = {
    "AWS_ACCESS_KEY_ID": "loopback-access-key",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
}
_METHODS = (b"PUT ", b"POST ", b"GET ", b"HEAD ", b"DELETE ", b"HTTP/")
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
    from gcp_storage_emulator import server as emulator

    def read(handler: Any, original: Any = emulator._read_raw_data) -> bytes | None:
        body = original(handler)  # gcsfs ends parts with LF, and the parser takes a CR before it as part of the end
        return body and body.replace(b"\n--==0==", b"\r\n--==0==")

    port = free_port()
    server: Any = emulator.create_server("127.0.0.1", port, in_memory=True)
    patch = mock.patch.object(emulator, "_read_raw_data", read)
    patch.start()
    # With a queue of five, some of many connections at once are dropped, and tried again a second later.
    with mock.patch.object(socketserver.TCPServer, "request_queue_size", 128):
        server.start()
    try:
        yield {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "FSSPEC_GS_TOKEN": "anon"}
    finally:
        server.stop()
        patch.stop()


class Proxy:
    """Forwards connections to a server of the loopback, until it is cut.

    Attributes:
        resets: For each of the next uploads, the bytes after which its connection is reset.
        has_reset: Bytes forwarded on the connections that were reset.
    """

    def __init__(self, port: int) -> None:
        self._target, self._is_cut = ("127.0.0.1", port), False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self.resets: list[int] = []
        self.has_reset: list[int] = []
        self._run(self._accept)

    def _run(self, target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._is_cut:
                client.close()
                continue
            server = socket.create_connection(self._target)
            self._open |= {client, server}
            self._run(self._forward, client, server)
            self._run(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            count = 0
            while block := source.recv(1 << 16):
                target.sendall(block)
                count = 0 if block.startswith(_METHODS) else count + len(block)
                if self.resets and count > self.resets[0]:
                    self.resets.pop(0)
                    self.has_reset.append(count)
                    linger = struct.pack("ii", 1, 0)  # closing sends RST
                    source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    source.close()
                    break
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            self._open.discard(each)

    def cut(self) -> None:
        """Closes all connections, and refuses new ones."""
        self._is_cut = True
        for each in self._open.copy():
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Lets new connections pass."""
        self._is_cut = False


@contextlib.contextmanager
def s3_through_proxy() -> Iterator[Proxy]:
    """Starts an S3 server with a bucket named `bucket`, which this process and its children reach through a proxy."""
    with s3_server() as settings, pytest.MonkeyPatch.context() as patch:
        proxy = Proxy(int(settings["AWS_ENDPOINT_URL"].rpartition(":")[2]))
        use_servers(settings | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}, patch)
        make_bucket("s3://bucket")
        yield proxy
    _forget_servers()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None and time.monotonic() < end, "the server did not start"
        time.sleep(0.05)


@contextlib.contextmanager
def bucket_of(scheme: str) -> Iterator[str]:
    """Gives the URL of a bucket: in memory, or on a server that is started for it (`s3`, `gs`)."""
    url, servers = f"{scheme}://bucket", {"s3": s3_server, "gs": gcs_server}
    if scheme not in servers:
        yield url
        return
    with servers[scheme]() as settings, pytest.MonkeyPatch.context() as patch:
        use_servers(settings, patch)
        yield make_bucket(url)
    _forget_servers()


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
    _forget_servers()


def _forget_servers() -> None:
    import fsspec

    for each in ("s3", "gs"):
        with contextlib.suppress(ImportError):
            fsspec.get_filesystem_class(each).clear_instance_cache()


os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # read on import: the emulator has no gRPC
os.environ.pop("AWS_ENDPOINT_URL", None)  # tests talk to servers of their own
