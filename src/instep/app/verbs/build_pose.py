"""The verb build pose: pose images by a ChArUco board or AprilTags that they show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from instep.app.arguments import Options, Positional
from instep.core.errors import BadInput
from instep.core.records import options_dataclass


@options_dataclass
class BuildPoseArgs:
    """Options of `instep build pose`."""

    board: str = "5x7"
    """squares of a ChArUco board, or tags of a grid, across x down."""
    kind: Literal["charuco", "tags"] = "charuco"
    """a ChArUco board, or a grid of tags (1x1 for a single one)."""
    square: float = 0.04
    """side of a square; of a grid, distance from tag to tag [m]."""
    marker: float = 0.03
    """side of a marker [m]."""
    dictionary: str = "DICT_4X4_50"
    """OpenCV's name of the markers, such as DICT_6X6_250 or DICT_APRILTAG_36h11."""
    lens: tuple[float, ...] = ()
    """FX FY CX CY [pixels] and, where known, K1 K2 P1 P2 K3; calibrated from the images where not given."""
    thickness: float = 0.0
    """thickness of the board, which lies on the table [m]."""
    frames: int = 40
    """most frames of a video that are taken."""


def pose(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    args: Options[BuildPoseArgs] = BuildPoseArgs(),
) -> int:
    """Pose images by a board on the table, so that `instep build` can read them.

    Writes the images with transforms.json (lens and poses) and ground_plane.json. The world's frame lies in the board.

    Args:
        images: folder of images of one camera, or a video.
        out: new folder to write.

    """
    from instep.build.board_poses import BoardOptions, board_poses, write_posed

    columns, _, rows = args.board.partition("x")
    if not (columns.isdecimal() and rows.isdecimal()):
        raise BadInput(f"--board is given as COLUMNSxROWS, such as 5x7, not {args.board!r}.")
    options = BoardOptions(
        kind=args.kind, columns=int(columns), rows=int(rows), square=args.square, marker=args.marker,
        dictionary=args.dictionary, lens=args.lens, thickness=args.thickness, frames=args.frames,
    )  # fmt: skip
    found = board_poses(images, options)
    write_posed(out, found, args.thickness)
    console = Console(stderr=True, highlight=False)
    for words in found.left_out:
        console.print(f"left out: {words}", markup=False)
    lens = "calibrated" if found.calibrated else "given"
    first, median = found.cameras[0], sorted(found.errors)[len(found.errors) // 2]
    console.print(
        f"{len(found.cameras)} images posed; corners fit to {median:.2f} pixels (median), {max(found.errors):.2f} "
        f"(worst); focal length {first.focal[0]:.1f} x {first.focal[1]:.1f} pixels ({lens})."
    )
    print(out)
    return 0
