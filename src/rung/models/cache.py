"""Keys and values of all tokens so far, in tensors that are allocated once."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rung.errors import RungError
from rung.lazy import torch

MOST_BYTES = 1 << 40
SHORT_PROMPT = 8  # tokens that are read as columns of a step
_NOT_RESERVED = 0x4000  # MAP_NORESERVE of Linux, which Python names from 3.13 on


def untouched(size: int) -> mmap.mmap:
    """Bytes of the host, zeros, of which a page takes memory once it is written: torch.zeros would fill them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NOT_RESERVED
    try:
        if size > MOST_BYTES:
            raise OverflowError
        memory = mmap.mmap(-1, max(size, 1), flags=flags)
    except (OSError, OverflowError):
        text = f"{size:,} bytes of keys and values do not fit into memory; ask for fewer texts at once."
        raise RungError(text) from None
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # a token's keys lie far apart, and each would take 2 MB
    return memory


def give_back(memory: mmap.mmap, first: int, end: int) -> None:
    """Bytes of `untouched` memory are zeros again; whole pages of them take no memory any more."""
    page = mmap.PAGESIZE
    start, stop = -(-first // page) * page, end // page * page
    if start < stop:
        memory.madvise(mmap.MADV_DONTNEED, start, stop - start)


@dataclass(frozen=True)
class Column:
    """One token of one sequence."""

    token: int
    row: int
    position: int
    output: int  # its row of the logits, or -1


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens of one sequence, from a position on."""

    tokens: Sequence[int]
    row: int
    position: int


class Cache:
    """A static KV cache. The sequences of a batch have different lengths, given by `lengths`. Content beyond a row's
    length is stale and never read. Each row is one page of the whole capacity; batching/pages.py has smaller ones.
    """

    table: np.ndarray  # (rows, pages of a row): int32

    def __init__(
        self, layers: int, rows: int, NKV: int, capacity: int, HS: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, rows, NKV, capacity, HS)
        # Zeros, since attention multiplies masked values by zero, and a NaN would survive that.
        if device.type == "cpu":
            size = math.prod(shape) * dtype.itemsize
            k, v = (torch.frombuffer(untouched(size), dtype=dtype)[: math.prod(shape)].view(shape) for _ in "kv")
            return self._hold(k, v)
        self._hold(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    def _hold(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k, self.v = k, v  # (layers, pages, NKV, tokens of a page, HS)
        self.table = np.arange(k.shape[1], dtype=np.int32)[:, None]
        self.lengths = [0] * k.shape[1]

    @classmethod
    def over(cls, k: torch.Tensor, v: torch.Tensor) -> Cache:
        """An empty cache in existing memory, (layers, rows, NKV, capacity, HS) each."""
        made = cls.__new__(cls)
        made._hold(k, v)
        return made

    @property
    def capacity(self) -> int:
        return self.k.shape[3]

    def memory(self) -> tuple[int, ...]:
        """Where it is on the host, as in cpu/engine.py: addresses of keys, values and table, pages of a row in the
        table, tokens of a page, and numbers from layer to layer and from page to page."""
        k, table, page = self.k, self.table, self.k.shape[3]
        assert k.stride() == self.v.stride() and k.stride(2) == page * k.shape[4]
        reach = table.strides[0] // table.itemsize
        return k.data_ptr(), self.v.data_ptr(), table.ctypes.data, reach, page, k.stride(0), k.stride(1)

    def begin(self, rows: int) -> None:
        """Forget all sequences, and prepare for this number of new ones."""
        self.lengths = [0] * rows

    def row(self, row: int) -> Cache:
        """The same memory, viewed as the cache of one sequence."""
        view = Cache.over(self.k[:, row : row + 1], self.v[:, row : row + 1])
        view.lengths = [self.lengths[row]]
        return view

    def fit(self, row: int, tokens: int) -> bool:
        """The row has memory for so many tokens."""
        return True

    def release(self, row: int) -> None:
        """The row is empty."""
        self.lengths[row] = 0

    def share(self, source: int, row: int, tokens: int) -> bool:
        """The empty row begins with these tokens of another row; False if there is no memory for that."""
        for tensor in (self.k, self.v):
            tensor[:, row, :, :tokens] = tensor[:, source, :, :tokens]
        self.lengths[row] = tokens
        return True

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Append (rows, NH, T, HS) to each row. Lengths advance once per step, not once per layer."""
        T = k.shape[2]
        rows = len(self.lengths)
        if len(set(self.lengths)) == 1:
            new = slice(self.lengths[0], self.lengths[0] + T)
            self.k[layer, :rows, :, new] = k
            self.v[layer, :rows, :, new] = v
            return
        for row, past in enumerate(self.lengths):
            self.k[layer, row, :, past : past + T] = k[row]
            self.v[layer, row, :, past : past + T] = v[row]

    def read(self, layer: int, T: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (rows, NH, S, HS), as far as the longest row goes once it has T more tokens."""
        rows, S = len(self.lengths), max(self.lengths) + T
        return self.k[layer, :rows, :, :S], self.v[layer, :rows, :, :S]

    def advance(self, tokens: Sequence[int]) -> None:
        """Advance each row's length by this many tokens."""
        self.lengths = [length + n for length, n in zip(self.lengths, tokens, strict=True)]
