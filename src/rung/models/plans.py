"""From options to a plan: what computes a model's operations, on which device and in which format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rung.errors import RungError
from rung.lazy import driver, torch
from rung.models.operations import PLANS, WINDOWED, plan_rungs, roles
from rung.models.plan import ALIASES, DEVICES, DTYPES, Plan

if TYPE_CHECKING:
    from rung.rungs.base import Device

CACHES = ("int8",)  # formats of keys and values other than the dtype
BEST_SWAPS = {"decode", "sample"}  # ladders whose rungs can be chosen with the plan best


def make_plan(
    device: str,
    dtype: str | torch.dtype,
    name: str | None,
    kernels: Mapping[str, str],
    threads: int | None = None,
    window: int | None = None,
    global_tokens: int = 0,
    cache: str | None = None,
) -> Plan:
    """The plan for a device, by name, with single rungs replaced by `kernels`; auto is a GPU if there is one. With a
    `window` a token attends to the last `window` tokens, including itself, and to the text's first `global_tokens`.
    With the `cache` int8 keys and values of many texts are kept in 8 bits.
    """
    if device not in DEVICES:
        raise RungError(f"device {device!r} is not known; use one of {', '.join(DEVICES)}.")
    if device == "auto":
        device = "cuda" if driver() and torch.cuda.is_available() else "cpu"
    dtype = str(dtype).removeprefix("torch.")
    dtype = ALIASES.get(dtype, dtype)
    if dtype not in DTYPES:
        raise RungError(f"dtype {dtype!r} is not known; use one of {', '.join(DTYPES)}.")
    if name is not None and name not in PLANS:
        raise RungError(f"there is no plan {name!r}; there are {', '.join(PLANS)}.")
    if window is not None and window < 1:
        raise RungError(f"the window is {window}; it must be at least 1, the token itself.")
    if global_tokens < 0 or (global_tokens and window is None):
        raise RungError(f"{global_tokens} tokens cannot be global; give 0 or more, together with a window.")
    if cache not in (None, *CACHES):
        raise RungError(f"the cache {cache!r} is not known; use {', '.join(CACHES)}, or leave it out for the dtype's.")
    if device == "cpu":
        if cache is not None:
            raise RungError(f"the cache {cache} is available only on a GPU; choose another device, or leave it out.")
        from rung.models.cpu.plan import CpuPlan  # imported only when needed, since imports take time

        if kernels or name not in (None, "torch"):
            raise RungError("The CPU runs no rungs; choose the device emulator or cuda to choose plans and kernels.")
        return CpuPlan(dtype, threads, window, global_tokens)
    if device == "cuda" and name is None:
        if window is not None:
            name = WINDOWED
        elif set(kernels) <= BEST_SWAPS:
            name = "best"
    if name == "best":
        from rung.models.gpu.engine import GpuPlan

        if window is not None:
            raise RungError(f"the plan best attends to all tokens; choose the plan {WINDOWED} for a window.")
        other = [operation for operation in kernels if operation not in BEST_SWAPS]
        if other:
            raise RungError(
                f"the plan best runs whole steps and swaps decode and sample, not {other[0]}; choose another plan."
            )
        return GpuPlan("cuda" if device == "cuda" else "emulator", dtype, kernels, cache=cache)
    if cache is not None:
        raise RungError(f"the cache {cache} needs the plan best; choose that plan, or leave the cache out.")
    from rung.models.ladder_plan import LadderPlan

    known = [role.name for role in roles().values() if role.swaps]
    unknown = [operation for operation in kernels if operation not in known]
    if unknown:
        raise RungError(f"the model has no operation {unknown[0]!r}; it has {', '.join(known)}.")
    if window is not None and kernels.keys() & {"attention", "softmax"}:
        raise RungError("with a window attention runs on local_attention; swap its rung, or leave the window out.")
    if window is None and "local_attention" in kernels:
        raise RungError("local_attention needs a window; give a window, or swap attention.")
    name = name or "naive"
    table = plan_rungs(name, global_tokens)
    left_out = {o: roles()[o].parts for o in table if kernels.keys() & set(roles()[o].parts)}
    rungs = {o: rungs for o, rungs in table.items() if o not in left_out}
    on: Device = "cuda" if device == "cuda" else "emulator"
    plan = LadderPlan(on, dtype, name, {**rungs, **kernels}, window, global_tokens)
    for operation in left_out.keys() - kernels.keys():
        swapped = " and ".join(part for part in left_out[operation] if part in kernels)
        plan.note(f"{operation} is left out, so that the rung given for {swapped} is used.")
    return plan
