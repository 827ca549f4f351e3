"""Drives headless Chromium through a pipe: page width, console messages, pointer, screenshots, defects of a page.

Needs no driver and no library: the DevTools protocol is JSON, terminated by a zero byte, on file descriptors 3 and 4.
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
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
SECONDS = 60.0
_AS_3_AND_4 = (
    "import os,sys; r,w=map(int,sys.argv[1:3]); os.dup2(r,3); os.dup2(w,4); os.execv(sys.argv[3],sys.argv[3:])"
)


DEFECTS = """() => {
  const defects = [];
  const name = (element) => {
    const kind = element.className?.baseVal ?? element.className;
    return `${element.tagName.toLowerCase()}${kind ? '.' + String(kind).trim().replace(/ +/g, '.') : ''}`;
  };
  const isShown = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 1 && box.height > 1 &&
      element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  };
  const scrolls = (element) => {
    for (let each = element.parentElement; each && each !== document.body; each = each.parentElement) {
      if (getComputedStyle(each).overflowX !== 'visible') return true;
    }
    return false;
  };
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) defects.push(`the page is ${wide} wide in a window of ${innerWidth}`);
  const numbers = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+(?:e-?\\d+)?/g).map(Number);
    return text.startsWith('color(') ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
  };
  const over = (front, back) => back.map((value, index) => front[3] * front[index] + (1 - front[3]) * value);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const contrast = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(numbers(getComputedStyle(each).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    const back = layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
    const color = numbers(getComputedStyle(element).color);
    for (let each = element; each; each = each.parentElement) color[3] *= Number(getComputedStyle(each).opacity);
    const front = over(color, back);
    const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const elements = [...document.body.querySelectorAll('*')].filter(isShown);
  const counted = new Set();
  const report = (element, text) => {
    const key = name(element) + text;
    if (!counted.has(key)) defects.push(`${name(element)} “${element.textContent.trim().slice(0, 30)}” ${text}`);
    counted.add(key);
  };
  for (const element of elements) {
    const box = element.getBoundingClientRect();
    if (box.right > innerWidth + 1 && box.left < innerWidth && !scrolls(element)) {
      report(element, 'ends right of the window');
    }
    if ([...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) {
      const ratio = contrast(element);
      if (ratio < 4.5) report(element, `has a contrast of ${ratio.toFixed(2)}`);
    }
    const isTarget = innerWidth < 500 && element.matches('button, select, summary, nav a');
    if (isTarget && Math.min(box.width, box.height) < 23.5) {
      report(element, `is ${box.width.toFixed(0)} x ${box.height.toFixed(0)}, too small to tap`);
    }
  }
  return defects.slice(0, 20);
}"""
"""Returns defects of a page as sentences: WCAG 2.2 AA has 4.5 as contrast of text and 24 pixels as size of targets."""


def find_chromium() -> str | None:
    """Returns the browser of this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@contextlib.contextmanager
def chromium() -> Iterator[Tab]:
    """Opens a tab of a browser with an empty profile and without network; closes it at the end."""
    binary = find_chromium()
    if binary is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
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
            yield Tab(Wire(from_us, to_us))
        finally:
            process.terminate()
            process.wait(SECONDS)
            os.close(from_us)
            os.close(to_us)


def _pipe() -> tuple[int, int]:
    """Returns a pipe that avoids the descriptors that the browser expects."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


class Wire:
    """Commands and their results; events are kept until they are read."""

    def __init__(self, out: int, into: int):
        self._out, self._into = out, into
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Returns the result of a command; raises `RuntimeError` if refused, `TimeoutError` without a response."""
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
            results = os.read(self._into, 2**20)
            if not results:
                raise RuntimeError("Chromium ended")
            self._rest += results
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)


class Tab:
    """A tab that shows one page at a time."""

    def __init__(self, wire: Wire):
        self._wire = wire
        target = wire.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = wire.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.media()

    def media(self, dark: bool = False, kind: str = "") -> None:
        """Emulates a color scheme and a medium, such as `print`, from the next page on."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._wire.call(method, self._session, **parameters)

    def open(self, page: Path | str, width: int, height: int = 900, phone: bool = False, scale: float = 1.0) -> None:
        """Loads a file or address at that size in CSS pixels and waits until its scripts have run."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        self._wire.events.clear()
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self.call("Page.navigate", url=url)
        until = time.monotonic() + SECONDS
        while not self.run("document.readyState == 'complete' && location.protocol != 'about:'"):
            if time.monotonic() > until:
                raise TimeoutError(f"{page} does not load")
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """Returns the value of an expression in the page."""
        results = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in results:
            raise RuntimeError(results["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return results["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Moves the pointer, in CSS pixels of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def complaints(self) -> list[str]:
        """Returns errors and warnings of the console, and exceptions, since the page was opened."""
        self.run("0")  # what was said before this is here now
        results = []
        for event in self._wire.events:
            record = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                results.append(json.dumps(record["exceptionDetails"])[:500])
            elif event["method"] == "Log.entryAdded" and record["entry"]["level"] in ("error", "warning"):
                results.append(record["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and record["type"] in ("error", "warning"):
                results.append(json.dumps(record["args"])[:500])
        return results

    def requests(self) -> list[str]:
        """Returns the addresses that the page requested, except its own."""
        requested = [
            e["params"]["request"]["url"] for e in self._wire.events if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in requested if not url.startswith(("file:", "data:", "http://127.0.0.1:"))]

    def defects(self) -> list[str]:
        """Returns what is wrong with the page: console messages, width, contrast of text (WCAG AA), small buttons."""
        defects = [f"console: {each}" for each in self.complaints()]
        defects += [f"request to {each}" for each in self.requests()]
        return defects + self.run(f"({DEFECTS})()")

    def picture(self, path: Path, top: float = 0.0, height: float | None = None) -> None:
        """Returns a PNG of the page from `top` on, in CSS pixels; without `height` up to its end."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        until = size["height"] if height is None else min(top + height, size["height"])
        clip = {"x": 0, "y": top, "width": size["width"], "height": until - top, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
