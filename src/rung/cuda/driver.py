"""Loads cubins into torch's CUDA context and launches their kernels.

The driver is called through cuda.bindings: a launch prepared once costs one call, captured graphs keep its
cooperative, cluster and programmatic attributes, and the grid is counted in blocks.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpuless.compile import nvrtc
from gpuless.compile.cubin_cache import Cubin
from gpuless.compile.source import kernel_parameters
from gpuless.facts import limits
from gpuless.launch import Argument, Build, LaunchConfig, Resources
from rung.cuda.launcher import SIZES, Launcher, check, current_stream
from rung.errors import RungError

_loaded: dict[tuple[str, int], CudaModule] = {}


def load_module(build: Build) -> CudaModule:
    """The module of `build` on the current device; each is loaded once per process."""
    if not torch.cuda.is_available():
        raise RungError(f"{build.origin} cannot run on the GPU: no CUDA device was found; try --device emulator.")
    device = _device(torch.cuda.current_device())
    cubin = nvrtc.compile_cubin(build, device.limits.arch)
    at = (cubin.key, device.index)
    if at not in _loaded:
        _loaded[at] = CudaModule(build, cubin, device)
    return _loaded[at]


class Device:
    """One GPU: its primary context, which is torch's, and the limits that its driver reports."""

    def __init__(self, index: int) -> None:
        from cuda.bindings import driver

        self.index = index
        check(driver.cuInit(0), "CUDA cannot start")
        self.handle = check(driver.cuDeviceGet(index), f"GPU {index} was not found")
        self._context = check(driver.cuDevicePrimaryCtxRetain(self.handle), f"GPU {index} cannot create a context")
        names = driver.CUdevice_attribute

        def attribute(name: str) -> int:
            identity = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(check(driver.cuDeviceGetAttribute(identity, self.handle), f"GPU {index} cannot be queried"))

        self.sms = attribute("MULTIPROCESSOR_COUNT")
        self.limits = limits.Limits(
            arch=f"sm_{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}",
            threads_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            blocks_sm=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            shared_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            shared_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_reserved=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
            registers_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            registers_block=attribute("MAX_REGISTERS_PER_BLOCK"),
            threads_block=attribute("MAX_THREADS_PER_BLOCK"),
        )

    def enter(self) -> None:
        """Makes the context current in this thread, in which torch may not have used the GPU yet."""
        from cuda.bindings import driver

        current = check(driver.cuCtxGetCurrent(), "CUDA cannot be queried")
        if int(current) != int(self._context):
            check(driver.cuCtxSetCurrent(self._context), f"GPU {self.index} cannot be used")


@functools.cache
def _device(index: int) -> Device:
    return Device(index)


class CudaModule:
    """Loaded kernels of one build on one device."""

    def __init__(self, build: Build, cubin: Cubin, device: Device) -> None:
        from cuda.bindings import driver

        self.build = build
        self.cubin = cubin
        self.origin = build.origin
        self.device = device
        self._driver = driver
        self._functions: dict[str, Any] = {}
        self._prepared: set[tuple[str, LaunchConfig]] = set()
        self._dynamic_shared: dict[str, int] = {}
        self._constants: dict[str, tuple[Any, int]] = {}
        self._launchers: dict[tuple[str, LaunchConfig, tuple[str, ...]], Launcher] = {}
        self._lock = threading.Lock()
        device.enter()
        # The image is kept: a lazily loading driver may read it again at a function's first use.
        self._image = cubin.path.read_bytes()
        self._module = check(
            driver.cuModuleLoadData(self._image), f"{build.origin} cannot be loaded on {device.limits.arch}"
        )

    @property
    def resources(self) -> Mapping[str, Resources]:
        return self.cubin.resources

    def prepare(self, kernel: str, config: LaunchConfig) -> None:
        """Checks the launch against this GPU's limits, opts in to what it needs, and loads the function."""
        if (kernel, config) in self._prepared:
            return
        self.device.enter()
        function = self._function(kernel)
        threads = self._attribute(kernel, "MAX_THREADS_PER_BLOCK")
        registers, static = self._attribute(kernel, "NUM_REGS"), self._attribute(kernel, "SHARED_SIZE_BYTES")
        refused = limits.refusal(self.device.limits, config, registers, static, threads)
        if refused:
            raise RungError(f"kernel '{kernel}' of {self.origin} cannot be launched: {refused}.")
        opted_in = self._dynamic_shared.get(kernel, limits.DEFAULT_SHARED - static)
        if config.shared > opted_in:
            self._set_attribute(kernel, "MAX_DYNAMIC_SHARED_SIZE_BYTES", config.shared)
            self._dynamic_shared[kernel] = config.shared
        if not limits.portable_cluster(config):
            self._set_attribute(kernel, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
        self._require_residency(kernel, config, function)
        self._prepared.add((kernel, config))

    def launch(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> None:
        """One launch on torch's current stream."""
        key = (kernel, config, tuple([kind for kind, _ in args]))
        with self._lock:  # launches of one kind share the launcher's buffer
            launcher = self._launchers.get(key)
            if launcher is None:
                launcher = self._launchers[key] = self._launcher(*key)
            launcher.pack(args)
            launcher()

    def bind(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> Callable[[], None]:
        """The same launch, packed once, for repeated calls; it keeps the tensors alive."""
        launcher = self._launcher(kernel, config, tuple([kind for kind, _ in args]))
        launcher.pack(args)
        launcher.references = tuple(value for _, value in args)
        return launcher

    def set_constant(self, symbol: str, tensor: torch.Tensor) -> None:
        """Copies a tensor of this device into a `__constant__` array, in stream order."""
        address, size = self._constant(symbol)
        count = tensor.numel() * tensor.element_size()
        if count > size:
            raise RungError(
                f"constant '{symbol}' of {self.origin} has {size} bytes, and the {count} of its tensor do not fit."
            )
        if tensor.device.index != self.device.index or not tensor.is_contiguous():
            what = f"on {tensor.device}" if tensor.device.index != self.device.index else "not contiguous"
            raise RungError(
                f"constant '{symbol}' of {self.origin} cannot be filled from a tensor that is {what}: "
                f"it must be contiguous, on cuda:{self.device.index}."
            )
        stream = current_stream(self.device.index)
        copied = self._driver.cuMemcpyDtoDAsync(address, tensor.data_ptr(), count, stream)
        check(copied, f"constant '{symbol}' of {self.origin} cannot be filled")

    # ---- parts ----

    def _launcher(self, kernel: str, config: LaunchConfig, kinds: tuple[str, ...]) -> Launcher:
        self.prepare(kernel, config)
        self._require_signature(kernel, kinds)
        function, made = self._function(kernel), self._launch_config(config)
        return Launcher(self.origin, kernel, function, made, kinds, self.device.index)

    def _function(self, kernel: str) -> Any:
        if kernel not in self._functions:
            symbol = self.cubin.lowered.get(kernel, kernel)
            found = self._driver.cuModuleGetFunction(self._module, symbol.encode())
            function = check(found, f"kernel '{kernel}' is not in {self.origin}")
            check(self._driver.cuFuncLoad(function), f"kernel '{kernel}' of {self.origin} cannot be loaded")
            self._functions[kernel] = function
        return self._functions[kernel]

    def _attribute(self, kernel: str, name: str) -> int:
        identity = getattr(self._driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        value = self._driver.cuFuncGetAttribute(identity, self._function(kernel))
        return int(check(value, f"kernel '{kernel}' of {self.origin} does not report its {name}"))

    def _set_attribute(self, kernel: str, name: str, value: int) -> None:
        identity = getattr(self._driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        done = self._driver.cuFuncSetAttribute(self._function(kernel), identity, value)
        check(done, f"kernel '{kernel}' of {self.origin} refuses {name} = {value}")

    def _launch_config(self, config: LaunchConfig) -> Any:
        driver = self._driver
        made = driver.CUlaunchConfig()
        made.gridDimX, made.gridDimY, made.gridDimZ = config.grid
        made.blockDimX, made.blockDimY, made.blockDimZ = config.block
        made.sharedMemBytes = config.shared
        attributes = []
        if config.cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if config.cluster:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dimension = attribute.value.clusterDim
            dimension.x, dimension.y, dimension.z = config.cluster
            attributes.append(attribute)
        if config.pdl and self.device.limits.clusters:  # both came with sm_90
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if attributes:
            made.attrs = attributes
        made.numAttrs = len(attributes)
        return made

    def _require_residency(self, kernel: str, config: LaunchConfig, function: Any) -> None:
        """Blocks that wait for each other must be resident together: a cluster's, a cooperative grid's."""
        what = f"kernel '{kernel}' of {self.origin}"
        resident = 0
        if config.cluster:
            active = self._driver.cuOccupancyMaxActiveClusters(function, self._launch_config(config))
            clusters = int(check(active, f"{what} cannot form clusters"))
            if clusters == 0:
                raise RungError(
                    f"{what} cannot be launched: no cluster of {math.prod(config.cluster)} such blocks "
                    "fits on this GPU; make the cluster or the block smaller."
                )
            resident = clusters * math.prod(config.cluster)
        elif config.cooperative:
            active = self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, config.threads, config.shared)
            blocks = int(check(active, f"{what} does not report its occupancy"))
            resident = blocks * self.device.sms
        if config.cooperative and config.blocks > resident:
            raise RungError(
                f"{what} cannot be launched: a cooperative grid must be resident as a whole, "
                f"and only {resident} of its {config.blocks} blocks fit on this GPU."
            )

    def _require_signature(self, kernel: str, kinds: tuple[str, ...]) -> None:
        """Checks the argument kinds against the source's parameters and their compiled sizes."""
        parameters = kernel_parameters(self.build.source, kernel, self.origin)
        if len(parameters) != len(kinds):
            raise RungError(
                f"kernel '{kernel}' of {self.origin} takes {len(parameters)} parameters, but {len(kinds)} are bound."
            )
        for i, kind in enumerate(kinds):
            if kind not in SIZES:
                raise RungError(f"kernel '{kernel}' of {self.origin}: unknown argument kind '{kind}'.")
            status = self._driver.cuFuncGetParamInfo(self._function(kernel), i)
            if not status[0] and SIZES[kind] != int(status[2]):
                size = int(status[2])
                raise RungError(
                    f"parameter {i + 1} of kernel '{kernel}' in {self.origin} has {size} bytes, "
                    f"but a value of kind {kind} has {SIZES[kind]}."
                )

    def _constant(self, symbol: str) -> tuple[Any, int]:
        if symbol not in self._constants:
            self.device.enter()
            error, address, size = self._driver.cuModuleGetGlobal(self._module, symbol.encode())
            if error:
                raise RungError(
                    f"{self.origin} has no constant '{symbol}': "
                    f"it is not declared, or no kernel reads it ({error.name})."
                )
            self._constants[symbol] = (address, int(size))
        return self._constants[symbol]


def occupy_stream(cycles: int) -> None:
    """Occupies the current stream for this many cycles of the GPU's clock, so that work that does not wait for it is
    noticed."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
