"""Beginnings of prompts that are kept on a GPU, so that prompts which begin with the same tokens read only the rest: of
earlier prompts, and of those that are read in the same turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from gpuless.launch import Argument, Build, LaunchConfig
from rung.dtypes import Dtype
from rung.models.batching.pages import PAGE, Pages
from rung.models.gpu.batched_prefill import CHUNK, PASS, Reader, bucket
from rung.models.gpu.device_copy import sent
from rung.models.gpu.engine import GpuSteps
from rung.quantised import CACHES
from rung.rungs.cuda import build_of, load_module

LEAST = 128  # tokens with which two prompts have to begin
MOST_REST = 1024  # tokens that a pass reads after them
TOKENS = 4 * CHUNK  # that are kept, and again for passes over the rest of prompts
SHARE = 0.03  # of the GPU's memory at most, for either
THREADS, BLOCKS = 128, 64  # of a page


@dataclass
class Reading:
    """A prompt of this turn: its first tokens come from the pages `known`, the rest is read in the passes of number
    `after`."""

    window: tuple[int, ...]
    pages: list[int] = field(default_factory=list)  # all of them, of which the first `found` were there before it
    found: int = 0
    known: int = 0  # pages that it does not read
    after: int = 0

    @property
    def past(self) -> int:
        return self.known * PAGE

    @property
    def rest(self) -> tuple[int, ...]:
        return self.window[self.past :]


class Beginnings:
    """The kept pages."""

    def __init__(self, engine: GpuSteps) -> None:
        c, self._engine, self._where = engine.config, engine, engine.operands["wte"].device
        of_token = 2 * c.layers * c.NKV * c.HS * engine.real.size
        self.tokens = TOKENS  # that the rows of a pass over the rest of prompts have room for, too
        if self._where.type == "cuda":
            memory = torch.cuda.get_device_properties(self._where).total_memory
            self.tokens = min(TOKENS, int(SHARE * memory) // of_token)
        self.reach = min(c.context, self.tokens)  # of a row
        count = self.tokens // PAGE
        self._pages = Pages(count, kept=1.0)
        self._memory, self.caches = (
            torch.empty(2, count * PAGE * c.layers * c.NKV * c.HS, dtype=engine.real.torch, device=self._where).unbind()
            for _ in range(2)
        )
        self._launches: dict[tuple[int, ...], tuple[torch.Tensor, Callable[[], None]]] = {}

    # ---- which pages ------------------------------------------------------------------------------------------------

    def plan(self, windows: Sequence[tuple[int, ...]]) -> list[Reading]:
        """How the prompts of a turn are read; their pages are given to nobody else until `done`."""
        readings, writer = [], dict[int, Reading]()  # by the pages that this turn writes
        for window in windows:
            nodes = self._pages.known(window)
            reading = Reading(window, [self._pages.hold(node.page) for node in nodes], len(nodes))
            reading.known = self._usable(window, len(nodes))
            parent = nodes[-1] if nodes else self._pages.root
            whole = len(window) // PAGE if len(window) > LEAST else 0
            for at in range(len(nodes), whole):
                if not self._pages.available:
                    break
                parent, _ = self._pages.keep(parent, window[at * PAGE : (at + 1) * PAGE], self._pages.take())
                reading.pages.append(parent.page)
                writer[parent.page] = reading
            readings.append(reading)
        awaited = [[writer[page] for page in r.pages[: r.known] if page in writer] for r in readings]
        if sum(map(len, awaited)) * PAGE < PASS:  # passes one after another cost more than they save
            for reading, writers in zip(readings, awaited, strict=True):
                reading.known -= len(writers)
                if reading.known * PAGE < LEAST:
                    reading.known = 0
            return readings
        for reading, writers in zip(readings, awaited, strict=True):
            reading.after = max((one.after + 1 for one in writers), default=0)
        return readings

    def known(self, window: Sequence[int]) -> int:
        """Tokens of the window that are there."""
        return self._usable(window, len(self._pages.known(window))) * PAGE

    def _usable(self, window: Sequence[int], pages: int) -> int:
        """As many of the pages as leave room for a pass over the rest; none if they are few, or much is left."""
        pages = min(pages, (len(window) - 1) // PAGE)
        while pages * PAGE >= LEAST:
            rest = padded(len(window) - pages * PAGE, self.reach)
            if rest > MOST_REST:
                break
            if pages * PAGE + rest <= self.reach:
                return pages
            pages -= 1
        return 0

    def done(self, readings: Sequence[Reading]) -> None:
        """All passes over these prompts were launched."""
        for reading in readings:
            self._pages.drop(reading.pages)

    # ---- copies -----------------------------------------------------------------------------------------------------

    def bring(self, readings: Sequence[Reading], reader: Reader) -> None:
        """Known pages go to the rows of the reader. What lies behind them is zero: keys that a mask hides take part in
        sums as zeros, but no other number times zero need be zero."""
        if any(r.known for r in readings):
            for name in CACHES:
                reader.tensors[name][:, :, :, min(r.past for r in readings) :].zero_()
        self._copy(reader, [(r.pages[at], row, at) for row, r in enumerate(readings) for at in range(r.known)], keep=0)

    def keep(self, readings: Sequence[Reading], reader: Reader) -> None:
        """What the reader has read goes to the pages that are new."""
        pages = [(r.pages[at], row, at) for row, r in enumerate(readings) for at in range(r.found, len(r.pages))]
        self._copy(reader, pages, keep=1)

    def _copy(self, reader: Reader, pages: Sequence[tuple[int, int, int]], keep: int) -> None:
        """Pages, with their rows and places there."""
        if not pages:
            return
        count = max(8, 1 << (len(pages) - 1).bit_length())
        key = reader.tensors["k_cache"].data_ptr(), reader.rows, reader.capacity, count, keep
        if key not in self._launches:
            self._launches[key] = self._bind(reader, count, keep)
        to, launch = self._launches[key]
        sent([*pages, *[(-1, 0, 0)] * (count - len(pages))], to)
        launch()

    def _bind(self, reader: Reader, count: int, keep: int) -> tuple[torch.Tensor, Callable[[], None]]:
        c, pages = self._engine.config, torch.zeros(count, 3, dtype=torch.int32, device=self._where)
        arguments: list[Argument] = [("pointer", pages), *(("pointer", memory) for memory in self._memory)]
        arguments += [("pointer", reader.tensors[name]) for name in CACHES]
        arguments += [("i32", n) for n in (c.layers, reader.rows, reader.capacity, c.NKV, c.HS, PAGE, keep)]
        launch = LaunchConfig(grid=(BLOCKS, count, 1), block=(THREADS, 1, 1))
        module = load_module(build(self._engine.real), self._engine.device)
        module.prepare("copy_pages", launch)
        return pages, module.bind("copy_pages", launch, arguments)


def padded(tokens: int, reach: int) -> int:
    """The length to which the rest of a prompt is padded."""
    return bucket(max(tokens, PAGE), reach)


@cache
def build(real: Dtype) -> Build:
    """The kernel."""
    return build_of(Path(__file__).with_name("beginnings.cu"), ("copy_pages",), (real.macro, 1))
