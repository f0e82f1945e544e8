"""CUDA kernels without a toolkit: compiled by NVRTC, which comes with torch, kept on disk, and launched by the driver.

Both libraries are called through ctypes; memory and streams are torch's.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from instep.core.errors import MissingExtra, Unsupported

_MAX_DYNAMIC_SHARED = 8
"""The attribute of a function that allows it more shared memory than 48 KiB."""
_STATIC_SHARED = 1
"""The attribute of a function that is the shared memory its source declares."""
_FOLDER = Path(__file__).parent
_Taken = ctypes.c_void_p * 1


class CompiledKernels:
    """The kernels of one source for one device, with some definitions."""

    def __init__(self, cubin: bytes):
        self._driver, self._functions = _driver(), dict[str, ctypes.c_void_p]()
        self._torch = torch_library().cuda
        self._device = self._torch.current_device()
        self._module = ctypes.c_void_p()
        _check(self._driver.cuModuleLoadData(ctypes.byref(self._module), cubin), "loading kernels")

    def launch(self, name: str, grid: tuple[int, int], threads: int, shared: int, arguments: ctypes.Structure) -> None:
        """Start a kernel on torch's current stream; `arguments` is the structure it takes by value."""
        function = self._functions.get(name) or self._function(name)
        # Named, the device need not be found out by torch, which is most of the cost of a launch.
        stream, taken = self._torch.current_stream(self._device).cuda_stream, _Taken(ctypes.addressof(arguments))
        code = self._driver.cuLaunchKernel(function, *grid, 1, threads, 1, 1, shared, stream, taken, None)
        if code:
            _check(code, name)

    def _function(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        _check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()), name)
        static = ctypes.c_int()
        _check(self._driver.cuFuncGetAttribute(ctypes.byref(static), _STATIC_SHARED, function), name)
        room = ctypes.c_int(shared_memory() - static.value)
        _check(self._driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, room), name)
        self._functions[name] = function
        return function


def compiled(sources: Sequence[str], definitions: Mapping[str, object]) -> CompiledKernels:
    """Kernels of source files of this package, from the cache where they were compiled before."""
    return _compiled(tuple(sources), tuple(sorted((key, str(value)) for key, value in definitions.items())), _arch())


@cache
def _compiled(sources: tuple[str, ...], definitions: tuple[tuple[str, str], ...], arch: str) -> CompiledKernels:
    text = "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in sources)
    options = [f"--gpu-architecture={arch}", "--use_fast_math", "--std=c++17"]
    options += [f"-D{key}={value}" for key, value in definitions]
    nvrtc = _nvrtc()
    version = (ctypes.c_int(), ctypes.c_int())
    nvrtc.nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
    mark = "\0".join([text, *options, f"{version[0].value}.{version[1].value}"])
    file = kernel_cache() / f"{hashlib.sha256(mark.encode()).hexdigest()[:32]}.cubin"
    try:
        return CompiledKernels(file.read_bytes())
    except (OSError, Unsupported):
        cubin = _compile(nvrtc, text, options)
    _keep(file, cubin)
    return CompiledKernels(cubin)


def why_no_kernels() -> str:
    """Why kernels cannot be compiled on this machine although it has a CUDA device; empty where they can."""
    if not torch_library().cuda.is_available():
        return ""
    try:
        _driver()
        _nvrtc()
    except Unsupported as error:
        return str(error)
    return ""


def kernel_cache() -> Path:
    """The folder of compiled kernels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "instep" / "kernels"


def shared_memory() -> int:
    """Shared memory that a block may use on the current device [bytes]."""
    return _shared_memory(torch_library().cuda.current_device())


@cache
def _shared_memory(device: int) -> int:
    return int(torch_library().cuda.get_device_properties(device).shared_memory_per_block_optin)


def torch_library() -> Any:
    """The module torch."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "gpu") from None
    return torch


def _arch() -> str:
    torch = torch_library()
    major, minor = torch.cuda.get_device_capability(torch.cuda.current_device())
    return f"sm_{major}{minor}"


def _compile(nvrtc: Any, text: str, options: list[str]) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"instep.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), given) != 0:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            first = next((row for row in log.value.decode().splitlines() if "error" in row), "no message")
            raise Unsupported(
                f"NVRTC does not compile the kernels for this device ({first}); render with device='cpu'."
            )
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _keep(file: Path, cubin: bytes) -> None:
    """Write a compiled file in one step; a folder that cannot be written only costs time at the next start."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            part.write(cubin)
        os.replace(part.name, file)
    except OSError:
        return


@cache
def _driver() -> Any:
    for name in ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        pointer, number = ctypes.c_void_p, ctypes.c_uint
        driver.cuLaunchKernel.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]
        return driver
    raise Unsupported("There is no CUDA driver on this machine; render with device='cpu'.")


@cache
def _nvrtc() -> Any:
    """NVRTC of torch's own packages, else of the system."""
    places: list[str] = []
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        places += [str(path) for path in sorted(Path(folder).glob("*/lib/libnvrtc.so*"))]
        places += [str(path) for path in sorted(Path(folder).glob("*/bin/**/nvrtc64*.dll")) if "alt" not in path.name]
    for name in (*places, "libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Unsupported(
        "The CUDA compiler library NVRTC was not found; install a torch for CUDA, or render with device='cpu'."
    )


def _check(code: int, what: str) -> None:
    if code == 0:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(text))
    reason = (text.value or b"unknown").decode()
    raise Unsupported(f"CUDA failed at {what} with error {code} ({reason}); render with device='cpu'.")
