"""The viewer from Python and in notebooks: a server for the browser, or one HTML file that needs no server."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from instep.core.episode import Episode
from instep.report.page import packed
from instep.scene.folder import Scene

from .contents import RecordingContent, SceneContent
from .front_end import SMALL, WITH_GAUSSIANS, bundle
from .messages import container
from .opening import ViewRequest, open_content, scene_of_data
from .view_server import ViewContent, ViewServer

Shown = str | Path | Scene | Episode | Sequence[Episode]
"""What can be shown: words as `instep view` takes them, a scene, an episode, episodes."""
FRAME_HEIGHT = 520
"""Height of the viewer in a notebook [pixels]."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval'; style-src 'unsafe-inline'; img-src data: "
    "blob:; connect-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'"
)


class Show:
    """Something in the viewer: in the browser through `url`, in a notebook as it is, or as a file."""

    def __init__(self, content: ViewContent):
        self._content = content
        self._server: ViewServer | None = None

    @property
    def url(self) -> str:
        """The address of a page on this machine; the server is started when it is first asked for."""
        if self._server is None:
            self._server = ViewServer(self._content)
            self._server.start()
        return self._server.url

    def close(self) -> None:
        """End the server, where one was started."""
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def to_html(self, path: str | Path) -> Path:
        """Write one file with everything in it, which any browser opens without a network."""
        path = Path(path)
        path.write_text(standalone(self._content), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        inside = html.escape(standalone(self._content), quote=True)
        return f'<iframe srcdoc="{inside}" style="width: 100%; height: {FRAME_HEIGHT}px; border: 0"></iframe>'


def show(thing: Shown, *, scene: str | Scene = "") -> Show:
    """Show a scene, recordings or a run in the viewer; `scene` is that of episodes which do not name their own.

    In a notebook the result displays itself; elsewhere open its `url`, or write it with `to_html`.
    """
    if isinstance(thing, str | Path):
        name = str(scene.root) if isinstance(scene, Scene) else scene
        return Show(open_content(ViewRequest(thing=str(thing), scene=name)))
    if isinstance(thing, Scene):
        return Show(SceneContent(thing))
    episodes = [thing] if isinstance(thing, Episode) else thing
    loaded = scene if isinstance(scene, Scene) else Scene.load(scene or scene_of_data(episodes, Path("the episode")))
    return Show(RecordingContent(loaded, episodes, loaded.name))


def standalone(content: ViewContent) -> str:
    """A page with the script and the data inside."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    values: dict[str, Any] = {
        "policy": POLICY,
        "script": packed(bundle(WITH_GAUSSIANS if content.gaussians else SMALL)),
        "data": packed(container(content.opening())),
    }
    loader = PackageLoader("instep.app.viewer", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("standalone.html").render(values)
