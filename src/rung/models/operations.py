"""The operations that models are made of, and the rungs that serve them. Operations state their roles, and rungs what
they serve and how well (`model.serves` in a header, `serves` of a library): here are only the purposes. A family names
the rungs of whole steps (gpt2/rungs.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpuless.base.expressions import Number, evaluate, names_in
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.lazy import torch

if TYPE_CHECKING:
    from rung.operation import Role
    from rung.rungs.base import Device, Rung

# Operation -> rungs, as `rung list` names them: the first that has the dtype is used. If it does not support the shape,
# one of those after it is used, or else the highest of the ladder that does, with a note. Other operations run through
# torch.
Rungs = Mapping[str, tuple[str, ...]]
# Plans whose rungs state it. Where none does for an operation, those of the plan before it serve.
NAIVE, LIBRARY, STAGES = "naive", "library", ("reduction", "tiled", "tensorcore", "flash", "fused")
PLANS = ("torch", "best", LIBRARY, NAIVE, *STAGES)
WINDOWED = "fused"  # the plan on a GPU when a window is requested and no plan is named
ALIGNMENT = 32  # bytes; WMMA needs the most


class Table(Mapping[str, tuple[str, ...]]):
    """The rungs of each operation that serve a purpose, best first: ranks are expressions over `names`, 0 is none. A
    rung whose `needs` these names contradict is left out. Ladders are read when they are asked for."""

    def __init__(self, purposes: tuple[str, ...], names: Mapping[str, Number], *, dtype: str = "", whole: bool = False):
        self._purposes, self._names, self._dtype, self._whole = purposes, names, dtype, whole
        self._found: dict[str, tuple[str, ...]] = {}

    def _serving(self, purpose: str, operation: str) -> list[str]:
        from rung.rungs import catalogue  # not needed on a CPU, which runs no rungs

        ranked = []
        for number, rung in enumerate(catalogue.rungs(ladder_of(operation))):
            rank = rung.header.model.serves.get(purpose, 0)
            if not rank or (self._dtype and self._dtype not in rung.dtypes) or role_of(rung) != operation:
                continue
            known = [rule for rule in rung.needs if names_in(rule) <= self._names.keys()]
            if (value := evaluate(rank, self._names)) and all(evaluate(rule, self._names) for rule in known):
                ranked.append((value, number, rung.name))
        return [name for *_, name in sorted(ranked)]

    def __getitem__(self, operation: str) -> tuple[str, ...]:
        if operation not in self._found:
            each = (self._serving(purpose, operation) for purpose in self._purposes)
            several = [names for names in each if names]
            self._found[operation] = tuple(name for names in several[: None if self._whole else 1] for name in names)
        if not self._found[operation]:
            raise KeyError(operation)
        return self._found[operation]

    def __iter__(self) -> Iterator[str]:
        return (operation for operation in roles() if operation in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def plan_rungs(plan: str, global_tokens: int = 0) -> Rungs:
    """The rungs of a plan that calls the operations one by one."""
    before = STAGES[: STAGES.index(plan) + 1][::-1] if plan in STAGES else (plan,)
    return Table(before, {"globals": global_tokens})


def prefill_rungs(device: Device, dtype: str, tokens: int) -> Rungs:
    """Operation -> rungs for prompts of this many tokens in total, padding included. On the emulator a prompt would
    take minutes: torch's calls replace the kernels, through the same ladders."""
    return Table(("prompt" if device == "cuda" else "emulated",), _known(device, dtype, tokens), dtype=dtype)


def step_rungs(device: Device, dtype: str, rows: int) -> Rungs:
    """Operation -> rungs for a step of this many rows that is made of the operations."""
    purposes = ("step", "prompt" if device == "cuda" else "emulated")
    return Table(purposes, _known(device, dtype, rows), dtype=dtype, whole=True)


def score_rungs(device: Device) -> tuple[str, ...]:
    """Rungs of token_logprob, the fastest first."""
    return Table(("score",), _known(device, "", 0))["token_logprob"]


def sample_rungs() -> tuple[str, ...]:
    """Rungs of sample, the fastest on an H200 first. The last ones keep a row in memory, for GPUs and vocabularies with
    which it does not fit on chip."""
    return Table(("sample",), {})["sample"]


@cache
def last_resort(operation: str) -> tuple[str, ...]:
    """Rungs that support every shape, for when none of a table's rungs does; none where torch or parts do it then."""
    return Table(("any",), {}).get(operation, ())


def _known(device: Device, dtype: str, rows: int) -> dict[str, Number]:
    return {"gpu": int(device == "cuda"), "rows": rows, **{name: int(name == dtype) for name in DTYPES}}


def roles() -> dict[str, Role]:
    """Operations of models by name."""
    return {role.name: role for _, role in _roles(_ladders())}


def _ladders() -> tuple[str, ...]:
    from rung.operation import folders  # like the catalogue, for rungs alone

    return tuple(folders())


@cache
def _roles(ladders: tuple[str, ...]) -> list[tuple[str, Role]]:
    from rung.rungs.operations import operation

    return [(name, role) for name in ladders for role in operation(name).roles]


def ladder_of(operation: str) -> str:
    """The ladder with an operation's rungs."""
    known = _ladders()
    return operation if operation in known else next(n for n, role in _roles(known) if role.name == operation)


def role_of(rung: Rung) -> str:
    """What a rung is in a model."""
    fitting = [role for role in rung.operation.roles if not role.operand or role.operand in rung.binds]
    return max(fitting, key=lambda role: len(role.operand)).name if fitting else rung.operation.name


@cache
def find(operation: str, name: str) -> Rung:
    """The rung that serves an operation of the model, by its name in the ladder or as a file."""
    from rung.rungs import catalogue

    ladder = ladder_of(operation)
    if name.endswith((".cu", ".py")):
        rung = catalogue.rung_from_file(catalogue.operation(ladder), Path(name))
    else:
        rung = catalogue.find(f"{ladder}/{name}")
    if role_of(rung) != operation:
        (operand,) = {role.operand for role in rung.operation.roles} - {""}
        does = f"takes a {operand}" if operand in rung.binds else f"takes no {operand}"
        raise RungError(f"{rung.full_name} {does}; it serves as {role_of(rung)}={name}.")
    return rung


def dims_of(x: torch.Tensor) -> dict[str, Number]:
    """(B, T, C) by name."""
    B, T, C = x.shape
    return {"B": B, "T": T, "C": C}


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy if it is misaligned for the kernels, which read 16 bytes at a time. A tensor in a mapped
    file, or a layer of odd width, may start at any address.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
