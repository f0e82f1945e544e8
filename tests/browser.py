"""A real browser without a window, over its debugging protocol: what a page shows, asks for and plays at some width."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from instep.app.viewer.showing import FLAGS, PROGRAMS

OVERLAPS = """
(() => {
  const clipped = (box, element) => {
    for (let e = element; e && e !== document.body; e = e.parentElement) {
      if (getComputedStyle(e).overflow === "visible") continue;
      const r = e.getBoundingClientRect();
      box = { ...box, x0: Math.max(box.x0, r.left), x1: Math.min(box.x1, r.right) };
      box = { ...box, y0: Math.max(box.y0, r.top), y1: Math.min(box.y1, r.bottom) };
    }
    return box;
  };
  const boxes = [], seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement, text = node.textContent.trim();
    const shown = element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    if (!text || !shown || element.closest("script,style,noscript")) continue;
    const inSvg = element.closest("text");
    if (inSvg && seen.has(inSvg)) continue;
    seen.add(inSvg);
    const range = document.createRange();
    range.selectNodeContents(node);
    const rects = inSvg ? [inSvg.getBoundingClientRect()] : [...range.getClientRects()];
    for (const r of rects) {
      const box = clipped({ text, x0: r.left, x1: r.right, y0: r.top, y1: r.bottom }, element);
      if (box.x1 - box.x0 > 1 && box.y1 - box.y0 > 1) boxes.push(box);
    }
  }
  const found = [];
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    const wide = Math.min(a.x1, b.x1) - Math.max(a.x0, b.x0);
    const high = Math.min(a.y1, b.y1) - Math.max(a.y0, b.y0);
    if (wide > 2 && high > 3) found.push(`${a.text} | ${b.text}`);
  }));
  const outside = boxes.filter((b) => b.x1 > innerWidth + 1 || b.x0 < -1).map((b) => b.text);
  return { found, outside, boxes: boxes.length, wide: document.documentElement.scrollWidth };
})()
"""
UNLABELED = """
[...document.querySelectorAll(".figure")].filter((f) => f.checkVisibility() && f._fullLayout).flatMap((f) => {
  const layout = f._fullLayout, title = f.closest(".card").innerText.split("\\n")[0];
  const named = (axis) => axis.title?.text && !axis.title.text.startsWith("Click to enter");
  const words = (axis) => axis.type === "category" || (axis.tickvals || []).length > 0;
  const sides = ["x", "y"].map((side) => Object.keys(layout).filter((key) => key.match(`^${side}axis[0-9]*$`)));
  const missing = [];
  if (!sides[0].some((key) => named(layout[key]))) missing.push(`x of ${title}`);
  sides[1].forEach((key) => { if (!named(layout[key]) && !words(layout[key])) missing.push(`${key} of ${title}`); });
  return missing;
})
"""
READY = """
(async () => {
  const ready = () => document.documentElement?.dataset.ready === "yes";
  for (let i = 0; i < 1200 && !ready(); i++) await new Promise((r) => setTimeout(r, 50));
  return ready();
})()
"""
VIDEOS = """
Promise.all([...document.querySelectorAll("video")].map(async (v) => {
  v.muted = true;
  for (let i = 0; i < 100 && v.readyState < 2; i++) await new Promise((r) => setTimeout(r, 100));
  await v.play();
  const begin = v.currentTime;
  for (let i = 0; i < 100 && v.currentTime === begin; i++) await new Promise((r) => setTimeout(r, 100));
  const played = v.currentTime !== begin;
  return { width: v.videoWidth, seconds: v.duration, played, error: v.error && v.error.message };
}))
"""


class Page:
    """A page in the browser."""

    def __init__(self, link: ClientConnection):
        self._link, self._ids, self._session = link, itertools.count(1), ""
        self.requests: list[str] = []
        """What the page asked for, its own file aside."""
        self.errors: list[str] = []
        """Messages of errors in its scripts."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are noted."""
        number = next(self._ids)
        session = {"sessionId": self._session} if self._session else {}
        self._link.send(json.dumps({"id": number, "method": method, "params": parameters, **session}))
        while True:
            message = json.loads(self._link.recv(timeout=240))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def show(self, path: Path, width: int) -> None:
        """Open a file at a width [pixels], as a phone where it is narrow, and wait until its figures are there."""
        phone = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.ask("Page.navigate", url="about:blank")  # else the same address is not loaded again
        self.ask("Page.navigate", url=f"file://{path.absolute()}#theme=light")
        assert self.evaluate(READY), f"the figures of {path} did not appear within a minute: {self.errors}"

    def open(self, url: str, *, width: int = 1200, height: int = 760) -> None:
        """Open an address at a size [pixels]."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url="about:blank")  # else the same address is not loaded again
        self.ask("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> Path:
        """The whole page as a PNG."""
        shown = self.ask("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shown["data"]))
        return path

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("data:", "blob:")) and parameters.get("type") != "Document":
                self.requests.append(url)
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])


def browser_program() -> str | None:
    """The program of a browser that can be driven, where there is one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def browser_page(folder: Path) -> Generator[Page]:
    """A page of Chromium whose 3D is rendered by the processor; without one the test is skipped.

    `folder` holds its profile.
    """
    program = browser_program()
    if program is None:
        pytest.skip("needs Chromium: install Debian's chromium to run the browser test")
    command = [program, *FLAGS, "--autoplay-policy=no-user-gesture-required", f"--user-data-dir={folder}"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert child.stderr is not None
        line = next(line for line in child.stderr if "DevTools listening on" in line)
        with connect(line.split(" on ")[1].strip(), max_size=None, open_timeout=60, ping_interval=None) as link:
            yield Page(link)
    finally:
        child.terminate()
        child.wait(20)


def check_page_where_possible(path: Path, profile: Path) -> None:
    """`check_page` of a page without videos at the end of a test of other things; nothing where there is no browser."""
    if browser_program() is not None:
        with browser_page(profile) as page:
            check_page(page, path, videos=0)


def check_page(page: Page, path: Path, *, videos: int) -> None:
    """Check that a page can be read on a desk, a phone and paper, asks for nothing, and that its videos play."""
    assert path.stat().st_size < 5_000_000
    page.requests.clear()
    page.errors.clear()
    for width, media in ((1300, "screen"), (390, "screen"), (794, "print")):
        page.ask("Emulation.setEmulatedMedia", media=media)
        page.show(path, width)
        seen = page.evaluate(OVERLAPS)
        assert seen["boxes"] > 20 and (seen["found"], seen["outside"]) == ([], []), (width, media)
        assert seen["wide"] <= width, (width, media)
        assert page.evaluate(UNLABELED) == [], (width, media)
    page.ask("Emulation.setEmulatedMedia", media="screen")
    shown = page.evaluate(VIDEOS)
    assert len(shown) == videos
    for video in shown:
        assert video["played"] and video["error"] is None and video["width"] > 100 and video["seconds"] > 0.5
    assert (page.requests, page.errors) == ([], [])
