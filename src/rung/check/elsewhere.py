"""Detects what a Python rung of unknown origin computes outside its kernels: with torch's operators, with numpy or
Python code that reads its operands, or by moving numbers to the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from rung import emulator
from rung.emulator import closed
from rung.rungs.base import Device

# Torch operators that a rung may use besides its launches: memory, views of it, and copies of its results.
HARMLESS = (
    "empty", "new_empty", "zeros", "zero_", "fill_", "full", "ones", "view", "reshape", "_unsafe_view", "as_strided",
    "slice", "select", "detach", "alias", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "unbind",
    "split", "narrow", "unfold", "copy_", "clone", "_to_copy", "contiguous", "lift_fresh", "resize_", "set_",
    "scalar_tensor", "arange", "item", "_local_scalar_dense", "empty_like", "zeros_like", "empty_strided", "flatten",
)  # fmt: skip
COPIES = {"copy_", "clone", "_to_copy", "contiguous"}  # all that there is to do where nothing is computed
ITEMS = 16  # numbers that a run may read on the host, such as lengths for choosing a kernel


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the torch operators that compute something. On a CPU their allocations are closed memory as well, open
    only while an operator runs."""

    def __init__(self, device: Device, *, exact: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()
        self.exact = exact  # the operation only moves numbers
        self.items = 0
        self.closing = device != "cuda" and emulator.available() is None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if closed.within():  # the interpreter's own
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        harmless = name in HARMLESS or name.removesuffix("_copy") in HARMLESS
        if not harmless or func.namespace != "aten" or (self.exact and name in COPIES):
            self.found.add(f"{func.namespace}::{name}")
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if name in ("item", "_local_scalar_dense"):
            self._count(1)
        if self.closing and self.found:  # already known to compute elsewhere
            closed.leave_open()
            return func(*args, **kwargs)
        if not self.closing:
            result = func(*args, **kwargs)
            self._to_host(given, result)
            return result
        # An operator or a tensor class that the rung defines in Python runs with operands still protected.
        known = {torch.Tensor, torch.nn.Parameter}
        if _overridden(func) or any(type(one) not in known for one in given):
            return func(*args, **kwargs)
        with closed.opened():
            result = func(*args, **kwargs)
            if not all(closed.seen(one) for one in _written(func, args, kwargs)):
                self.found.add(closed.OWN_MEMORY)
            if name == "lift_fresh":  # of numbers that torch.tensor was given
                given = []
            before = {one.untyped_storage().data_ptr() for one in given}
            return tree_map(lambda one: self._kept(one, given, before), result)

    def _kept(self, one: Any, given: list[torch.Tensor], before: set[int]) -> Any:
        """An operator's results, in memory that Python cannot read."""
        if not isinstance(one, torch.Tensor) or closed.seen(one) or any(one is other for other in given):
            return one
        return one if one.untyped_storage().data_ptr() in before else closed.moved(one)

    def _to_host(self, given: list[torch.Tensor], result: Any) -> None:
        """Counts the numbers that leave the GPU."""
        if not any(one.is_cuda for one in given):
            return
        results = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and not one.is_cuda]
        self._count(max((one.numel() for one in results), default=0))

    def _count(self, numbers: int) -> None:
        self.items += numbers
        if self.items > ITEMS:
            self.found.add(f"numbers read on the host, more than {ITEMS} in a run")


@contextlib.contextmanager
def watched(device: Device, *, exact: bool = False) -> Iterator[set[str]]:
    """A run of a Python rung; afterwards the set names what it computed with besides its kernels. In an operation that
    is `exact`, copies by torch are among that."""
    found: set[str] = set()
    operators = Operators(device, exact=exact)
    with contextlib.ExitStack() as stack:
        remarks = stack.enter_context(closed.watched()) if operators.closing else set[str]()
        stack.enter_context(operators)
        yield found
    found |= operators.found | remarks


@contextlib.contextmanager
def without_launches() -> Iterator[None]:
    """Inside, launches of Triton and rung do nothing."""
    with closed.without_launches():
        yield


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    found: list[torch.Tensor] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
    return found


_registered: dict[str, str] = {}  # what torch runs for an operator, by its name


def note_operators() -> None:
    """Note what torch runs for the operators that a rung may use, before its file is loaded."""
    for name in HARMLESS:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            operator = getattr(packet, overload).name()
            _registered[operator] = torch._C._dispatch_dump(operator)


def _overridden(func: Any) -> bool:
    """Whether something else was put in the place of this operator of torch's."""
    return _registered.get(func.name(), "") not in ("", torch._C._dispatch_dump(func.name()))
