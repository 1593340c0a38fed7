"""A rung's launches as one CUDA graph, for rungs whose idea is a single joint launch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from rung.dtypes import dtype as named_dtype
from rung.expressions import Number
from rung.lazy import torch
from rung.operation import Tensors
from rung.rungs import catalogue

KEPT = 16
_recorded: OrderedDict[tuple[object, ...], tuple[Callable[[], None], Tensors]] = OrderedDict()


def run(rung: str, tensors: Tensors, values: Mapping[str, Number], dtype: str) -> None:
    """One call of `rung` on these tensors: captured the first time, replayed afterwards. During another capture, and
    without a GPU, the launches are issued one by one.
    """
    pointers = tuple((name, tensor.data_ptr()) for name, tensor in tensors.items())
    key = (rung, dtype, pointers, tuple(values.items()))
    if key not in _recorded:
        if len(_recorded) == KEPT:
            _recorded.popitem(last=False)
        _recorded[key] = (_bound(rung, tensors, values, dtype), tensors)
    call, _ = _recorded[key]
    call()


def _bound(rung: str, tensors: Tensors, values: Mapping[str, Number], dtype: str) -> Callable[[], None]:
    chosen = catalogue.find(rung)
    on_gpu = next(iter(tensors.values())).device.type == "cuda"
    complete = chosen.operation.complete(values)
    prepared = chosen.prepare(tensors, complete, named_dtype(dtype), device="cuda" if on_gpu else "emulator")
    if not on_gpu:
        return prepared.run
    graph: torch.cuda.CUDAGraph | None = None

    def replay() -> None:
        nonlocal graph
        if torch.cuda.is_current_stream_capturing():
            prepared.run()
            return
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                prepared.run()
        graph.replay()

    return replay
