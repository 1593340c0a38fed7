"""The driver through which Triton specialises and compiles kernels as for a GPU that is not there, and hands each
launch to a function. It does without torch, whose import takes seconds."""

from __future__ import annotations

import inspect
import math
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from gpuless import tensor_map
from gpuless.compile import elf
from gpuless.cubins import Parameter
from gpuless.facts import gpus
from gpuless.facts.limits import THREADS_BLOCK, WARP, Limits
from gpuless.launch import LaunchConfig
from rung.errors import RungError
from rung.lazy import torch

_ELEMENTS = {8: 9, 9: 10, 10: 8}  # CUtensorMapDataType's numbers that instructions count otherwise
_FORMATS = {"fp16": "e", "fp32": "f", "f32": "f", "fp64": "d"}


@dataclass(frozen=True)
class Kernel:
    """A launch that Triton has made ready; `parameters` are in the order of the code's."""

    name: str
    cubin: bytes
    file: str  # of its source
    config: LaunchConfig
    parameters: Sequence[Parameter]


Launch = Callable[[Kernel], None]


@contextmanager
def driving(stand_in: Driver) -> Iterator[None]:
    os.environ.pop("TRITON_INTERPRET", None)
    import triton.testing
    from triton.runtime import driver

    before = driver._active
    driver.set_active(stand_in)
    try:
        with mock.patch.object(triton.testing.Mark, "run"):  # there is nothing to measure, and files do it on import
            yield
    finally:
        driver._active = before


class Constant:
    """A function that returns a constant."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.value


class Driver:
    """What Triton asks of its driver for NVIDIA GPUs."""

    def __init__(self, launch: Launch, of: Limits, row: gpus.Gpu, device: str, trials: Any) -> None:
        self._of, self._device, self._trials = of, device, trials
        self.utils = SimpleNamespace(
            get_device_properties=Constant({
                "max_shared_mem": of.shared_block, "max_num_regs": of.registers_sm, "warpSize": WARP,
                "multiprocessor_count": row.multiprocessors, "sm_clock_rate": row.clock_mhz * 1000,
                "mem_clock_rate": row.memory_clock_mhz * 1000, "mem_bus_width": row.bus_bits,
            }),
            load_binary=_loaded, fill_tma_descriptor=_map, fill_tma_descriptor_tiled=_map,
            set_printf_fifo_size=Constant(),
            cuOccupancyMaxActiveClusters=Constant(row.multiprocessors // 2),
        )  # fmt: skip
        self.launcher_cls = lambda source, metadata: _Launcher(source, metadata, launch)
        self.get_current_stream = Constant(0)
        self.get_device_capability = Constant(divmod(self._capability, 10))
        self.set_current_device = self.clear_cache = Constant()

    @property
    def _capability(self) -> int:
        return int(self._of.arch.removeprefix("sm_"))

    def get_current_device(self) -> int:
        return self._capability  # Triton keeps compiled kernels by device

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, WARP)

    def get_active_torch_device(self) -> torch.device:
        return torch.device(self._device)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1, dtype=torch.int32, device=self._device)

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return self._trials or _Trials()


TRIED_AT_ONCE = 4  # configurations of a tuner that are run in a call of new sizes
TRIED_SECONDS = 1.0  # in such a call, after which no other is run: a call may only take so long
ROUNDS = 2  # calls of new sizes for each configuration; later ones get that with the smallest tiles


class Tuned(NamedTuple):
    """What an autotuned kernel ran with: its last configuration, or that which failed, and how many of all were run."""

    configuration: str
    tried: int
    of: int


def tuned() -> list[Tuned]:
    return [Tuned(_told(one.running or one.tuner.best_config), len(one.tried), len(one.configs)) for one in _tuners]


def _told(config: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in _parameters(config).items())


def _parameters(config: Any) -> dict[str, Any]:
    usual = {name: getattr(config, name) for name in ("num_warps", "num_stages")}
    return {**config.kwargs, **{name: value for name, value in usual.items() if name not in config.kwargs}}


def _sizes(config: Any) -> dict[str, int]:
    return {n: v for n, v in _parameters(config).items() if isinstance(v, int) and n != "num_warps"}


class _Trials:
    """In place of an autotuned kernel's measurements, which would decide nothing here: each call of other sizes runs
    some configurations that have not run yet, else the next in turn, and takes the first of these. Of many
    configurations few are chosen."""

    def __init__(self) -> None:
        self.tuner: Any = None
        self.running: Any = None
        self.configs: list[Any] = []
        self.tried: list[Any] = []
        self._offered: list[Any] = []
        self._refused: dict[Any, bool] = {}  # whether for its size
        self._call: Any = None
        self._rounds, self._ran, self._began = -1, 0, 0.0

    def __call__(self, call: Callable[[], object], quantiles: Any = None, **_: object) -> list[float]:
        known: dict[str, Any] = dict(inspect.getclosurevars(call).nonlocals)
        tuner: Any = known.get("self")
        config = known.get("config")
        if not hasattr(tuner, "configs"):  # of a tuner that is not Triton's
            call()
            return [1.0, 1.0, 1.0]
        if tuner.nargs is not self._call:
            self._call, self._rounds, self._ran = tuner.nargs, self._rounds + 1, 0
            self._began = time.monotonic()
            if not self._rounds:
                _tuners.append(self)
            self.tuner, self.configs = tuner, [*self._offered] or list(tuner.configs)  # a tuner may leave some out
        self._offered += [config] * (config not in self._offered)
        chosen = _chosen([one for one in self.configs if not self._is_refused(one)] or self.configs)
        left = [one for one in chosen if one not in self.tried]
        turn = left[0] if left else chosen[self._rounds % len(chosen) if self._rounds < ROUNDS * len(chosen) else 0]
        more = self._ran < TRIED_AT_ONCE and time.monotonic() < self._began + TRIED_SECONDS
        if config != turn or (self._ran and not (left and more)):
            return [1e2 if config in self.tried else 1e4 if self._is_refused(config) else 1e3] * 3
        self.running = config
        try:
            with _fitting():
                call()
        except RungError:
            raise
        except Exception as problem:  # Triton leaves the configuration out
            self._refused[config] = type(problem).__name__ == "OutOfResources"
            self._ran += bool(self.tried)  # one of these is taken
            raise
        self.running = None
        self.tried += [config] * bool(left)
        self._ran += 1
        return [float(self._ran)] * 3

    def _is_refused(self, config: Any) -> bool:
        """Whether it did not compile, or has no smaller tiles and no fewer stages than one that did not fit."""
        sizes = _sizes(config)
        larger = [_sizes(of) for of, too_large in self._refused.items() if too_large]
        return config in self._refused or any(all(sizes.get(n, 0) >= v for n, v in of.items()) for of in larger)


@contextmanager
def _fitting() -> Iterator[None]:
    """What has more shared memory than the GPU is refused before its registers are allocated, which takes longest."""
    from triton.backends.nvidia import compiler
    from triton.runtime import driver
    from triton.runtime.errors import OutOfResources

    make = compiler.CUDABackend.make_ptx
    most = driver.active.utils.get_device_properties(0)["max_shared_mem"]

    def made(self: Any, source: Any, metadata: Any, *how: Any) -> Any:
        if metadata["shared"] > most:
            raise OutOfResources(metadata["shared"], most, "shared memory")
        return make(self, source, metadata, *how)

    with mock.patch.object(compiler.CUDABackend, "make_ptx", made):
        yield


_tuners: list[_Trials] = []


def _chosen(configs: Sequence[Any]) -> list[Any]:
    """As few as have the least and the largest value of every parameter, the first among them; small tiles first."""
    values = {config: _sizes(config) | {"num_warps": config.num_warps} for config in configs}
    names = {name for given in values.values() for name in given}
    some = {name: [given[name] for given in values.values() if name in given] for name in names}
    left = {(name, extreme(numbers)) for name, numbers in some.items() for extreme in (min, max)}
    chosen: list[Any] = []
    while left or not chosen:
        best = max(configs, key=lambda c: len(left & values[c].items())) if chosen else configs[0]
        chosen.append(best)
        left -= values[best].items()
    return sorted(chosen, key=lambda config: math.prod(values[config].values()))


def _loaded(name: str, cubin: bytes, shared: int, device: int) -> tuple[None, bytes, int, int, int]:
    most = min(elf.most_threads(cubin, name) or THREADS_BLOCK, THREADS_BLOCK)
    found = elf.resources(cubin, name)
    return None, cubin, found.registers, found.stack // 4, most


def _map(
    address: int, swizzle: int, size: int, kind: int, box: Sequence[int], shape: Sequence[int], strides: Sequence[int],
    padding: int,
) -> bytes:  # fmt: skip
    element = _ELEMENTS.get(kind, kind)
    return tensor_map.packed(address, tuple(shape), tuple(strides[:-1]), tuple(box), size, swizzle, padding, element)


class _Launcher:
    """Lays out a kernel's arguments, and hands the launch on."""

    def __init__(self, source: Any, metadata: Any, launch: Launch) -> None:
        self._names, self._signature = tuple(source.signature), tuple(source.signature.values())
        self._metadata, self._launch = metadata, launch
        self._file = source.fn.fn.__code__.co_filename if hasattr(source.fn, "fn") else ""

    def __call__(
        self, x: int, y: int, z: int, stream: int, cubin: bytes, packed: Any, about: Any, enter: Any, leave: Any,
        *args: Any,
    ) -> None:  # fmt: skip
        if not x * y * z:
            return
        of = self._metadata
        if len(args) != len(self._names):  # a compiled kernel's launches are not checked by Triton
            raise RungError(
                f"{Path(self._file).name}: a launch of a compiled kernel gives {len(args)} arguments, and it takes "
                f"{len(self._names)} with its constants: {', '.join(map(str, self._names))}."
            )
        maps = iter(getattr(of, "tensordesc_meta", None) or ())
        parameters: list[Parameter] = []
        for name, kind, value in zip(self._names, self._signature, args, strict=True):
            parameters += _laid_out(str(name), kind, value, maps)
        clusters = getattr(of, "num_ctas", 1)
        for which, allocator in _allocators():
            size = getattr(of, f"{which}_scratch_size", 0) * x * y * z * clusters
            parameters.append(_scratch(f"{which} scratch memory", size, allocator, stream))
        config = LaunchConfig(
            (x * clusters, y, z),
            (WARP * of.num_warps, 1, 1),
            of.shared,
            bool(getattr(of, "launch_cooperative_grid", False)),
            (clusters, 1, 1) if clusters > 1 else None,
            bool(getattr(of, "launch_pdl", False)),
        )
        if enter is not None:
            enter(about)
        self._launch(Kernel(of.name, cubin, self._file, config, parameters))
        if leave is not None:
            leave(about)


def _laid_out(name: str, kind: Any, value: Any, maps: Iterator[Any]) -> Iterator[Parameter]:
    """The parameters of the code that an argument becomes."""
    if isinstance(kind, tuple):
        for number, (inner, part) in enumerate(zip(kind, value, strict=True)):
            yield from _laid_out(f"{name}[{number}]", inner, part, maps)
    elif kind == "constexpr":
        return
    elif kind.startswith("tensordesc"):
        from triton.backends.nvidia.driver import make_tensordesc_arg

        about = next(maps, None)
        parts, ndim = make_tensordesc_arg(value, about), len(value.shape)
        sizes = ["i32"] * ndim + ["i64"] * ndim
        if about is None:  # the kernel computes addresses itself: sizes, strides, and as many flags as this Triton has
            flags = len(parts) - 1 - 2 * len(sizes)
            sizes = ["i64"] * len(sizes) + ["i1"] * flags + sizes
        for number, (inner, part) in enumerate(zip(["*i8", *sizes], parts, strict=True)):
            if isinstance(part, bytes):
                yield Parameter(name, part, value.base)
            else:
                yield from _laid_out(name if not number else f"{name}'s sizes", inner, part, maps)
    elif kind.startswith("*"):
        at = value if isinstance(value, int) else 0 if value is None else value.data_ptr()
        base = getattr(value, "base", value)  # of a wrapped tensor
        yield Parameter(name, struct.pack("<Q", at), base if hasattr(base, "data_ptr") else None)
    elif kind == "nvTmaDesc":
        raise RungError(f"parameter '{name}' is a tensor map made by a driver: use TensorDescriptor of triton.tools.")
    elif kind == "bf16":
        yield Parameter(name, struct.pack("<f", value)[2:])
    elif kind in _FORMATS:
        yield Parameter(name, struct.pack(f"<{_FORMATS[kind]}", value))
    else:  # i1 to i64, u1 to u64
        size = max(8, int(kind[1:])) // 8
        yield Parameter(name, (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little"))


def _allocators() -> tuple[tuple[str, Any], ...]:
    from triton.runtime import _allocation

    return ("global", _allocation._allocator.get), ("profile", lambda: _allocation._profile_allocator)


def _scratch(name: str, size: int, allocator: Callable[[], Any], stream: int) -> Parameter:
    """Memory for a launch, aligned as a GPU's allocators do."""
    if not size:
        return Parameter(name, bytes(8))
    allocator()(size, tensor_map.SIZE, stream)  # without one, a GPU refuses the launch as well
    memory = np.zeros(size + 512, np.uint8)
    memory = memory[-memory.ctypes.data % 512 :]
    return Parameter(name, struct.pack("<Q", memory.ctypes.data), memory)
