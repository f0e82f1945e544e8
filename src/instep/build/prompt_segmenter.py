"""Segmentation by a network that takes clicks and boxes: SAM 2, or one of the same form, through onnxruntime."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from instep.core.cores import usable_cores
from instep.core.errors import BadInput
from instep.core.lazy import optional_library
from instep.core.reading import parsing
from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array

from .prompts import Box, ObjectPrompt, Point
from .segmenter_weights import FILES, file_sha256

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
        low = _mask_size(self.decoder, side)
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


def _mask_size(decoder: Any, side: int) -> int:
    """Pixels along a side of the masks that a decoder takes."""
    shape = next(one.shape for one in decoder.get_inputs() if one.name == "mask_input")
    return int(shape[-1]) if isinstance(shape[-1], int) else side // 4
