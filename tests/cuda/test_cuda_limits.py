"""Occupancy against values worked out by hand, and launches that a GPU would refuse."""

from pathlib import Path

import pytest

from gpuless.facts import gpus
from gpuless.facts.limits import hint, limits, occupancy, refusal
from gpuless.launch import LaunchConfig
from rung.dtypes import dtype
from rung.errors import RungError
from rung.operation import Values
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limiter"),
    [
        # 256 threads are 8 warps. sm_90 has 64 warp slots: 8 blocks.
        ("sm_90", 256, 32, 0, 8, "threads"),
        # 40 registers: 1280 a warp. A quarter of 65536 holds 12 such warps, four quarters 48: 6 blocks.
        ("sm_90", 256, 40, 0, 6, "registers"),
        # 33 registers round up to 40 (units of 256 a warp): 1024 threads are 32 warps, 48 fit: 1 block.
        ("sm_90", 1024, 33, 0, 1, "registers"),
        # One warp a block: 32 blocks are the most that an sm_90 multiprocessor holds.
        ("sm_90", 32, 32, 0, 32, "blocks"),
        # 100000 + 1024 reserved round to 101120: twice into 233472.
        ("sm_90", 128, 32, 100000, 2, "shared memory"),
        # The largest block: 227 KiB, and the kibibyte that the system keeps.
        ("sm_90", 128, 32, 232448, 1, "shared memory"),
        ("sm_90", 128, 32, 232449, 0, "does not fit"),
        # sm_75 keeps nothing back: 32768 fit twice into 65536; with one byte more only once.
        ("sm_75", 128, 32, 32768, 2, "shared memory"),
        ("sm_75", 128, 32, 32769, 1, "shared memory"),
        # 48 warp slots: one block of 1024 threads, and four of 384.
        ("sm_86", 1024, 32, 0, 1, "threads"),
        ("sm_86", 384, 32, 0, 4, "threads"),
        ("sm_86", 32, 32, 0, 16, "blocks"),
        ("sm_89", 32, 32, 0, 24, "blocks"),
        ("sm_120", 64, 32, 0, 24, "threads"),
        # 255 registers: 8192 a warp; 8 warps in all, of which a block of 6 is checked as if it had 8.
        ("sm_80", 192, 255, 0, 1, "registers"),
        ("sm_80", 288, 255, 0, 0, "does not fit"),
        # A block that is no multiple of 32 pays for whole warps: 33 threads are 2 warps.
        ("sm_80", 33, 32, 0, 32, "threads"),
        ("sm_100", 1025, 32, 0, 0, "does not fit"),
    ],
)
def test_occupancy_worked_out_by_hand(
    arch: str, threads: int, registers: int, shared: int, blocks: int, limiter: str
) -> None:
    found = occupancy(arch, threads, registers, shared)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.warps == blocks * -(-threads // 32)
    assert found.fraction == found.warps / limits(arch).warps_sm


@pytest.mark.parametrize("arch", gpus.architectures())
def test_a_lean_kernel_fills_every_architecture(arch: str) -> None:
    # 512 divides the threads of every multiprocessor, and 32 registers are at most the share of each thread.
    assert occupancy(arch, 512, 32, 0).fraction == 1.0


def test_what_the_hint_promises_comes_true() -> None:
    assert hint("sm_90", 256, 40, 0) == "at most 32 registers per thread"
    assert occupancy("sm_90", 256, 32, 0).warps > occupancy("sm_90", 256, 33, 0).warps
    assert hint("sm_90", 32, 32, 0) == "blocks of 64 threads"
    less = int(hint("sm_90", 128, 32, 100000).split()[2])
    assert occupancy("sm_90", 128, 32, less).blocks == 3
    assert occupancy("sm_90", 128, 32, less + 128).blocks == 2
    assert hint("sm_90", 256, 32, 0) == ""
    assert hint("sm_90", 1024, 100, 0).startswith("cannot launch: 100 registers per thread, 64 are allowed")


def test_architecture_suffixes_share_limits_and_unknown_ones_are_reported() -> None:
    assert limits("sm_90a") == limits("sm_90")
    with pytest.raises(RungError, match=r"limits of 'sm_60' are not known: choose one of sm_75"):
        limits("sm_60")


@pytest.mark.parametrize(
    ("config", "arch", "reason"),
    [
        (LaunchConfig((0, 1, 1), (32, 1, 1)), "sm_90", "0 blocks along x"),
        (LaunchConfig((1, 65536, 1), (32, 1, 1)), "sm_90", "65536 blocks along y"),
        (LaunchConfig((1, 1, 1), (32, 1, 65)), "sm_90", "65 threads along z"),
        (LaunchConfig((1, 1, 1), (64, 32, 1)), "sm_90", "2048 threads, but at most 1024 are allowed"),
        (LaunchConfig((1, 1, 1), (32, 1, 1), shared=102400), "sm_86", "102400 bytes of shared memory"),
        (LaunchConfig((4, 1, 1), (32, 1, 1), cluster=(2, 1, 1)), "sm_89", "sm_89 has no clusters"),
        (LaunchConfig((3, 1, 1), (32, 1, 1), cluster=(2, 1, 1)), "sm_90", "not a multiple of the cluster's 2"),
        (LaunchConfig((32, 1, 1), (32, 1, 1), cluster=(32, 1, 1)), "sm_90", "cluster of 32x1x1"),
        (LaunchConfig((2**31 - 1, 65535, 65535), (1024, 1, 1), shared=232448), "sm_90", None),
        (LaunchConfig((4, 4, 1), (32, 1, 1), cluster=(2, 2, 1)), "sm_90", None),
    ],
)
def test_a_launch_beyond_the_hardware_is_refused_with_its_reason(
    config: LaunchConfig, arch: str, reason: str | None
) -> None:
    found = refusal(limits(arch), config)
    assert reason in found if reason and found else found == reason


def test_registers_and_launch_bounds_limit_the_block() -> None:
    at, config = limits("sm_90"), LaunchConfig((1, 1, 1), (1024, 1, 1))
    assert "exceed a block's 65536" in str(refusal(at, config, registers=72))
    assert "__launch_bounds__) allows 256" in str(refusal(at, config, registers=32, threads_kernel=256))
    assert refusal(at, config, registers=64) is None


KERNEL = """/*---
idea = "More shared memory than its header says."
dtypes = ["f32"]
[[launch]]
kernel = "k"
grid = 1
block = 32
shared = 200000
---*/
#include "rung.cuh"
extern "C" __global__ void k(const Real* a, const Real* b, Real* out)
{
    __shared__ Real own[STATIC];
    own[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = own[31 - threadIdx.x] + b[0];
}
"""


def test_shared_memory_that_only_the_compiled_code_shows_counts(tmp_path: Path) -> None:
    values: Values = {"B": 1, "T": 1, "C": 32}
    for static, reason in ((8000, None), (9000, "36000 static, 200000 dynamic")):
        path = tmp_path / f"with_{static}.cu"
        path.write_text(KERNEL.replace("STATIC", str(static)))
        rung = catalogue.rung_from_file(catalogue.operation("residual"), path)
        assert isinstance(rung, CudaRung) and rung.refusal(values, dtype("f32")) is None
        found = rung.unfit(values, dtype("f32"), None, "sm_90")
        assert reason in found if reason and found else found == reason
