"""The verb reconstruct pose: pose images by a board, or by structure from motion."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from instep.app.arguments import Expert, Options, Positional
from instep.core.errors import BadInput
from instep.core.world import options_dataclass

if TYPE_CHECKING:
    from instep.reconstruct.capture.photo_poses import BoardOptions, PhotoPoses
    from instep.splat.fitting import Progress


@options_dataclass
class PoseArgs:
    """Options of `instep reconstruct pose`."""

    board: str | None = None
    """squares of a ChArUco board, or tags of a grid, across x down, such as 5x7; structure from motion if not given."""
    photos: bool = False
    """structure from motion with a board in some images, which gives scale and table."""
    length: Expert[tuple[str, ...]] = ()
    """known lengths, METRES=IMAGE:X,Y/IMAGE:X,Y, between points on the table; IMAGE:X,Y+IMAGE:X,Y for one off it."""
    masks: Expert[Path | None] = None
    """folder with NAME.png of each photograph, white where features are allowed."""
    turntable: bool = False
    """the camera stood still before a turntable: features that stand still are left out."""
    kind: Expert[Literal["charuco", "tags"]] = "charuco"
    """a ChArUco board, or a grid of tags (1x1 for a single one)."""
    square: float = 0.04
    """side of a square; of a grid, distance from tag to tag [m]."""
    marker: float = 0.03
    """side of a marker [m]."""
    dictionary: str = "DICT_4X4_50"
    """OpenCV's name of the markers, such as DICT_6X6_250 or DICT_APRILTAG_36h11."""
    lens: Expert[tuple[float, ...]] = ()
    """FX FY CX CY [pixels] and, if known, K1 K2 P1 P2 K3; from the images if not given."""
    thickness: Expert[float] = 0.0
    """thickness of the board, which lies on the table [m]."""
    frames: Expert[int] = 40
    """most frames of a video."""
    seed: Expert[int] = 0
    """seed of everything random."""


def pose(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    args: Options[PoseArgs] = PoseArgs(),
) -> int:
    """Pose images by a board on the table, or by structure from motion, for `instep reconstruct`.

    Writes the images with transforms.json (lens and poses) and ground_plane.json. The world's frame lies in the board,
    or on the table. Without a board or a length the scale is unknown, and `instep reconstruct` refuses the poses: pose
    the folder again with --length or --board.

    Args:
        images: folder of images of one camera, a video, or a folder of poses of unknown scale.
        out: new folder to write.

    """
    board = _board(args)
    if board is None or args.photos:
        return _by_photos(images, out, args, board)
    if args.length or args.masks is not None or args.turntable:
        raise BadInput("--length, --masks and --turntable are for structure from motion (--photos).")
    return _by_board(images, out, args, board)


def _board(args: PoseArgs) -> BoardOptions | None:
    from instep.reconstruct.capture.photo_poses import BoardOptions

    if args.board is None:
        usual = PoseArgs()
        given = [
            name for name in ("kind", "square", "marker", "dictionary", "thickness")
            if getattr(args, name) != getattr(usual, name)
        ]  # fmt: skip
        if given:
            raise BadInput(f"--{given[0]} needs a board; add --board COLUMNSxROWS, such as 5x7.")
        return None
    columns, _, rows = args.board.partition("x")
    if not (columns.isdecimal() and rows.isdecimal()):
        raise BadInput(f"--board is given as COLUMNSxROWS, such as 5x7, not {args.board!r}.")
    return BoardOptions(
        kind=args.kind, columns=int(columns), rows=int(rows), square=args.square, marker=args.marker,
        dictionary=args.dictionary, lens=args.lens, thickness=args.thickness, frames=args.frames,
    )  # fmt: skip


def _by_board(images: Path, out: Path, args: PoseArgs, board: BoardOptions) -> int:
    from instep.reconstruct.capture.photo_poses import PosedImages, board_poses, check_new, write_posed

    check_new(out)
    found = board_poses(images, board)
    write_posed(out, PosedImages(found.cameras, found.images, found.errors, (0.0, 0.0, 1.0, args.thickness)))
    console = Console(stderr=True, highlight=False)
    for words in found.left_out:
        console.print(f"left out: {words}", markup=False, soft_wrap=True)
    lens = "calibrated" if found.calibrated else "given"
    first, median = found.cameras[0], sorted(found.errors)[len(found.errors) // 2]
    console.print(
        f"{len(found.cameras)} images posed; corners fit to {median:.2f} pixels (median), {max(found.errors):.2f} "
        f"(worst); focal length {first.focal[0]:.1f} x {first.focal[1]:.1f} pixels ({lens})."
    )
    if len(found.left_out) > len(found.cameras):
        console.print("Most images do not show the board; --photos poses them too.")
    print(out)
    return 0


def _by_photos(images: Path, out: Path, args: PoseArgs, board: BoardOptions | None) -> int:
    from instep.reconstruct.capture.metric_frame import parse_lengths
    from instep.reconstruct.capture.photo_poses import PhotoOptions, pose_photos

    if board is not None and args.length:
        raise BadInput("The scale comes from a board or from lengths; give --board or --length, not both.")
    options = PhotoOptions(
        board=board, lengths=parse_lengths(args.length), lens=args.lens, frames=args.frames, masks=args.masks,
        turned=args.turntable, seed=args.seed,
    )  # fmt: skip
    with _progress() as report:
        found = pose_photos(images, out, options, report)
    _show(found, out)
    print(out)
    return 0


def _show(found: PhotoPoses, out: Path) -> None:
    console = Console(stderr=True, highlight=False)

    def say(words: str) -> None:
        console.print(words, markup=False, soft_wrap=True)

    for words in found.left_out:
        say(f"left out: {words}")
    first, errors, cover = found.cameras[0], sorted(found.errors), found.coverage
    say(
        f"{len(found.cameras)} of {len(found.cameras) + len(found.left_out)} photographs posed; features fit to "
        f"{errors[len(errors) // 2]:.2f} pixels (median), {errors[-1]:.2f} (worst); focal length {first.focal[0]:.1f} "
        f"pixels. Cameras {cover['low_deg']:.0f} to {cover['high_deg']:.0f} degrees above the table; the largest gap "
        f"around it is {cover['azimuth_gap_deg']:.0f} degrees."
    )
    if found.scale is None:
        say(
            "The scale is unknown, so instep reconstruct refuses these poses. Mark a known length on the table, such "
            f"as the long side of a sheet: instep reconstruct pose {out} NEW --length 0.297=IMAGE:X,Y/IMAGE:X,Y"
        )
    else:
        interval = f" (-{100 * (1 - found.scale.low):.2f} to +{100 * (found.scale.high - 1):.2f} %)"
        say(f"Scale by {found.scale_from}{interval if found.scale.has_interval else ', of unknown uncertainty'}.")
    for words in found.notes:
        say(words)


@contextmanager
def _progress() -> Generator[Progress]:
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=1.0)

        def report(share: float, words: str) -> None:
            progress.update(bar, description=words, completed=share)

        yield report
