"""Headless Chromium, driven through a pipe: pages at a given width, what they say on the console, pointers, pictures.

No driver and no library: the DevTools protocol is JSON, ended by a zero byte, on the file descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OFFLINE = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-extensions",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
SECONDS = 60.0
_AS_3_AND_4 = (
    "import os,sys; r,w=map(int,sys.argv[1:3]); os.dup2(r,3); os.dup2(w,4); os.execv(sys.argv[3],sys.argv[3:])"
)


def find_chromium() -> str | None:
    """The browser of this machine; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@contextlib.contextmanager
def chromium(dark: bool = False) -> Iterator[Tab]:
    """A tab of a browser with an empty profile and without a network; it is gone at the end."""
    binary = find_chromium()
    if binary is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory() as profile:
        to_browser, from_us = _pipe()
        to_us, from_browser = _pipe()
        arguments = [binary, "--headless", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        arguments += [*OFFLINE, *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank"]
        process = subprocess.Popen(
            [sys.executable, "-c", _AS_3_AND_4, str(to_browser), str(from_browser), *arguments],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Tab(Wire(from_us, to_us), dark)
        finally:
            process.terminate()
            process.wait(SECONDS)
            os.close(from_us)
            os.close(to_us)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are none of the descriptors that the browser expects."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


class Wire:
    """Commands and their answers; events are kept until somebody asks for them."""

    def __init__(self, out: int, into: int):
        self._out, self._into = out, into
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a command; `RuntimeError` when the browser refuses it, `TimeoutError` when it is silent."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            answer = self._read(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._into], [], [], max(until - time.monotonic(), 0.0))
            if not ready:
                raise TimeoutError("Chromium says nothing")
            found = os.read(self._into, 2**20)
            if not found:
                raise RuntimeError("Chromium ended")
            self._rest += found
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)


class Tab:
    """One page at a time."""

    def __init__(self, wire: Wire, dark: bool):
        self._wire = wire
        target = wire.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = wire.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._wire.call(method, self._session, **parameters)

    def open(self, path: Path, width: int, height: int = 900, phone: bool = False, scale: float = 1.0) -> None:
        """Loads a file at that size, in CSS pixels, and waits until it has run."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        self._wire.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + SECONDS
        while self.run("document.readyState + '|' + location.protocol") != "complete|file:":
            if time.monotonic() > until:
                raise TimeoutError(f"{path} does not load")
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return found["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Moves the pointer there, in CSS pixels of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions, since the page was opened."""
        self.run("0")  # what was said before this is here now
        found = []
        for event in self._wire.events:
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"])[:500])
            elif event["method"] == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
                found.append(json.dumps(told["args"])[:500])
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself left out."""
        asked = [e["params"]["request"]["url"] for e in self._wire.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("file:", "data:"))]

    def picture(self, path: Path, top: float = 0.0, height: float | None = None) -> None:
        """A PNG of the page from `top` on, in CSS pixels; of all the rest without a `height`."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        until = size["height"] if height is None else min(top + height, size["height"])
        clip = {"x": 0, "y": top, "width": size["width"], "height": until - top, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
