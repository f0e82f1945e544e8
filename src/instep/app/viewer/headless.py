"""Images and videos of the viewer without a window: a Chromium of this machine, over its debugging protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instep.core.errors import Unsupported
from instep.core.world import Array
from instep.data.frames import decode_image

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-port=0", "--hide-scrollbars", "--use-angle=swiftshader",
    # Only WebGL goes through the software rasterizer: composing the page by it takes longer than the 3D itself, and
    # the browser's own address bar would be rendered too.
    "--enable-unsafe-swiftshader", "--disable-gpu-compositing",
    "--disable-features=PreloadTopChromeWebUI,WebUIOmniboxPopup,WebUIOmniboxFullPopup,WebUIOmniboxAimPopup",
)  # fmt: skip
ANSWER_TIMEOUT_S = 240.0
READY = """
(async () => {
  for (let i = 0; i < 4000; i++) {
    const state = window.instepViewers?.[0]?.state();
    if (state?.ready) return state;
    await new Promise((done) => setTimeout(done, 10));
  }
  return null;
})()
"""


class ViewPage:
    """A page of the viewer in a browser without a window."""

    def __init__(self, link: ClientConnection):
        self._link, self._ids, self._session = link, itertools.count(1), ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, url: str, size: tuple[int, int]) -> dict[str, Any]:
        """Open an address of the viewer and wait for the first image; what the viewer then says of itself."""
        width, height = size
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._ask("Page.navigate", url=url)
        state = self.evaluate(READY)
        if state is None:
            raise Unsupported("The browser did not show the viewer; 'instep doctor' says whether it was built.")
        return state

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    def image(self, t: float | None = None) -> Array:
        """The 3D view alone, at a time [s]."""
        seek = "" if t is None else f"v.clock.playing = false; v.clock.seek(v.clock.begin + {t:.6f}); "
        data = self.evaluate(f"(() => {{ const v = window.instepViewers[0]; {seek}return v.screenshot(); }})()")
        return decode_image(base64.b64decode(data.partition(",")[2]))

    def screenshot(self, path: Path) -> Path:
        """The page with its controls, as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))
        return path

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        session = {"sessionId": self._session} if self._session else {}
        self._link.send(json.dumps({"id": number, "method": method, "params": parameters, **session}))
        while True:
            message = json.loads(self._link.recv(timeout=ANSWER_TIMEOUT_S))
            if message.get("id") == number:
                return message["result"]


@contextmanager
def view_page() -> Generator[ViewPage]:
    """A page of Chromium; `Unsupported` where there is none."""
    from websockets.sync.client import connect

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise Unsupported("Images of the viewer are made by Chromium, which was not found; install it (apt: chromium).")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # its processes write until they end
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)  # noqa: S603
        try:
            assert child.stderr is not None  # noqa: S101 - it is a pipe
            line = next(line for line in child.stderr if "DevTools listening on" in line)
            with connect(line.split(" on ")[1].strip(), max_size=None, open_timeout=60, ping_interval=None) as link:
                yield ViewPage(link)
        finally:
            child.terminate()
            child.wait(20)


def view_images(page: ViewPage, seconds: float, fps: float) -> Iterator[Array]:
    """The 3D view of a recording, image by image."""
    for frame in range(int(seconds * fps) + 1):
        yield page.image(frame / fps)
