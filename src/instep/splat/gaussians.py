"""Spherical harmonics: the colour of a Gaussian as a function of the direction it is seen from.

The basis, its signs and its order are those of the INRIA files: l = 0, 1, 2, 3 with m from -l to l.
A colour is 0.5 + sum of coefficients times basis, and never below 0.

3D Gaussians on bodies: centres, orientations, scales, opacities and spherical-harmonic colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, normalized, quat_from_matrix, quat_mul, transform
from instep.core.world import Array, array_dataclass

C0 = 0.28209479177387814
"""The constant harmonic: colour = 0.5 + C0 * coefficient for degree 0."""
C1 = 0.4886025119029199
C2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)
C3 = (
    -0.5900435899266435, 2.890611442640554, -0.4570457994644658, 0.3731763325901154, -0.4570457994644658,
    1.445305721320277, -0.5900435899266435,
)  # fmt: skip
MAX_DEGREE = 3


def degree_of(coefficients: int) -> int:
    """The degree that has this many coefficients: 1, 4, 9, 16."""
    degree = math.isqrt(coefficients) - 1
    if (degree + 1) ** 2 != coefficients or not 0 <= degree <= MAX_DEGREE:
        raise BadInput(
            f"{coefficients} spherical-harmonic coefficients per colour were given; degrees 0 to 3 have 1, 4, 9 or 16."
        )
    return degree


def harmonic_basis(direction: Array, degree: int) -> Array:
    """The basis [..., (degree + 1)^2] at unit directions [..., 3]."""
    x, y, z = np.moveaxis(np.asarray(direction, float), -1, 0)
    parts = [np.full_like(x, C0)]
    if degree >= 1:
        parts += [-C1 * y, C1 * z, -C1 * x]
    if degree >= 2:
        xx, yy, zz = x * x, y * y, z * z
        parts += [C2[0] * x * y, C2[1] * y * z, C2[2] * (2 * zz - xx - yy), C2[3] * x * z, C2[4] * (xx - yy)]
        if degree >= 3:
            parts += [
                C3[0] * y * (3 * xx - yy),
                C3[1] * x * y * z,
                C3[2] * y * (4 * zz - xx - yy),
                C3[3] * z * (2 * zz - 3 * xx - 3 * yy),
                C3[4] * x * (4 * zz - xx - yy),
                C3[5] * z * (xx - yy),
                C3[6] * x * (xx - 3 * yy),
            ]
    return np.stack(parts, axis=-1)


def harmonic_jacobian(direction: Array, degree: int) -> Array:
    """The derivative of the basis [..., (degree + 1)^2, 3] by the direction, its length not held."""
    x, y, z = np.moveaxis(np.asarray(direction, float), -1, 0)
    zero, one = np.zeros_like(x), np.ones_like(x)
    rows = [(zero, zero, zero)]
    if degree >= 1:
        rows += [(zero, -C1 * one, zero), (zero, zero, C1 * one), (-C1 * one, zero, zero)]
    if degree >= 2:
        rows += [
            (C2[0] * y, C2[0] * x, zero),
            (zero, C2[1] * z, C2[1] * y),
            (-2 * C2[2] * x, -2 * C2[2] * y, 4 * C2[2] * z),
            (C2[3] * z, zero, C2[3] * x),
            (2 * C2[4] * x, -2 * C2[4] * y, zero),
        ]
    if degree >= 3:
        xx, yy, zz = x * x, y * y, z * z
        rows += [
            (6 * C3[0] * x * y, 3 * C3[0] * (xx - yy), zero),
            (C3[1] * y * z, C3[1] * x * z, C3[1] * x * y),
            (-2 * C3[2] * x * y, C3[2] * (4 * zz - xx - 3 * yy), 8 * C3[2] * y * z),
            (-6 * C3[3] * x * z, -6 * C3[3] * y * z, 3 * C3[3] * (2 * zz - xx - yy)),
            (C3[4] * (4 * zz - 3 * xx - yy), -2 * C3[4] * x * y, 8 * C3[4] * x * z),
            (2 * C3[5] * x * z, -2 * C3[5] * y * z, C3[5] * (xx - yy)),
            (3 * C3[6] * (xx - yy), -6 * C3[6] * x * y, zero),
        ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def harmonic_colour(sh: Array, direction: Array) -> Array:
    """Colours [n, 3] of coefficients [n, (degree + 1)^2, 3] seen along unit directions [n, 3]."""
    weights = harmonic_basis(direction, degree_of(sh.shape[-2]))
    return np.maximum(0.5 + np.einsum("...k,...kc->...c", weights, np.asarray(sh, float)), 0.0)


def rotated_harmonics(sh: Array, matrix: Array) -> Array:
    """Coefficients [n, (degree + 1)^2, 3] under a rotation matrix.

    A rotated body has along d the colour that it had along matrix^T d. Each band is mapped onto itself, so its
    matrix follows from as many directions as the band has harmonics; more are taken, and the system is solved.
    """
    degree, out = degree_of(sh.shape[-2]), sh.copy()
    directions = normalized(np.random.default_rng(0).normal(size=(32, 3)))
    after, before = harmonic_basis(directions, degree), harmonic_basis(directions @ np.asarray(matrix, float), degree)
    for band in range(1, degree + 1):
        rows = slice(band * band, (band + 1) ** 2)
        rotation = np.linalg.lstsq(after[:, rows], before[:, rows], rcond=None)[0]
        out[:, rows] = np.einsum("ij,njc->nic", rotation, sh[:, rows])
    return out


Z_UP_FROM_Y_UP = np.array([[1.0, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
"""Scenes are Z up, as robots are; .spz and glTF files are Y up."""


@array_dataclass
class Gaussians:
    """3D Gaussians, each in the frame of a body, with which it moves."""

    means: Array
    """Centres [n, 3] [m]."""
    quats: Array
    """Orientations wxyz [n, 4]; their length does not matter, but it is not 0."""
    scales: Array
    """Standard deviations along the own axes [n, 3] [m]."""
    opacities: Array
    """Opacity at the centre [n], 0 to 1."""
    sh: Array
    """Spherical-harmonic colour [n, (degree + 1)^2, 3]."""
    body: Array
    """Body of each [n], an index into `names`."""
    names: tuple[str, ...] = ("world",)
    """The bodies, in the order in which poses are given."""

    def __post_init__(self) -> None:
        n = len(self.means)
        wanted = {"means": (n, 3), "quats": (n, 4), "scales": (n, 3), "opacities": (n,), "body": (n,)}
        for field, shape in wanted.items():
            if (given := np.shape(getattr(self, field))) != shape:
                raise BadInput(f"{field!r} of {n} Gaussians must have the shape {shape}, not {given}.")
        if self.sh.ndim != 3 or self.sh.shape[0] != n or self.sh.shape[2] != 3:
            raise BadInput(f"'sh' of {n} Gaussians must have the shape ({n}, 1|4|9|16, 3), not {self.sh.shape}.")
        degree_of(self.sh.shape[1])
        _check_values(self)

    def __len__(self) -> int:
        return len(self.means)

    @property
    def degree(self) -> int:
        """Degree of the spherical harmonics: 0 for a colour that is the same from all sides."""
        return degree_of(self.sh.shape[1])

    @property
    def colours(self) -> Array:
        """The colour without its dependence on direction [n, 3]."""
        return 0.5 + C0 * self.sh[:, 0]

    @property
    def covariances(self) -> Array:
        """Covariance matrices in the body frame [n, 3, 3] [m^2]."""
        axes = matrix_from_quat(normalized(np.asarray(self.quats, float))) * np.asarray(self.scales, float)[:, None, :]
        return axes @ np.swapaxes(axes, 1, 2)

    def take(self, index: Array | slice) -> Gaussians:
        """Some of them: indices, a mask or a slice."""
        per_row = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "names"}
        return replace(self, **per_row)

    def on(self, name: str) -> Gaussians:
        """Those of one body."""
        if name not in self.names:
            raise UnknownName("body", name, self.names)
        part = self.take(self.body == self.names.index(name))
        return replace(part, body=np.zeros(len(part), np.int32), names=(name,))

    def attached_to(self, name: str, names: tuple[str, ...] | None = None) -> Gaussians:
        """The same Gaussians, all on one body; `names` are the bodies poses will be given for."""
        names = (name,) if names is None else names
        if name not in names:
            raise UnknownName("body", name, names)
        return replace(self, body=np.full(len(self), names.index(name), np.int32), names=names)

    def in_world(self, poses: Array | None = None) -> Array:
        """Centres in the world's frame [n, 3], for poses of the bodies [bodies, 7]; identity where None."""
        if poses is None:
            return np.asarray(self.means, float)
        world_from_body = transform(np.asarray(poses, float))[self.body]
        return np.einsum("nij,nj->ni", world_from_body[:, :3, :3], self.means) + world_from_body[:, :3, 3]

    def moved(self, new_from_old: Array) -> Gaussians:
        """The same Gaussians in another frame, with rotated

        The 4 x 4 transform rotates, translates and may scale evenly, as between files in different units.
        """
        linear, shift = np.asarray(new_from_old, float)[:3, :3], np.asarray(new_from_old, float)[:3, 3]
        size = np.cbrt(np.linalg.det(linear))
        if not (size > 0 and np.allclose(linear @ linear.T, size**2 * np.eye(3), atol=1e-4 * size**2)):
            raise BadInput(
                "Gaussians can be rotated, translated and scaled evenly, but not mirrored or stretched along one axis."
            )
        turn = linear / size
        return replace(
            self,
            means=(self.means @ linear.T + shift).astype(self.means.dtype, copy=False),
            quats=quat_mul(quat_from_matrix(turn), self.quats).astype(self.quats.dtype, copy=False),
            scales=(self.scales * size).astype(self.scales.dtype, copy=False),
            sh=rotated_harmonics(self.sh, turn),
        )

    def with_degree(self, degree: int) -> Gaussians:
        """The same Gaussians with colour bands cut off or padded with zeros; some readers know only degree 0 or 3."""
        sh = np.zeros((len(self), (degree + 1) ** 2, 3), self.sh.dtype)
        kept = min(sh.shape[1], self.sh.shape[1])
        sh[:, :kept] = self.sh[:, :kept]
        return replace(self, sh=sh)


def gaussians_from_colours(
    means: Array, scales: Array, colours: Array, *, quats: Array | None = None, opacities: Array | float = 1.0
) -> Gaussians:
    """Gaussians of one body whose colours [n, 3] (0 to 1) are the same from all sides."""
    n = len(means)
    if quats is None:
        quats = np.tile(np.array([1.0, 0.0, 0.0, 0.0]), (n, 1))
    sh = ((np.asarray(colours, float) - 0.5) / C0)[:, None, :]
    spread = np.broadcast_to(np.asarray(scales, float), (n, 3)).copy()
    alpha = np.broadcast_to(np.asarray(opacities, float), (n,)).copy()
    return Gaussians(np.asarray(means, float), np.asarray(quats, float), spread, alpha, sh, np.zeros(n, np.int32))


def concatenate(parts: Sequence[Gaussians], names: tuple[str, ...] | None = None) -> Gaussians:
    """Several sets as one; bodies of the same name become one body, colours take the highest degree among them."""
    if not parts:
        raise BadInput("Putting Gaussians together needs at least one set, and none was given.")
    if names is None:
        names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    unknown = [name for part in parts for name in part.names if name not in names]
    if unknown:
        raise UnknownName("body", unknown[0], names)
    degree = max(part.degree for part in parts)
    parts = [part.with_degree(degree) for part in parts]
    rows = [np.array([names.index(name) for name in part.names], np.int32)[part.body] for part in parts]
    stacked = {
        f: np.concatenate([getattr(p, f) for p in parts]) for f in ("means", "quats", "scales", "opacities", "sh")
    }
    return Gaussians(**stacked, body=np.concatenate(rows), names=names)


def _check_values(g: Gaussians) -> None:
    if len(g) == 0:
        return

    def refuse(wrong: Array, words: str) -> None:
        if wrong.any():
            raise BadInput(words.format(int(np.argmax(wrong))))

    for field in ("means", "quats", "scales", "opacities", "sh"):
        rows: Array = np.isfinite(np.asarray(getattr(g, field))).reshape(len(g), -1)
        refuse(np.any(~rows, axis=1), f"{field!r} of Gaussian {{}} is not finite; drop or mend that Gaussian.")
    refuse(
        np.any(np.asarray(g.scales) < 0, axis=1, keepdims=True),
        "Gaussian {} has a negative scale; 0 m or above was expected.",
    )
    lengths = np.einsum("ni,ni->n", np.asarray(g.quats, float), np.asarray(g.quats, float))
    refuse(lengths < 1e-24, "The quaternion of Gaussian {} is zero; a rotation w, x, y, z was expected.")
    refuse(np.abs(g.opacities - 0.5) > 0.5, "The opacity of Gaussian {} is below 0 or above 1.")
    named = len(g.names)
    refuse(~np.isin(g.body, np.arange(named)), f"Gaussian {{}} is on a body without a name; {named} bodies are named.")
