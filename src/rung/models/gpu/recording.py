"""What recording a forward pass needs: memory that is used again, a guard against what torch would compute once, and
launches as a graph."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from rung.errors import RungError
from rung.models.ladder_plan import LadderCalls
from rung.models.weights import Norm

Step = Callable[[], object]


class Buffers:
    """Memory for intermediate results. A result's memory is free again when the forward pass has dropped its tensor and
    the tensor's views: whatever is recorded from then on runs after all that reads it.
    """

    def __init__(self) -> None:
        self._free: defaultdict[tuple[torch.dtype, int], list[torch.Tensor]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, where: torch.device, size: int) -> torch.Tensor:
        """A tensor of this shape in memory of `size` elements."""
        free = self._free[dtype, size]
        block = free.pop() if free else torch.empty(size, dtype=dtype, device=where)
        made = alias(block[: math.prod(shape)].view(shape))
        weakref.finalize(made, free.append, block)
        return made


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as another tensor, which does not keep the first one."""
    found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return found.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def by_tensor() -> MutableMapping[torch.Tensor, Any]:
    """A table of tensors, which it does not keep."""
    return WeakTensorKeyDictionary()


class Guard(TorchFunctionMode):
    """The operations of a plan for a forward pass that is recorded. What torch itself computes of weights, tokens or
    results would be computed now and never again: it is refused."""

    ASKED = frozenset(
        getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda")
    ) | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.__len__}

    def __init__(self, plan: LadderCalls, title: str, known: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._plan, self._title, self._within = plan, title, False
        self._known: MutableMapping[torch.Tensor, bool] = by_tensor()
        self._known.update(dict.fromkeys(known, True))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plan, name)
        if not callable(found):
            return found

        def operation(*given: Any, **named: Any) -> Any:
            before, self._within = self._within, True
            try:
                results = found(*given, **named)
            finally:
                self._within = before
            self._known.update((x, True) for x in tree_leaves(results) if isinstance(x, torch.Tensor))
            return results

        return operation

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._within and func not in self.ASKED:
            of = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            if any(x in self._known for x in of):
                name = resolve_name(func) or getattr(func, "__name__", "an operation")
                raise RungError(
                    f"the forward pass of {self._title} calls {name} itself; a pass is recorded once and repeated, so "
                    "write it over the operations of the plan."
                )
        return func(*args, **(kwargs or {}))


class Sum(NamedTuple):
    """a + b, both (B, T, C)."""

    a: torch.Tensor
    b: torch.Tensor


class Normed(NamedTuple):
    """x after a norm."""

    x: torch.Tensor
    norm: Norm
    eps: float


def captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Launches as one graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # libraries choose and allocate now, not during capture
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph
