"""Shapes from a generator, such as a network from image to 3D: the request, registration, and comparison with
silhouettes.

A program gets a folder as its last argument: request.json and the images. It writes mesh.glb (or .obj, .stl) there and
ends with exit code 0. The mesh may have any scale, orientation and place. The protocol is in
docs/verbs/reconstruct.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import first_line, read_file
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data.frames import encode_png
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.splat.fitting import Progress
from instep.splat.image import to_bytes

from .cavities import cavity_words
from .mesh_files import closed_mesh, mesh_form, read_mesh
from .mesh_registration import register_mesh
from .object_shape import (
    MAX_SIZE_M,
    MEAN_MARGIN,
    MIN_SIZE_M,
    SHAPE_FACES,
    WORST_MARGIN,
    ObjectShape,
    hidden_by,
    viewed_span,
)
from .triangle_mesh import TriangleMesh, checked_mesh, simplified
from .visual_hull import contour_points, mask_field, pixel_size, residuals, silhouette_overlap

MIN_ALONE = 0.85
"""Least mean overlap of a generated shape if silhouettes alone give none."""
PROTOCOL = "instep.generator/1"
"""Protocol named in request.json."""
MAX_ANSWER = 512 << 20
"""Largest mesh [bytes]."""
ANSWERS = ("mesh.glb", "mesh.obj", "mesh.stl")
_MARGIN = 0.1
"""Border of the images around the object [share of its longer side]."""
_POLL_S = 0.2


@frozen_dataclass
class ShapeGenerator:
    """A program that generates shapes."""

    words: str
    """The program with its arguments, as given."""
    timeout: float
    """Longest time for one object [s]."""

    @property
    def program(self) -> list[str]:
        """The words of a command."""
        return shlex.split(self.words)


@array_dataclass
class GeneratedOptions:
    """The generator, and the shape that its answer is compared with."""

    generator: ShapeGenerator
    silhouettes: Callable[[], ObjectShape]
    """Returns the shape from silhouettes alone."""
    folder: Path
    """Folder for the answer as it came."""
    seed: int


def generated_shape(
    name: str, pairs: Sequence[tuple[PosedView, ObjectMask]], plane: Array, options: GeneratedOptions, report: Progress
) -> ObjectShape:
    """The shape of a generator if it fits the masks about as well as the one from silhouettes, else that one.

    `info["generator"]` of the result has the choice, the reason, and the overlaps of both.
    """
    masks, words = [mask for _, mask in pairs], options.generator.words
    report(0.0, f"{name}: shape from silhouettes")
    alone, missing = None, ""
    try:
        alone = options.silhouettes()
    except BadInput as error:  # few views of an object that is not upright give no shape
        missing = str(error)
    begin = time.monotonic()
    request = generator_request(name, pairs, plane, options.seed)
    data = generated_mesh(options.generator, request, lambda s, text: report(0.1 + 0.6 * s, f"{name}: {text}"))
    seconds = time.monotonic() - begin
    what = f"The answer of {words!r} for {name!r}"
    raw = read_mesh(data, what)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / f"{name}.{mesh_form(data)}").write_bytes(data)
    solid, how = closed_mesh(raw, what)
    placed = register_mesh(solid, masks, plane, lambda s, text: report(0.7 + 0.3 * s, f"{name}: {text}"))
    mesh = checked_mesh(simplified(placed.mesh, SHAPE_FACES), repr(name))
    overlaps = {mask.camera.name: silhouette_overlap(mesh, mask) for mask in masks}
    taken, because = _decided(overlaps, alone)
    info: dict[str, Any] = {
        "asked": words, "seconds": round(seconds, 2), "taken": taken, "because": because, "overlap": overlaps,
        "silhouettes": missing if alone is None else {key: alone.info[key] for key in ("method", "overlap")},
        "answer": {"form": mesh_form(data), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "surface": how, "faces": len(raw.faces), "scale": placed.scale, "orientations_as_good": placed.rivals,
        "world_from_mesh": placed.world_from_mesh.tolist(), "volume_m3": mesh.volume,
    }  # fmt: skip
    if not taken and alone is not None:
        return ObjectShape(alone.mesh, {**alone.info, "generator": info})
    if not taken or not MIN_SIZE_M < mesh.diagonal < MAX_SIZE_M:
        raise BadInput(
            f"{what} does not fit: {because}, at {mesh.diagonal:.3g} m across; and silhouettes alone give no shape "
            f"({missing}) Check the masks and the generated mesh, or add views."
        )
    plain = {"method": "generated", "views": len(masks), "span_deg": round(viewed_span(masks), 1)}
    found = {**plain, **_uncertainty(mesh, masks, plane), **cavity_words(mesh, plane)}
    return ObjectShape(mesh, {**found, "overlap": overlaps, "generator": info})


def _decided(overlaps: dict[str, float], alone: ObjectShape | None) -> tuple[bool, str]:
    """Whether the generated shape is used, and why."""
    mean, worst = float(np.mean(list(overlaps.values()))), min(overlaps.values())
    own = f"its silhouettes overlap the masks by {mean:.3f} (worst {worst:.3f})"
    if alone is None:
        return mean >= MIN_ALONE, f"{own}; at least {MIN_ALONE} is needed if silhouettes give no shape"
    others = list(alone.info["overlap"].values())
    rival, weakest = float(np.mean(others)), min(others)
    taken = mean >= rival - MEAN_MARGIN and worst >= weakest - WORST_MARGIN
    than = f"those of the {alone.info['method']} by {rival:.3f} (worst {weakest:.3f})"
    return taken, f"{own}, {than}"


def _uncertainty(mesh: TriangleMesh, masks: Sequence[ObjectMask], plane: Array) -> dict[str, Any]:
    """Distance of its silhouettes from the outlines; for one view, the length that it does not show."""
    size, apart = pixel_size([mask.camera for mask in masks], mesh.centroid), list[float]()
    for mask in masks:
        seen = contour_points(mesh, mask.camera)
        r, _, known = residuals(mask_field(mask), seen.pixels)
        if known.any():
            apart.append(pixel_size([mask.camera], mesh.centroid) * float(np.sqrt(np.mean(r[known] ** 2))))
    if len(masks) == 1:
        return hidden_by(mesh, masks[0], plane, 0.5 * size)
    words = "distance of silhouettes from the masks; parts that no view shows are the generator's guess"
    return {"uncertainty_m": max(0.5 * size, float(np.mean(apart)) if apart else 0.0), "uncertainty_from": words}


@array_dataclass
class GeneratorRequest:
    """The images of one object."""

    table: dict[str, Any]
    """The content of request.json."""
    images: tuple[bytes, ...]
    """PNG of each view, in the order of the table: the crop around the object, its mask as alpha."""


def parse_generator(words: str, timeout: float = 600.0) -> ShapeGenerator:
    """A generator by its words: an installed program with arguments."""
    if not 0 < timeout <= 86_400:
        raise BadInput(f"--generator-timeout is a time in seconds, above 0 and at most a day, not {timeout:g}.")
    found = ShapeGenerator(words.strip(), timeout)
    try:
        program = found.program
    except ValueError as error:
        raise BadInput(f"--generator {words!r} is no command ({first_line(error)}); close its quotes.") from None
    if not program or shutil.which(program[0]) is None:
        name = program[0] if program else ""
        raise BadInput(
            f"There is no program {name!r} for --generator; an installed program with its arguments was expected."
        )
    return found


def generator_request(
    name: str, pairs: Sequence[tuple[PosedView, ObjectMask]], plane: Array, seed: int
) -> GeneratorRequest:
    """The request for an object; the view that shows most of it comes first."""
    ranked = sorted(pairs, key=lambda pair: (pair[1].cut, -int(pair[1].inside.sum())))
    views, images = list[dict[str, Any]](), list[bytes]()
    for k, (view, mask) in enumerate(ranked):
        left, top, right, bottom = mask.region
        left, top, right, bottom = mask.padded_region(max(2, round(_MARGIN * max(right - left, bottom - top))))
        alpha = np.where(mask.known, mask.alpha, 0.0)[..., None]
        pixels = np.concatenate([view.image, alpha], axis=-1)[top:bottom, left:right]
        camera = view.camera
        views.append(
            {
                "image": f"{k:03d}.png",
                "camera": camera.name,
                "crop": [left, top, right, bottom],
                "width": right - left,
                "height": bottom - top,
                "focal": list(map(float, camera.focal)),
                "centre": [float(camera.centre[0] - left), float(camera.centre[1] - top)],
                "distortion": list(map(float, camera.distortion)),
                "world_from_camera": camera.body_from_camera.tolist(),
            }
        )
        images.append(encode_png(to_bytes(pixels)))
    table = {"protocol": PROTOCOL, "object": name, "seed": seed, "table": list(map(float, plane)), "views": views}
    return GeneratorRequest(table, tuple(images))


def generated_mesh(generator: ShapeGenerator, request: GeneratorRequest, report: Progress) -> bytes:
    """The bytes of the mesh of a generator; BadInput if there is none in time."""
    with tempfile.TemporaryDirectory(prefix="instep-generator-") as place, tempfile.TemporaryFile() as log:
        folder = Path(place)
        for view, image in zip(request.table["views"], request.images, strict=True):
            (folder / view["image"]).write_bytes(image)
        (folder / "request.json").write_text(json.dumps(request.table, indent=1) + "\n", encoding="utf-8")
        try:
            child = subprocess.Popen(  # noqa: S603 (the user names the program; no shell is between)
                [*generator.program, place], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise BadInput(f"The generator {generator.words!r} cannot be started ({first_line(error)}).") from None
        try:
            begin = time.monotonic()
            while child.poll() is None:
                spent = time.monotonic() - begin
                left = generator.timeout - spent
                report(spent / generator.timeout, f"generator: {spent:.0f} s, at most {left:.0f} s more")
                if left <= 0:
                    raise BadInput(
                        f"The generator {generator.words!r} gave no mesh within {generator.timeout:g} s; allow more "
                        "time by --generator-timeout, or check whether it hangs."
                    )
                with suppress(subprocess.TimeoutExpired):
                    child.wait(min(_POLL_S, left))
        finally:
            if child.poll() is None:  # with the processes that it started
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if child.returncode:
            how = f"exit code {child.returncode}" if child.returncode > 0 else f"signal {-child.returncode}"
            raise BadInput(f"The generator {generator.words!r} ended with {how}{last_line(log)}.")
        answers = [folder / name for name in ANSWERS if (folder / name).exists()]
        if len(answers) != 1:
            what = "no mesh" if not answers else f"{len(answers)} meshes"
            raise BadInput(
                f"The generator {generator.words!r} wrote {what}{last_line(log)}; one of {', '.join(ANSWERS)} was "
                "expected in the folder that is its last argument."
            )
        return read_file(answers[0], MAX_ANSWER)


def last_line(log: IO[bytes]) -> str:
    """The last line that a program printed, in brackets."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f" ({lines[-1][:200]})" if lines else ""
