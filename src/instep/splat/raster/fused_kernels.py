"""Launches of the kernels in `fused_prepare.cu`, `fused_lists.cu`, `fused_blend.cu` and `fused_gradients.cu`."""

from __future__ import annotations

import ctypes
from itertools import accumulate
from typing import Any

import numpy as np

from instep.core.errors import Unsupported
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians

from .cuda_driver import CompiledKernels, compiled, shared_memory, torch_library, why_no_kernels
from .simd import MAX_ALPHA
from .tiles import pack

FORWARD = ("fused_prepare.cu", "fused_lists.cu", "fused_blend.cu")
BACKWARD = (*FORWARD, "fused_gradients.cu")
LIST_THREADS, WALK_THREADS, WALK_BLOCKS = 256, 128, 6
_QUEUE_BLOCKS = 264
"""Blocks that list, or render, the regions whose lists had no room."""
_BLOCKS = 1056
"""Blocks that keep a large GPU busy."""
_JOBS = 8
"""Groups of eight tiles in a region."""
_MOMENTS = 10
_PUSH = 9
_WIDE = 65535
"""Gaussians from which on their ranks need four bytes."""
_SCRATCH_BYTES = 512 * 2**20
"""Memory for records and lists; images are rendered in groups that need no more."""
REGION_PX = 32
"""Sides of a region, at most."""
MAX_REGIONS = 126
"""Regions along a side of an image."""
_REGION_GAUSSIANS = 2200
"""Gaussians in a region, were they spread evenly, above which regions are made smaller."""
_REGION_BYTES = ((6_000, 20 * 2**10, 28 * 2**10), (40_000, 16 * 2**10, 20 * 2**10), (2**31, 18 * 2**10, 26 * 2**10))
"""Shared memory for the bit matrix and for the lists of a region, for images of up to so many pixels.

In small ones many Gaussians share a region, in large ones a Gaussian reaches more tiles. A region that needs more waits
in a queue."""
_QUEUE_POOL_BYTES, _QUEUE_LIST_BYTES = 44 * 2**10, 64 * 2**10
"""Shared memory for bit matrix and lists of a region in the queue; one that needs more is rendered in rounds."""
_READ_AHEAD = 64
"""Entries behind the end of a list that may be read, and are not used."""
_PART_ENTRIES = 8 * 8 * 136
"""Entries of the lists that a block makes part by part."""
_ITEMS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24)
"""Gaussians per thread that are sorted."""
_SORT_THREADS = 1024
"""Threads of a multiprocessor that sort at once."""
_MAX_SORTED = 1024 * _ITEMS[-1]
_POINTERS = (
    "means", "gaussians", "harmonics", "body", "poses", "views", "mounts", "mount_body", "records", "boxes", "ids",
    "counts", "keys", "jobs", "entries", "queue", "rest", "order", "colour", "bytes", "alpha", "depth",
    "behind", "limit", "by_colour", "by_alpha", "by_depth", "moments", "by_gaussian", "by_harmonics", "quats", "scales",
    "by_quat", "by_scale", "by_pose", "by_camera",
)  # fmt: skip
_NUMBERS = (
    "n", "bodies", "cameras", "first", "stride", "width", "height", "region_width", "region_height", "across",
    "regions", "pool", "lists", "capacity",
)  # fmt: skip


class Arguments(ctypes.Structure):
    """`struct Arguments` of fused_prepare.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int) for name in _NUMBERS),
    ]

    def point(self, **tensors: Any) -> None:
        """Let arguments point to tensors, or to nothing."""
        for name, tensor in tensors.items():
            setattr(self, name, None if tensor is None else tensor.data_ptr())

    def point_to_lists(self, lists: ListMemory) -> None:
        """Let arguments point to the records and lists of some images."""
        self.capacity = lists.capacity
        for name, address in lists.addresses.items():
            setattr(self, name, address)


@options_dataclass
class RenderChannels:
    """What is rendered of each image."""

    colour: bool = True
    """Red, green, blue as float32."""
    bytes: bool = False
    """Red, green, blue as uint8."""
    alpha: bool = False
    depth: bool = False


@array_dataclass
class RenderedTensors:
    """Images of worlds and cameras, tensors on the device; None where a channel was not asked for."""

    colour: Any = None
    """Float32 [worlds, cameras, height, width, 3]."""
    bytes: Any = None
    """Uint8 [worlds, cameras, height, width, 3]."""
    alpha: Any = None
    """Float32 [worlds, cameras, height, width]."""
    depth: Any = None
    """Float32 [worlds, cameras, height, width] [m], infinite where nothing is."""


@array_dataclass
class CameraSet:
    """Cameras of one image size, as the kernels take them."""

    cameras: tuple[Camera, ...]
    views: Any
    mounts: Any
    mount_body: Any
    behind: Any = None
    """Colours of backdrops [cameras, height, width, 3]."""
    limit: Any = None
    """Depths of backdrops [cameras, height, width]."""
    lens: bool = False
    """Whether a camera has a lens that bends the image."""


@array_dataclass
class PackedTensors:
    """Gaussians on a CUDA device, as the kernels take them."""

    means: Any
    """Centres and bounds of their size [n, 4]."""
    rows: Any
    """Centres, bodies, covariances, strengths and colours [n, 16]."""
    harmonics: Any
    """[n, (degree + 1)^2, 3]; not read for degree 0."""
    body: Any
    """[n], int32."""
    bodies: int
    degree: int
    solid: bool
    """Whether an opacity may be above MAX_ALPHA."""
    single_image: bool = False
    """Whether images are rendered one by one: torch sorts, and regions are small, so that all of the GPU is used."""

    def __len__(self) -> int:
        return len(self.body)


def pack_tensors(gaussians: Gaussians, device: str = "cuda") -> PackedTensors:
    """Gaussians, copied to a CUDA device."""
    torch = torch_library()
    check_kernels()
    packed = pack(gaussians)
    sigma = np.asarray(gaussians.scales, np.float32).max(axis=1, initial=0.0)
    bound = np.where(packed.strengths[:, 1] < 0, -1.0, packed.strengths[:, 1] * sigma)
    body = np.ascontiguousarray(gaussians.body, np.int32)
    numbers = packed.means, body.view(np.float32), packed.covariances, packed.strengths, packed.colours
    return PackedTensors(
        float_tensor(np.column_stack([packed.means, bound]), device),
        float_tensor(np.column_stack([*numbers, np.zeros(len(body))]), device),
        float_tensor(packed.harmonics, device), torch.tensor(body, device=device), len(gaussians.names),
        gaussians.degree, bool(len(gaussians) and float(np.max(gaussians.opacities)) > MAX_ALPHA),
    )  # fmt: skip


def check_kernels() -> None:
    """Refuse a machine on which no kernel can be compiled or run."""
    if not torch_library().cuda.is_available():
        raise Unsupported("There is no CUDA device on this machine; render with device='cpu'.")
    if reason := why_no_kernels():
        raise Unsupported(reason)


def float_tensor(values: Array, device: str) -> Any:
    """Numbers as float32 on a device."""
    return torch_library().tensor(np.ascontiguousarray(values, np.float32), device=device)


@array_dataclass
class ListMemory:
    """Memory for the records and lists of some images: one tensor, since each allocation delays the first kernel."""

    memory: Any
    addresses: dict[str, int]
    """Where each of the arrays begins, by the name of the argument."""
    capacity: int
    """Entries of lists that there is room for."""


class SceneTensors:
    """Gaussians on a CUDA device, with the kernels compiled for them."""

    def __init__(self, packed: PackedTensors, device: str = "cuda"):
        self.packed, self.device = packed, device
        self._kernels: dict[tuple[object, ...], CompiledKernels] = {}
        self._prepared: tuple[CameraSet, Arguments] | None = None

    def tensor(self, values: Array) -> Any:
        """Numbers as float32 on the device."""
        return float_tensor(values, self.device)

    def sorting(self) -> tuple[int, int]:
        """Threads that sort the Gaussians of an image, and how many each takes; 0 where torch sorts them."""
        n = len(self.packed)
        threads = next((count for count in (256, 512) if n <= 20 * count), 1024)
        if n > _MAX_SORTED or self.packed.single_image:
            return 256, 0
        return threads, next(k for k in _ITEMS if k * threads >= n)

    def kernels(
        self, cameras: CameraSet, channels: RenderChannels, sources: tuple[str, ...] = FORWARD
    ) -> CompiledKernels:
        """The kernels for these Gaussians, cameras and channels."""
        key = sources, cameras.lens, cameras.limit is not None, channels.depth
        if key not in self._kernels:
            self._kernels[key] = self._compiled(cameras, channels, sources)
        return self._kernels[key]

    def _compiled(self, cameras: CameraSet, channels: RenderChannels, sources: tuple[str, ...]) -> CompiledKernels:
        threads, items = self.sorting()
        return compiled(sources, {
            "RANK": "unsigned short" if len(self.packed) < _WIDE else "unsigned int",
            "DEGREE": self.packed.degree, "LENS": int(cameras.lens), "SOLID": int(self.packed.solid),
            "DEPTH": int(channels.depth), "OCCLUDE": int(cameras.limit is not None),
            "SORT_THREADS": threads, "SORT_BLOCKS": _SORT_THREADS // threads, "ITEMS": max(1, items),
            "LIST_THREADS": LIST_THREADS, "WALK_THREADS": WALK_THREADS, "WALK_BLOCKS": WALK_BLOCKS,
        })  # fmt: skip

    def arguments(self, cameras: CameraSet, poses: Any) -> Arguments:
        """The arguments of the kernels, without images and lists."""
        if self._prepared is None or self._prepared[0] is not cameras:
            self._prepared = cameras, self._arguments(cameras)
        out = Arguments.from_buffer_copy(self._prepared[1])
        out.point(poses=poses)
        return out

    def _arguments(self, cameras: CameraSet) -> Arguments:
        first, n, packed = cameras.cameras[0], len(self.packed), self.packed
        stride = (n // 128 + 1) * 128
        size = _small_region if packed.single_image else _region_size
        width, height = size(n, first.width, first.height)
        pool, lists = next(sizes for most, *sizes in _REGION_BYTES if first.width * first.height <= most)
        out = Arguments(
            n=n, bodies=packed.bodies, cameras=len(cameras.cameras), stride=stride, width=first.width,
            height=first.height, region_width=width, region_height=height, across=-(-first.width // width),
            pool=pool, lists=max(lists, stride // 8) * _rank_bytes(n) // 2,
        )  # fmt: skip
        out.regions = out.across * -(-first.height // height)
        out.point(
            means=packed.means, gaussians=packed.rows, harmonics=packed.harmonics, body=packed.body,
            views=cameras.views, mounts=cameras.mounts, mount_body=cameras.mount_body, behind=cameras.behind,
            limit=cameras.limit,
        )  # fmt: skip
        return out


def render_images(scene: SceneTensors, cameras: CameraSet, poses: Any, channels: RenderChannels) -> RenderedTensors:
    """Render every camera in every world, in groups of images whose records and lists fit into the scratch memory."""
    torch, first = torch_library(), cameras.cameras[0]
    shape = (len(poses), len(cameras.cameras), first.height, first.width)

    def empty(wanted: bool, dtype: Any, *more: int) -> Any:
        return torch.empty((*shape, *more), dtype=dtype, device=scene.device) if wanted else None

    out = RenderedTensors(
        empty(channels.colour, torch.float32, 3), empty(channels.bytes, torch.uint8, 3),
        empty(channels.alpha, torch.float32), empty(channels.depth, torch.float32),
    )  # fmt: skip
    kernels, arguments = scene.kernels(cameras, channels), scene.arguments(cameras, poses)
    arguments.point(colour=out.colour, bytes=out.bytes, alpha=out.alpha, depth=out.depth)
    images = shape[0] * shape[1]
    group = _group(arguments, images, 0)
    lists = list_memory(scene, arguments, group, ids=False)
    arguments.point_to_lists(lists)
    for start in range(0, images, group):
        arguments.first = start
        count = min(group, images - start)
        make_lists(kernels, scene, arguments, count)
        walk_lists(kernels, "blend", arguments, count)
    return out


def differentiate_images(
    scene: SceneTensors, cameras: CameraSet, poses: Any, images: RenderedTensors, gradients: dict[str, Any]
) -> None:
    """Add up gradients from those by the pixels; `gradients` hold tensors named as the arguments of the kernels.

    They are by_colour, and where the loss has them by_alpha and by_depth; by_pose and by_camera receive what is found,
    and where they are wanted by_gaussian, by_harmonics, by_quat and by_scale, with quats and scales. What is added up
    must be 0 before.
    """
    channels = RenderChannels(alpha=True, depth=images.depth is not None)
    kernels, arguments = scene.kernels(cameras, channels, BACKWARD), scene.arguments(cameras, poses)
    arguments.point(colour=images.colour, alpha=images.alpha, depth=images.depth, **gradients)
    total = len(poses) * len(cameras.cameras)
    group = _group(arguments, total, 4 * (_MOMENTS + 1) * arguments.stride)
    lists = list_memory(scene, arguments, group, ids=True)
    moments = moment_tensor(scene, arguments, group)
    arguments.point(moments=moments)
    arguments.point_to_lists(lists)
    for start in range(0, total, group):
        arguments.first = start
        count = min(group, total - start)
        make_lists(kernels, scene, arguments, count)
        differentiate_lists(kernels, arguments, moments, count)
    if "by_gaussian" in gradients:
        kernels.launch("unfold_covariances", (-(-arguments.n // 128), 1), 128, 0, arguments)


def differentiate_lists(kernels: CompiledKernels, arguments: Arguments, moments: Any, count: int) -> None:
    """Add up gradients of some images whose lists are made and which have been blended."""
    moments.zero_()
    walk_lists(kernels, "gradient", arguments, count)
    memory = _placing_memory(arguments) + 4 * 8 * _PUSH * arguments.bodies
    kernels.launch("pull_gradients", (count, _shares(arguments.n, count)), 256, memory, arguments)


def _group(arguments: Arguments, images: int, more_bytes: int) -> int:
    """How many images are rendered at once: groups of about equal size."""
    rank = _rank_bytes(arguments.n)
    each = 36 * arguments.stride + rank * _list_entries(arguments) + 16 * _JOBS * arguments.regions + more_bytes
    most = max(1, min(65535, _SCRATCH_BYTES // each))
    return -(-images // -(-images // most))


def list_memory(scene: SceneTensors, arguments: Arguments, images: int, *, ids: bool) -> ListMemory:
    """Memory for the records and lists of some images."""
    records, regions = images * arguments.stride, images * arguments.regions
    capacity = images * _list_entries(arguments)
    sizes = {
        "records": 32 * records, "boxes": 4 * records, "counts": 4 * images, "jobs": 16 * _JOBS * regions,
        "entries": _rank_bytes(arguments.n) * (capacity + _READ_AHEAD), "queue": 4 * (2 + regions),
        "rest": 4 * (1 + regions),
    }  # fmt: skip
    if ids:
        sizes["ids"] = 4 * records
    ends = list(accumulate(-(-size // 256) * 256 for size in sizes.values()))
    memory = torch_library().empty(ends[-1], dtype=torch_library().uint8, device=scene.device)
    first = memory.data_ptr()
    addresses = {name: first + begin for name, begin in zip(sizes, [0, *ends], strict=False)}
    return ListMemory(memory, addresses, capacity)


def moment_tensor(scene: SceneTensors, arguments: Arguments, images: int) -> Any:
    """Memory for the moments of the records of some images."""
    torch = torch_library()
    return torch.empty((images, arguments.stride, _MOMENTS), dtype=torch.float32, device=scene.device)


def make_lists(kernels: CompiledKernels, scene: SceneTensors, arguments: Arguments, count: int) -> None:
    """Project, cull and sort the Gaussians of some images into records, and list those of every tile."""
    placing = _placing_memory(arguments)
    threads, items = scene.sorting()
    if items:
        memory = placing + 4 * (256 + 8) + 32 * threads + 6 * threads * items
        kernels.launch("prepare", (count, 1), threads, memory, arguments)
    else:
        torch = torch_library()
        keys = torch.empty((count, arguments.n), dtype=torch.int32, device=scene.device)
        arguments.point(keys=keys)
        shares = _shares(arguments.n, count)
        kernels.launch("depth_keys", (count, shares), threads, placing, arguments)
        arguments.point(order=(order := torch.sort(keys, dim=1, stable=True).indices))
        kernels.launch("write_records", (count, shares), threads, placing, arguments)
        del order  # its memory may be used again by what comes later in the stream
    kernels.launch("list_tiles", (arguments.regions, count), LIST_THREADS, _list_memory(arguments), arguments)
    queue = _queue_arguments(arguments, _QUEUE_POOL_BYTES, _QUEUE_LIST_BYTES * _rank_bytes(arguments.n) // 2)
    blocks = min(_QUEUE_BLOCKS, arguments.regions * count)
    kernels.launch("list_queue", (blocks, 1), LIST_THREADS, _list_memory(queue), queue)


def walk_lists(kernels: CompiledKernels, what: str, arguments: Arguments, count: int) -> None:
    """Blend or differentiate some images whose lists are made."""
    kernels.launch(f"{what}_lists", (arguments.regions, count), WALK_THREADS, 0, arguments)
    words, rank = (arguments.n + 31) // 32 | 1, _rank_bytes(arguments.n)
    queue = _queue_arguments(arguments, max(_QUEUE_POOL_BYTES, 32 * words), _PART_ENTRIES * rank)
    if queue.pool < 32 * words:
        raise _too_many(arguments.n)
    blocks = min(_QUEUE_BLOCKS, arguments.regions * count)
    kernels.launch(f"{what}_queue", (blocks, 1), LIST_THREADS, _list_memory(queue), queue)


def _shares(n: int, images: int) -> int:
    """Blocks of 256 threads that share the Gaussians of an image: more than one where the images alone are few."""
    return max(1, min(-(-n // 256), _BLOCKS // images))


def _queue_arguments(arguments: Arguments, pool: int, lists: int) -> Arguments:
    """The arguments for blocks with more shared memory, as much of it as the GPU has."""
    out, room = Arguments.from_buffer_copy(arguments), shared_memory() - 512
    out.lists = max(min(lists, room * 3 // 5 // 16 * 16), arguments.stride // 8)
    out.pool = min(pool, room - out.lists)
    return out


def _list_entries(arguments: Arguments) -> int:
    """Entries of the lists of an image that there is room for; regions for which there is none wait in a queue."""
    pixels = arguments.width * arguments.height
    return int(arguments.n * min(16.0, 2.0 + pixels**0.5 / 26.0)) // 16 * 16 + 256 * arguments.regions


def _placing_memory(arguments: Arguments) -> int:
    """Shared memory of frames and eyes of bodies, and of a camera's numbers [bytes]."""
    return 4 * (27 * arguments.bodies + 32)


def _list_memory(arguments: Arguments) -> int:
    """Shared memory of a block that makes lists [bytes]."""
    needed = 512 + arguments.lists + arguments.pool
    if needed > shared_memory():
        raise _too_many(arguments.n)
    return needed


def _too_many(n: int) -> Unsupported:
    return Unsupported(f"{n} Gaussians are too many for the shared memory of this GPU; render with device='cpu'.")


def _region_size(n: int, width: int, height: int) -> tuple[int, int]:
    """Width, a multiple of 16, and height, of 8, of an image's regions: low where many Gaussians share few pixels."""

    def side(size: int, parts: int, unit: int = 8) -> int:
        return -(-size // parts // unit) * unit

    across, down = -(-width // REGION_PX), -(-height // REGION_PX)
    while side(height, down) > 8 and (
        n * (side(width, across, 16) + 6) * (side(height, down) + 6) > _REGION_GAUSSIANS * width * height
    ):
        down += 1
    return side(width, across, 16), side(height, down)


def _small_region(n: int, width: int, height: int) -> tuple[int, int]:
    """Width and height of the regions of a single image: as many of them as there may be."""
    parts = min(-(-height // 8), MAX_REGIONS)
    return REGION_PX, -(-height // parts // 8) * 8


def _rank_bytes(n: int) -> int:
    return 2 if n < _WIDE else 4
