"""The built front end: where its bundles are, why they are absent, and the page that opens them."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from instep.core.errors import Unsupported

SMALL, WITH_GAUSSIANS, PROMPTS = "viewer.js", "viewer_gaussians.js", "prompts.js"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>instep view</title>
<style>html, body, main { margin: 0; height: 100%; }</style>
</head>
<body>
<main data-instep-viewer="socket"></main>
<script src="/BUNDLE"></script>
</body>
</html>
"""


def page(script: str = SMALL) -> bytes:
    """The page that connects to the server it came from, with one of the bundles."""
    return PAGE.replace("BUNDLE", script).encode()


def absence(name: str = SMALL) -> str:
    """Why there is no front end, in a sentence; empty where there is one with this script."""
    static = files("instep.app.viewer") / "static"
    if (static / name).is_file():
        return ""
    why = ""
    if (static / "built.json").is_file():
        why = str(json.loads((static / "built.json").read_text(encoding="utf-8")).get("error", ""))
    return f"The web viewer was not built with this installation{f': {why}' if why else '.'}"


@cache
def bundle(name: str = SMALL) -> bytes:
    """The script of the viewer; `Unsupported` where it was not built."""
    if why := absence(name):
        raise Unsupported(f"{why} Run 'make web' in a checkout, or install instep where npm can be reached.")
    return (files("instep.app.viewer") / "static" / name).read_bytes()
