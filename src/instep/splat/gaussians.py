"""3D Gaussians on bodies: centres, orientations, scales, opacities and spherical-harmonic colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, normalized, quat_from_matrix, quat_mul, transform
from instep.core.records import array_dataclass
from instep.core.world import Array

from . import spherical_harmonics as harmonics

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
            given = np.shape(getattr(self, field))
            if given != shape:
                raise BadInput(f"{field!r} of {n} Gaussians must have the shape {shape}, not {given}.")
        if self.sh.ndim != 3 or self.sh.shape[0] != n or self.sh.shape[2] != 3:
            raise BadInput(f"'sh' of {n} Gaussians must have the shape ({n}, 1|4|9|16, 3), not {self.sh.shape}.")
        harmonics.degree_of(self.sh.shape[1])
        _check_values(self)

    def __len__(self) -> int:
        return len(self.means)

    @property
    def degree(self) -> int:
        """Degree of the spherical harmonics: 0 for a colour that is the same from all sides."""
        return harmonics.degree_of(self.sh.shape[1])

    @property
    def colours(self) -> Array:
        """The colour without its dependence on direction [n, 3]."""
        return 0.5 + harmonics.C0 * self.sh[:, 0]

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
        """The same Gaussians in another frame, with rotated harmonics.

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
            sh=harmonics.rotated(self.sh, turn),
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
    sh = ((np.asarray(colours, float) - 0.5) / harmonics.C0)[:, None, :]
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


def _check_values(gaussians: Gaussians) -> None:
    for field in ("means", "quats", "scales", "opacities", "sh"):
        values = getattr(gaussians, field)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
            raise BadInput(f"{field!r} of Gaussian {row} is not finite; drop or mend that Gaussian.")
    if len(gaussians) == 0:
        return
    if gaussians.scales.min() < 0:
        row = int(np.argmin(gaussians.scales.min(axis=1)))
        raise BadInput(f"Gaussian {row} has a negative scale; standard deviations [m] of 0 or above were expected.")
    lengths = np.einsum("ni,ni->n", np.asarray(gaussians.quats, float), np.asarray(gaussians.quats, float))
    if lengths.min() < 1e-24:
        raise BadInput(
            f"The quaternion of Gaussian {int(np.argmin(lengths))} is zero; a rotation w, x, y, z was expected."
        )
    if gaussians.opacities.min() < 0 or gaussians.opacities.max() > 1:
        row = int(np.argmax(np.abs(gaussians.opacities - 0.5)))
        raise BadInput(f"The opacity of Gaussian {row} is {gaussians.opacities[row]:g}; 0 to 1 was expected.")
    if gaussians.body.min() < 0 or gaussians.body.max() >= len(gaussians.names):
        raise BadInput(
            f"Gaussians are carried by bodies {int(gaussians.body.min())} to {int(gaussians.body.max())}, "
            f"but {len(gaussians.names)} bodies are named; indices from 0 were expected."
        )
