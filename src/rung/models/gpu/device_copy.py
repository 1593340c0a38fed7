"""Copies between the host and a device, on a separate stream or, without a GPU, synchronously; and whether the memory
suffices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch

from rung.errors import RungError


class Mark(Protocol):
    """A point in the order of enqueued work."""

    def synchronize(self) -> None: ...


class Transport(Protocol):
    """Where copies are enqueued, and how others wait for them."""

    def staging(self, size: int) -> torch.Tensor:
        """Bytes on the host."""

    def staging_buffer(self, size: int) -> torch.Tensor:
        """Bytes on the device."""

    def begin(self, targets: Iterable[torch.Tensor]) -> None:
        """Start the clock; work enqueued on the current stream precedes the copies."""

    def here(self) -> AbstractContextManager[Any]:
        """Work inside is enqueued with the copies."""

    def mark(self) -> Mark:
        """Everything enqueued here so far."""

    def reached(self) -> Mark:
        """Everything enqueued on the current stream so far."""

    def hold(self, mark: Mark) -> None:
        """The current stream waits for the mark."""

    def seconds(self, mark: Mark) -> float:
        """The time when it was reached, since the clock started."""


class OnAStream:
    """Pinned memory, a stream for copies, and events."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._origin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def staging(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def staging_buffer(self, size: int) -> torch.Tensor:
        with torch.cuda.stream(self.stream):
            return torch.empty(size, dtype=torch.uint8, device=self.device)

    def begin(self, targets: Iterable[torch.Tensor]) -> None:
        # Memory that torch has reused may still be read by earlier work.
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        for target in targets:
            target.record_stream(self.stream)
        self.stream.synchronize()
        self._origin.record(self.stream)

    def here(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream)  # and its device, which a new thread does not have

    def mark(self) -> Mark:
        return self._event(self.stream)

    def reached(self) -> Mark:
        return self._event(torch.cuda.current_stream(self.device))

    def _event(self, stream: torch.cuda.Stream) -> Mark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def hold(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self.device).wait_event(mark)

    def seconds(self, mark: Mark) -> float:
        assert isinstance(mark, torch.cuda.Event)
        mark.synchronize()
        return float(self._origin.elapsed_time(mark)) / 1e3


class Moment:
    """A mark where everything is done at once."""

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass


class AtOnce:
    """The same on a CPU."""

    def __init__(self) -> None:
        self._origin = 0.0

    def staging(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def staging_buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def begin(self, targets: Iterable[torch.Tensor]) -> None:
        self._origin = time.perf_counter()

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self) -> Mark:
        return Moment()

    def reached(self) -> Mark:
        return Moment()

    def hold(self, mark: Mark) -> None:
        pass

    def seconds(self, mark: Mark) -> float:
        assert isinstance(mark, Moment)
        return mark.at - self._origin


def transport_to(device: torch.device) -> Transport:
    """The transport to a device."""
    return OnAStream(device) if device.type == "cuda" else AtOnce()


SPARE = 512 << 20  # for kernels, graphs and torch's libraries


def refuse(needed: int, what: str, remedy: str) -> None:
    """RungError if the GPU does not have `needed` bytes left."""
    if not torch.cuda.is_available():
        return
    free, _ = torch.cuda.mem_get_info()
    # torch keeps freed memory in its cache, where it is available to torch.
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if needed + SPARE > free:
        raise RungError(
            f"{what} needs {needed / 2**30:.2f} GiB, and the GPU has {max(0, free - SPARE) / 2**30:.2f} GiB left; "
            f"{remedy}."
        )


def sent(numbers: Sequence[Any] | np.ndarray, to: torch.Tensor) -> None:
    """Copies integers to the device in stream order, without waiting."""
    staged = torch.empty(to.shape, dtype=torch.int32, device="cpu", pin_memory=to.is_cuda)
    staged.numpy()[:] = numbers
    to.copy_(staged, non_blocking=True)


def to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """A copy that is complete when the event has occurred (without one: at once)."""
    if not tensor.is_cuda:
        return tensor.clone(), None
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    return copy, ready
