"""What a run of a Python rung computes with torch besides its kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Torch operators that a rung may use besides its launches: memory, views of it, and copies of its results.
HARMLESS = (
    "empty", "new_empty", "zeros", "zero_", "fill_", "full", "ones", "view", "reshape", "_unsafe_view", "as_strided",
    "slice", "select", "detach", "alias", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "unbind",
    "split", "narrow", "unfold", "copy_", "clone", "_to_copy", "contiguous", "lift_fresh", "resize_", "set_",
    "scalar_tensor", "arange", "item", "_local_scalar_dense", "empty_like", "zeros_like", "empty_strided", "flatten",
)  # fmt: skip
COPIES = {"copy_", "clone", "_to_copy", "contiguous"}  # all that there is to do where nothing is computed
OPERATOR = 100  # instructions that take as long as one of them
ITEMS = 16  # numbers that a run may read on the host, such as lengths for choosing a kernel


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the torch operators with which a run of a Python rung computes something besides its kernels. In an
    operation that only moves numbers (`exact`), copies by torch are among these."""

    def __init__(self, *, exact: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()
        self.exact, self.items, self.count = exact, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += 1
        name = func.overloadpacket.__name__
        harmless = name in HARMLESS or name.removesuffix("_copy") in HARMLESS
        if not harmless or func.namespace != "aten" or (self.exact and name in COPIES):
            self.found.add(f"{func.namespace}::{name}")
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if name in ("item", "_local_scalar_dense"):
            self.items += 1
        elif any(one.is_cuda for one in given):  # numbers that leave the GPU
            left = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and not one.is_cuda]
            self.items += max((one.numel() for one in left), default=0)
        if self.items > ITEMS:
            self.found.add(f"numbers read on the host, more than {ITEMS} in a run")
        return result
