"""Runs a piece of CUDA C++ on the emulator: arguments are tensors and numbers, types follow from the kernel."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuless
from gpuless.compile.source import kernel_parameters, kernels_in
from gpuless.launch import Build, LaunchConfig

INCLUDE = str(Path(__file__).parents[2] / "src" / "rung" / "ladders" / "include")
KINDS = {"int": "i32", "unsigned int": "u32", "long long": "i64", "float": "f32", "double": "f64", "bool": "bool"}
ENDLESS = 1.0  # seconds of CPU time without a thread that ends, after which a test's kernel is taken for endless
ON_GPU = bool(os.environ.get("GPULESS_HARDWARE"))  # programs run on a real GPU: whether it agrees with what tests expect
GPU_SECONDS = 60  # of a launch on a real GPU, with the start of its process
needs_compiler = pytest.mark.skipif(not ON_GPU and gpuless.available() is not None, reason=str(gpuless.available()))
of_the_machine = pytest.mark.skipif(ON_GPU, reason="says what the machine does with what a GPU does not define or tell")
Shape = int | tuple[int, ...]


def load(source: str, *, settings: gpuless.Settings | None = None, **build: Any) -> gpuless.EmulatedModule:
    given: dict[str, Any] = {"kernels": kernels_in(source), "defines": (), "include": (INCLUDE,)} | build
    of = Build(source, "test.cu", **given)
    return _OnGpu(of) if ON_GPU else gpuless.load(of, settings=settings)  # type: ignore[return-value]


class _OnGpu:
    """A module whose launches run on the GPU of this machine."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def launch(self, name: str, config: LaunchConfig, args: list[tuple[str, Any]]) -> None:
        _run_on_gpu(self._build, name, config, [kind for kind, _ in args], tuple(value for _, value in args))


def run(
    source: str,
    *args: Any,
    grid: Shape = 1,
    block: Shape = 32,
    order: str = "forward",
    seed: int = 0,
    kernel: str = "",
    **launch: Any,
) -> None:
    """Compiles and launches the source's (only) kernel."""
    name = kernel or kernels_in(source)[0]
    chosen = {"seconds": ENDLESS, **launch.pop("settings", {})}
    settings = gpuless.Settings(order=order, seed=seed, **chosen)  # type: ignore[arg-type]
    defines, options = tuple(launch.pop("defines", ())), tuple(launch.pop("options", ()))
    build = Build(source, "test.cu", (name,), defines, options, include=(INCLUDE,))
    parameters = kernel_parameters(source, name, "test.cu")
    kinds = ["pointer" if p.pointer else KINDS[p.ctype] for p in parameters]
    config = LaunchConfig(_three(grid), _three(block), **launch)
    if ON_GPU:
        _run_on_gpu(build, name, config, kinds, args)
    else:
        module = gpuless.load(build, settings=settings)
        module.launch(name, config, list(zip(kinds, args, strict=True)))


def _run_on_gpu(build: Build, name: str, config: LaunchConfig, kinds: list[str], args: tuple[Any, ...]) -> None:
    """In a process of its own: a failed launch ends its process' context."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    given = [(a.dtype, a.shape, _bytes(a)) if isinstance(a, torch.Tensor) else a for a in args]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rung.cuda.driver"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        launched = pool.submit(_launched_on_gpu, build, name, config, kinds, given)
        try:
            made = launched.result(GPU_SECONDS)
        except TimeoutError:
            for process in [*pool._processes.values()]:
                process.kill()
            raise
    for here, content in zip(tensors, made, strict=True):
        here.copy_(_tensor((here.dtype, here.shape, content)))


def _launched_on_gpu(build: Build, name: str, config: LaunchConfig, kinds: list[str], given: list[Any]) -> list[bytes]:
    """What the tensors hold then."""
    from rung.cuda.driver import load_module as load_on_gpu

    try:
        moved = [_tensor(value).cuda() if isinstance(value, tuple) else value for value in given]
        module = load_on_gpu(build)
        module.prepare(name, config)
        module.launch(name, config, list(zip(kinds, moved, strict=True)))
        return [_bytes(a.cpu()) for a in moved if isinstance(a, torch.Tensor)]
    except Exception as problem:
        raise RuntimeError(str(problem)) from None  # one that can be handed to another process


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _tensor(given: tuple[torch.dtype, torch.Size, bytes]) -> torch.Tensor:
    dtype, shape, content = given
    return torch.frombuffer(bytearray(content), dtype=dtype).view(shape)


def orders() -> Iterator[dict[str, Any]]:
    yield {"order": "forward"}
    yield {"order": "reverse"}
    for seed in range(3):
        yield {"order": "shuffled", "seed": seed}


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """A copy between pages that fault."""
    size = tensor.numel() * tensor.element_size()
    return torch.from_numpy(gpuless.guarded_empty(size)).view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _three(shape: Shape) -> tuple[int, int, int]:
    given = (shape,) if isinstance(shape, int) else shape
    x, y, z = (*given, 1, 1)[:3]
    return (x, y, z)
