"""Keys and values in pages: memory follows the tokens that are there, and texts with one beginning share its pages.

A page is free, or held by rows, or kept for later texts: those that begin with the same tokens find it in a tree. Kept
pages that no row holds are given up when pages are wanted, the longest unused first and the deepest of those first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rung.lazy import torch
from rung.models.cache import Cache, give_back, untouched

PAGE = 32  # tokens
KEPT = 0.25  # share of all pages that are kept although no row holds them


@dataclass(eq=False)
class _Node:
    """A kept page: PAGE tokens after those of its parents; fewer at a prompt's end, where a text goes on."""

    page: int
    tokens: tuple[int, ...]
    parent: int  # a page, or -1
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


class Pages:
    """Which pages are free, held and kept."""

    def __init__(self, count: int, kept: float = KEPT) -> None:
        """At most the share `kept` of all pages is kept without a holder."""
        self.count, self._most = count, kept * count
        self._free = list(range(count))  # a heap, so that memory which was used before is used first
        self._holders = [0] * count
        self._nodes: list[_Node | None] = [None] * count
        self._unused: dict[int, None] = {}  # kept pages without a holder, in the order in which they are given up
        self.root = _Node(-1, (), -1)

    @property
    def available(self) -> int:
        """Pages that can be taken."""
        return len(self._free) + len(self._unused)

    @property
    def held(self) -> int:
        """Pages that rows hold."""
        return self.count - self.available

    def take(self) -> int:
        """A page that was available, with one holder."""
        if not self._free:
            self._give_up()
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> int:
        """The page, with one more holder."""
        self._unused.pop(page, None)
        self._holders[page] += 1
        return page

    def drop(self, pages: Sequence[int]) -> list[int]:
        """One holder less for each of a row's pages; returns those that have become free."""
        freed: list[int] = []
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if self._nodes[page] is None:
                    heapq.heappush(self._free, page)
                    freed.append(page)
                else:
                    self._unused[page] = None
        while len(self._unused) > self._most:
            freed.append(self._give_up())
        return freed

    def _give_up(self) -> int:
        # A row that holds a page holds those before it, and drops them later: the first has no children left.
        page = next(iter(self._unused))
        del self._unused[page]
        node, self._nodes[page] = self._nodes[page], None
        assert node is not None and not node.children
        parent = self._nodes[node.parent] if node.parent >= 0 else self.root
        assert parent is not None
        del parent.children[node.tokens]
        heapq.heappush(self._free, page)
        return page

    def keep(self, parent: _Node, tokens: tuple[int, ...], page: int) -> tuple[_Node, list[int]]:
        """A row's page with these tokens is kept after `parent`. The row holds the page of the node that is returned:
        another if another row read the same tokens before. Then the row's own has become free.
        """
        node = parent.children.get(tokens)
        if node is None:
            node = self._nodes[page] = parent.children[tokens] = _Node(page, tokens, parent.page)
        elif node.page != page and len(tokens) == PAGE:
            self.hold(node.page)
            return node, self.drop([page])
        return node, []

    def known(self, ids: Sequence[int]) -> list[_Node]:
        """The kept pages with which these tokens begin."""
        found, node = [], self.root
        for at in range(0, len(ids) - PAGE + 1, PAGE):
            child = node.children.get(tuple(ids[at : at + PAGE]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def busy(self, nodes: Sequence[_Node]) -> int:
        """How many of these pages a row holds."""
        return sum(self._holders[node.page] > 0 for node in nodes)


def pages_of(tokens: int) -> int:
    """Pages for so many tokens."""
    return -(-tokens // PAGE)


def alike(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens with which both begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class PagedCache(Cache):
    """A cache on the CPU whose rows take pages as they grow."""

    def __init__(self, shape: tuple[int, int, int], rows: int, capacity: int, room: int, dtype: str) -> None:
        """`shape` is (layers, NKV, HS); `room`: tokens that may be in memory, at least one row's."""
        layers, NKV, HS = shape
        self._reach, self._capacity = pages_of(capacity), capacity
        # A text may need a page more than it holds, for a beginning that ends within a kept page.
        self.pages = Pages(max(self._reach + 1, min(rows * self._reach, room // PAGE)))
        page, kind = (layers, NKV, PAGE, HS), np.dtype(np.float32 if dtype == "float32" else np.int16)
        self._page_bytes = math.prod(page) * kind.itemsize
        self._memory = [untouched(self.pages.count * self._page_bytes) for _ in "kv"]
        self._arrays = [np.frombuffer(memory, kind).reshape(-1, *page) for memory in self._memory]
        self._dtype = dtype
        self.begin(rows)

    @cached_property
    def k(self) -> torch.Tensor:  # type: ignore[override]
        return self._tensor(0)

    @cached_property
    def v(self) -> torch.Tensor:  # type: ignore[override]
        return self._tensor(1)

    def _tensor(self, place: int) -> torch.Tensor:
        return torch.from_numpy(self._arrays[place]).view(getattr(torch, self._dtype)).transpose(0, 1)

    def memory(self) -> tuple[int, ...]:
        k, v = self._arrays
        pages, layers = (stride // k.itemsize for stride in k.strides[:2])
        return k.ctypes.data, v.ctypes.data, self.table.ctypes.data, self.table.strides[0] // 4, PAGE, layers, pages

    @property
    def capacity(self) -> int:
        return self._capacity

    def begin(self, rows: int) -> None:
        self.lengths = [0] * rows
        self.table = np.zeros((rows, self._reach), np.int32)
        self.held: list[list[int]] = [[] for _ in range(rows)]
        self._last: list[_Node] = [self.pages.root for _ in range(rows)]  # of the pages that are kept
        self._kept = [0] * rows

    def row(self, row: int) -> Cache:
        view = PagedCache.__new__(PagedCache)
        view._arrays, view._dtype, view._capacity = self._arrays, self._dtype, self._capacity
        view.table, view.lengths = self.table[row : row + 1], [self.lengths[row]]
        return view

    # ---- the pages of a row -----------------------------------------------------------------------------------------

    def fit(self, row: int, tokens: int) -> bool:
        """The row holds pages for so many tokens; False if there are not enough."""
        held = self.held[row]
        more = pages_of(tokens) - len(held)
        if more > self.pages.available:
            return False
        for _ in range(more):
            self._append(row, self.pages.take())
        return True

    def _append(self, row: int, page: int) -> None:
        self.table[row, len(self.held[row])] = page
        self.held[row].append(page)

    def release(self, row: int) -> None:
        """The row is empty."""
        self._free(self.pages.drop(self.held[row]))
        self.held[row], self._last[row], self._kept[row], self.lengths[row] = [], self.pages.root, 0, 0

    def _free(self, pages: Sequence[int]) -> None:
        for page in pages:
            for memory in self._memory:
                give_back(memory, page * self._page_bytes, (page + 1) * self._page_bytes)

    def find(self, row: int, ids: Sequence[int], unit: int) -> int:
        """An empty row begins with what is kept of these tokens, whole units; returns how many tokens that is.

        With a unit of 1, the tokens that it shares with the first page that differs are copied.
        """
        nodes = self.pages.known(ids)
        nodes = nodes[: len(nodes) * PAGE // unit * unit // PAGE]
        for node in nodes:
            self._append(row, self.pages.hold(node.page))
            self._last[row] = node
        self._kept[row] = len(nodes)
        tokens = len(nodes) * PAGE
        if unit == 1 and self.pages.available > 1:
            rest = ids[tokens : tokens + PAGE]
            children = self._last[row].children.values()
            best = max(((alike(child.tokens, rest), child.page) for child in children), default=(0, -1))
            if best[0]:
                self._copy(row, self.pages.hold(best[1]), best[0])
                self._free(self.pages.drop([best[1]]))
                tokens += best[0]
        self.lengths[row] = tokens
        return tokens

    def _copy(self, row: int, source: int, tokens: int) -> None:
        """The row goes on with a copy of a page's first tokens."""
        page = self.pages.take()
        self._append(row, page)
        for array in self._arrays:
            array[page, :, :, :tokens] = array[source, :, :, :tokens]

    def keep(self, row: int, ids: Sequence[int], tokens: int) -> None:
        """The first so many tokens of the row, which begins with `ids`, may be used by other rows."""
        while (self._kept[row] + 1) * PAGE <= tokens:
            at = self._kept[row]
            part = tuple(ids[at * PAGE : (at + 1) * PAGE])
            self._last[row], freed = self.pages.keep(self._last[row], part, self.held[row][at])
            self._free(freed)
            self.held[row][at] = self._last[row].page
            self.table[row, at] = self._last[row].page
            self._kept[row] += 1
        if tokens == len(ids) and tokens % PAGE:
            self.pages.keep(self._last[row], tuple(ids[tokens // PAGE * PAGE :]), self.held[row][tokens // PAGE])

    def share(self, source: int, row: int, tokens: int) -> bool:
        """The empty row begins with these tokens of another row; False if a page is wanted for that."""
        whole, rest = divmod(tokens, PAGE)
        if rest and not self.pages.available:
            return False
        for page in self.held[source][:whole]:
            self._append(row, self.pages.hold(page))
        if rest:
            self._copy(row, self.held[source][whole], rest)
        self.lengths[row] = tokens
        return True

    # ---- torch's operations -----------------------------------------------------------------------------------------

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        for row, past in enumerate(self.lengths):
            at = torch.arange(past, past + k.shape[2], dtype=torch.int64, device="cpu")
            pages = torch.from_numpy(self.table[row]).long()[at // PAGE]
            self.k[layer][pages, :, at % PAGE] = k[row].transpose(0, 1).to(self.k.dtype)
            self.v[layer][pages, :, at % PAGE] = v[row].transpose(0, 1).to(self.v.dtype)

    def read(self, layer: int, T: int) -> tuple[torch.Tensor, torch.Tensor]:
        S = max(self.lengths) + T
        pages = torch.from_numpy(self.table)[:, : pages_of(S)].long()  # (rows, pages)
        return tuple(  # type: ignore[return-value]
            of[layer][pages].transpose(1, 2).flatten(2, 3)[:, :, :S] for of in (self.k, self.v)
        )
