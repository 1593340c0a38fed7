"""A GPU that is not there: what torch.cuda tells of it; triton_driver.py has Triton's side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from gpuless.facts import gpus
from gpuless.facts.limits import WARP, Limits, limits
from rung.cuda.triton_driver import Constant, Driver, Launch, driving

CAPABILITY = 90


@contextmanager
def gpu(
    launch: Launch,
    *,
    multiprocessors: int | None = None,
    capability: int = CAPABILITY,
    device: str = "cpu",
    trials: Callable[..., list[float]] | None = None,
) -> Iterator[None]:
    """Inside, programs see a GPU of this capability whose memory is that of `device`, and Triton compiles for it.
    `trials` run a tuner's configurations."""
    of, row = limits(f"sm_{capability}"), gpus.of_arch(f"sm_{capability}")
    row = replace(row, multiprocessors=multiprocessors or row.multiprocessors)
    with contextlib.ExitStack() as here:
        here.enter_context(mock.patch.multiple(torch.cuda, create=True, **_answers(of, row)))
        here.enter_context(_Memory(device))
        here.enter_context(mock.patch.object(torch, "Generator", _Generator))
        with contextlib.suppress(ImportError):
            here.enter_context(driving(Driver(launch, of, row, device, trials)))
        yield


def within() -> bool:
    """Whether the GPU that programs see now is a pretended one."""
    return isinstance(torch.cuda.is_available, Constant)


class _Stream:
    """The only stream, or an event on it: all work is done at once."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.query, self.elapsed_time = Constant(True), Constant(1e6)  # so long that nobody measures it often
        self.synchronize = self.record = self.wait = Constant()
        self.wait_stream = self.wait_event = Constant()
        self.record_event = Constant(self)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return


def _answers(of: Limits, row: gpus.Gpu) -> dict[str, Any]:
    major, minor = divmod(int(of.arch.removeprefix("sm_")), 10)
    facts = SimpleNamespace(
        name=row.name, major=major, minor=minor, multi_processor_count=row.multiprocessors, warp_size=WARP,
        total_memory=row.memory_gib << 30, L2_cache_size=row.l2_mib << 20, regs_per_multiprocessor=of.registers_sm,
        max_threads_per_multi_processor=of.threads_sm, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=of.shared_block, shared_memory_per_multiprocessor=of.shared_sm,
    )  # fmt: skip
    constants = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
        "get_device_name": facts.name, "get_device_properties": facts, "get_device_capability": (major, minor),
        "is_current_stream_capturing": False,
        "current_stream": _Stream(), "default_stream": _Stream(), "device": nullcontext(), "device_of": nullcontext(),
        "stream": nullcontext(), **dict.fromkeys(("synchronize", "set_device", "set_stream", "empty_cache", "init")),
    }  # fmt: skip
    return {name: Constant(value) for name, value in constants.items()} | {"Stream": _Stream, "Event": _Stream}


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu" if _is_gpu(device) else device)  # type: ignore[call-arg]


_IS_CUDA: Any = torch.Tensor.is_cuda


class _Memory(TorchFunctionMode):
    """Tensors that are requested on a GPU lie in the memory of `device`, and all are taken for a GPU's."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func == _IS_CUDA.__get__:  # each look at it makes another wrapper
            return True
        if func is torch.Tensor.cuda:
            return args[0]
        if "pin_memory" in named:
            named = {**named, "pin_memory": False}
        args = tuple(self.device if _is_gpu(one) else one for one in args)
        if "device" in named and (isinstance(named["device"], int) or _is_gpu(named["device"])):
            named = {**named, "device": self.device}
        return func(*args, **named)


def _is_gpu(value: Any) -> bool:
    return isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
