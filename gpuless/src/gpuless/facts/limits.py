"""Limits of each GPU architecture (threads, registers, shared memory), and a kernel's occupancy.

Figures: gpus.toml. Allocation units and rounding: `cuda_occupancy.h` of CUDA 13.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuless.base.errors import UserError
from gpuless.facts import gpus
from gpuless.launch import LaunchConfig

WARP = 32
KIB = 1024
DEFAULT_SHARED = 48 * KIB  # static, and dynamic without opting in, on every architecture
_REGISTER_UNIT = 256  # registers are allocated to warps in units of this many
_PARTITIONS = 4  # per multiprocessor, each with a quarter of the registers
_SHARED_UNIT = 128  # bytes
GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)
THREADS_BLOCK = 1024  # on every architecture
_PORTABLE_CLUSTER = 8
_LARGEST_CLUSTER = 16  # sm_90 and later data-centre parts, when the kernel opts in


@dataclass(frozen=True)
class Limits:
    """Limits per multiprocessor (`_sm`) and per block, in threads, blocks, 32-bit registers and bytes."""

    arch: str
    threads_sm: int
    blocks_sm: int
    shared_sm: int
    shared_block: int  # with opt-in; without, 48 KiB
    shared_reserved: int  # reserved by the system in every block's share
    registers_sm: int = 65536
    registers_block: int = 65536
    registers_thread: int = 255
    threads_block: int = THREADS_BLOCK

    @property
    def warps_sm(self) -> int:
        return self.threads_sm // WARP

    @property
    def clusters(self) -> bool:
        return _capability(self.arch) >= 90


def limits(arch: str) -> Limits:
    """The limits of `arch`; "sm_90a" has those of "sm_90"."""
    name, known = re.sub(r"[af]$", "", arch), gpus.architectures()
    if name not in known:
        raise UserError(f"The limits of '{arch}' are not known: choose one of {', '.join(known)}.")
    row = known[name]
    shared, reserved = row["shared_kib"] * KIB, row.get("reserved_kib", 1) * KIB
    return Limits(name, row["threads"], row["blocks"], shared, shared - reserved, reserved)


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps resident on a multiprocessor, the fraction of its warp slots, and what limits them."""

    blocks: int
    warps: int
    fraction: float
    limiter: str  # "threads", "registers", "shared memory", "blocks", or "does not fit" for what cannot launch


def occupancy(arch: str | Limits, threads: int, registers: int, shared: int) -> Occupancy:
    """Occupancy of blocks of `threads`, each of `registers`; `shared` is static plus dynamic bytes."""
    at = limits(arch) if isinstance(arch, str) else arch
    possible = _possible_blocks(at, threads, registers, shared)
    blocks = min(possible.values())
    if blocks == 0:
        return Occupancy(0, 0, 0.0, "does not fit")
    limiter = next(name for name, count in possible.items() if count == blocks)
    warps = blocks * _warps(threads)
    return Occupancy(blocks, warps, warps / at.warps_sm, limiter)


def _possible_blocks(at: Limits, threads: int, registers: int, shared: int) -> dict[str, int]:
    """Resident blocks that each resource alone would allow; on a tie the earlier one is named."""
    warps = _warps(threads)
    by_threads = at.warps_sm // warps if 0 < threads <= at.threads_block else 0
    return {
        "threads": by_threads,
        "registers": _blocks_by_registers(at, warps, registers),
        "shared memory": _blocks_by_shared(at, shared),
        "blocks": at.blocks_sm,
    }


def _blocks_by_registers(at: Limits, warps: int, registers: int) -> int:
    if registers == 0:
        return at.blocks_sm
    a_warp = _round_up(registers * WARP, _REGISTER_UNIT)
    # The hardware admits a block as if its warps were distributed evenly over all four partitions.
    if registers > at.registers_thread or a_warp * _round_up(warps, _PARTITIONS) > at.registers_block:
        return 0
    return at.registers_sm // _PARTITIONS // a_warp * _PARTITIONS // warps


def _blocks_by_shared(at: Limits, shared: int) -> int:
    if shared > at.shared_block:
        return 0
    used = _round_up(shared + at.shared_reserved, _SHARED_UNIT)
    return at.shared_sm // used if used else at.blocks_sm


def hint(arch: str, threads: int, registers: int, shared: int) -> str:
    """A change that would allow more resident warps; empty if nothing limits them."""
    at = limits(arch)
    now = occupancy(at, threads, registers, shared)
    if now.limiter == "does not fit":
        return "cannot launch: " + _largest_excess(at, threads, registers, shared)
    if now.fraction >= 1:
        return ""
    if now.limiter == "registers":
        fewer = _first(range(registers - 1, 15, -1), lambda r: occupancy(at, threads, r, shared).warps > now.warps)
        return f"at most {fewer} registers per thread" if fewer else ""
    if now.limiter == "shared memory":
        step = range(shared // _SHARED_UNIT * _SHARED_UNIT, -1, -_SHARED_UNIT)
        less = _first(step, lambda s: occupancy(at, threads, registers, s).warps > now.warps)
        return f"at most {less} bytes of shared memory per block" if less is not None else ""
    sizes = sorted((t for t in range(WARP, 1025, WARP) if t != threads), key=lambda t: (abs(t - threads), t))
    better = _first(sizes, lambda t: occupancy(at, t, registers, shared).warps > now.warps)
    return f"blocks of {better} threads" if better else ""


def _first(candidates: Iterable[int], good: Callable[[int], bool]) -> int | None:
    return next((c for c in candidates if good(c)), None)


def _largest_excess(at: Limits, threads: int, registers: int, shared: int) -> str:
    if threads > at.threads_block:
        return f"{threads} threads per block, {at.threads_block} are allowed"
    if shared > at.shared_block:
        return f"{shared} bytes of shared memory per block, {at.shared_block} are allowed"
    most = at.registers_block // (_round_up(_warps(threads), _PARTITIONS) * WARP)
    return f"{registers} registers per thread, {most} are allowed in a block of {threads}"


def refusal(
    at: Limits, config: LaunchConfig, registers: int = 0, static_shared: int = 0, threads_kernel: int = THREADS_BLOCK
) -> str | None:
    """Why this launch would fail on this GPU, as the end of a sentence, or None; calls no driver."""
    for axis, size, most in zip("xyz", config.grid, GRID, strict=True):
        if not 1 <= size <= most:
            return f"its grid has {size} blocks along {axis}, but 1 to {most} are allowed"
    for axis, size, most in zip("xyz", config.block, _BLOCK, strict=True):
        if not 1 <= size <= most:
            return f"its block has {size} threads along {axis}, but 1 to {most} are allowed"
    if config.threads > at.threads_block:
        return f"its block has {config.threads} threads, but at most {at.threads_block} are allowed"
    shared = static_shared + config.shared
    if shared > at.shared_block or config.shared < 0:
        return (
            f"a block needs {shared} bytes of shared memory ({static_shared} static, {config.shared} dynamic)"
            f", but {at.arch} has {at.shared_block}"
        )
    if config.threads > threads_kernel:
        return (
            f"its block has {config.threads} threads, and this kernel ({registers} registers per thread, or "
            f"its __launch_bounds__) allows {threads_kernel}"
        )
    if registers and _blocks_by_registers(at, _warps(config.threads), registers) == 0:
        return f"{config.threads} threads of {registers} registers exceed a block's {at.registers_block}"
    return _cluster_refusal(at, config)


def _cluster_refusal(at: Limits, config: LaunchConfig) -> str | None:
    if config.cluster is None:
        return None
    x, y, z = config.cluster
    if not at.clusters:
        return f"it uses a cluster of {x * y * z} blocks, but {at.arch} has no clusters (sm_90 and later do)"
    if min(config.cluster) < 1 or x * y * z > _LARGEST_CLUSTER:
        return f"its cluster of {x}x{y}x{z} blocks is outside 1 to {_LARGEST_CLUSTER}"
    for axis, size, part in zip("xyz", config.grid, config.cluster, strict=True):
        if size % part:
            return f"its grid of {size} blocks along {axis} is not a multiple of the cluster's {part}"
    return None


def portable_cluster(config: LaunchConfig) -> bool:
    """Larger clusters need an attribute of the kernel."""
    x, y, z = config.cluster or (1, 1, 1)
    return x * y * z <= _PORTABLE_CLUSTER


def _capability(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def _warps(threads: int) -> int:
    return max(1, -(-threads // WARP))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
