"""Loading weights to a GPU, with reading, copying and computing overlapped. A thread reads the file into a ring of
pinned buffers; each is copied on a separate stream while the next is filled. On the GPU a tensor is transposed and
rounded into the stacked operands. The first prompt waits for one group after the other (the embeddings, each layer,
the end), so it begins while later layers are still being loaded.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rung.models.family import Config
from rung.models.gpu.device_copy import Mark, Transport, refuse, transport_to
from rung.models.operations import ALIGNMENT
from rung.models.tensors import Safetensors, open_tensors
from rung.models.weights import empty_operands, items, require_numbers, tensor_reader
from rung.operation import Tensors

SLOT = 8 << 20  # bytes of a pinned buffer
SLOTS = 4


@dataclass(frozen=True)
class Piece:
    """One tensor: its place in the file, and its destination."""

    name: str
    source: torch.Tensor
    target: torch.Tensor
    turned: bool = False  # the file has (inputs, outputs)
    plus: float = 0.0  # added to the file's numbers


@dataclass(frozen=True)
class Span:
    """One piece of work and its times, in seconds since the start."""

    what: str  # "read" or "copy"
    name: str
    begin: float
    end: float


@dataclass
class _Slot:
    buffer: torch.Tensor
    sent: Mark | None = None  # the buffer is free when its copy is done


def pieces(read: Callable[[str], torch.Tensor], config: Config, operands: Tensors) -> list[list[Piece]]:
    """The embeddings, each layer, and the end: all tensors, in the order of a forward pass."""
    groups: list[list[Piece]] = [[] for _ in range(config.layers + 2)]
    group = 0
    for item in items(config):
        group = item.layer + 1 if item.layer is not None else config.layers + 1 if group else 0
        for name, _, rows in item.files(config):
            place = item.view(operands)[rows]
            groups[group].append(Piece(name, read(name), place, item.spec.transposed, item.spec.plus))
    return groups


class Arrival:
    """Operands being loaded: `start`, then `wait` for a group before computing with it."""

    def __init__(self, operands: Tensors, groups: Sequence[Sequence[Piece]], transport: Transport) -> None:
        self.operands = operands
        self.spans: list[Span] = []
        self.finished = False
        self.transport = transport
        self._groups = groups
        self._slots = [_Slot(transport.staging(SLOT)) for _ in range(SLOTS)]
        self._turn = 0
        indirect = [p.source.nbytes for group in groups for p in group if not _direct(p)]
        self._raw = transport.staging_buffer(max(indirect, default=1))
        self._copies: list[tuple[str, Mark, Mark]] = []
        self._ends: list[tuple[str, tuple[torch.Tensor, torch.Tensor]]] = []  # minimum and maximum of each tensor
        self._marks: list[Mark | None] = [None] * len(groups)
        self._handed_over = [threading.Event() for _ in groups]
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._began = 0.0

    def start(self, *, overlapped: bool = True) -> None:
        """Start loading; if not `overlapped`, one tensor after the other, complete on return."""
        self.transport.begin(self.operands.values())
        self._began = time.perf_counter()
        if overlapped:
            self._thread = threading.Thread(target=self._carry_all, name="rung-loading")
            self._thread.start()
        else:
            self._carry_all(step_by_step=True)
            self.finish()

    def wait(self, group: int) -> None:
        """Work enqueued from now on may read this group and those before it."""
        self._handed_over[group].wait()
        if self._error is not None:
            raise self._error
        mark = self._marks[group]
        assert mark is not None
        self.transport.hold(mark)

    def finish(self) -> None:
        """Wait for the last group; buffers and file are released."""
        self.wait(len(self._marks) - 1)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._slots, self._groups, self._raw = [], [], torch.empty(0, dtype=torch.float32, device="cpu")
        self.finished = True
        for name, both in self._ends:  # they stay after an error: who asks again gets the error again
            require_numbers(name, both)
        self._ends = []

    @property
    def timeline(self) -> list[Span]:
        """All reading and copying, once it is finished."""
        clock = self.transport.seconds
        return [*self.spans, *(Span("copy", name, clock(begin), clock(end)) for name, begin, end in self._copies)]

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _carry_all(self, *, step_by_step: bool = False) -> None:
        try:
            with torch.inference_mode(), self.transport.here():
                for number, group in enumerate(self._groups):
                    for piece in group:
                        self._carry(piece, step_by_step)
                        self._ends.append((piece.name, torch.aminmax(piece.target)))
                    self._marks[number] = self.transport.mark()
                    self._handed_over[number].set()
        except BaseException as error:  # re-raised for the waiting thread
            self._error = error
        finally:
            for event in self._handed_over:
                event.set()

    def _carry(self, piece: Piece, step_by_step: bool) -> None:
        source, direct = _bytes(piece.source), _direct(piece)
        destination = _bytes(piece.target) if direct else self._raw[: len(source)]
        for offset in range(0, len(source), SLOT):
            part = source[offset : offset + SLOT]
            slot = self._slots[self._turn]
            self._turn = (self._turn + 1) % len(self._slots)
            if slot.sent is not None:
                slot.sent.synchronize()
            begin = time.perf_counter() - self._began
            slot.buffer[: len(part)].copy_(part)
            self.spans.append(Span("read", piece.name, begin, time.perf_counter() - self._began))
            left = self.transport.mark()
            destination[offset : offset + len(part)].copy_(slot.buffer[: len(part)], non_blocking=True)
            if offset + len(part) == len(source) and not direct:
                whole = self._raw[: len(source)].view(piece.source.dtype).view(piece.source.shape)
                whole = whole.float() + piece.plus if piece.plus else whole
                piece.target.copy_(whole.t() if piece.turned else whole)
            slot.sent = self.transport.mark()
            self._copies.append((piece.name, left, slot.sent))
            if step_by_step:
                slot.sent.synchronize()


def _direct(piece: Piece) -> bool:
    same = piece.source.dtype == piece.target.dtype and piece.target.is_contiguous()
    return same and not (piece.turned or piece.plus)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


# ---- a model ----------------------------------------------------------------------------------------------------


def arrival(folder: Path, config: Config, compute: torch.dtype, device: torch.device) -> Arrival | None:
    """A folder's weights, checked and ready to start; None if they have to be loaded without overlap: .bin files, and
    layers of odd width that would be misaligned for the kernels.
    """
    widths = {size for item in items(config) for size in item.spec.computed(config)[-1:] if item.layer is not None}
    if any(width * compute.itemsize % ALIGNMENT for width in widths):
        return None
    files = open_tensors(folder)
    if not all(isinstance(file, Safetensors) for file in files):
        return None
    read = tensor_reader(files, config)
    if device.type == "cuda":
        count = sum(math.prod(item.spec.stored(config)) for item in items(config))
        refuse(count * compute.itemsize, "the model's weights", "use a smaller model, or the dtype bfloat16")
    operands = empty_operands(config, compute, device)
    return Arrival(operands, pieces(read, config, operands), transport_to(device))
