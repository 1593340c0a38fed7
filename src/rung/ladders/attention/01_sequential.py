"""Plain C++ on one core of the CPU, the formula loop by loop; operands on a GPU are copied to the host and back."""

import ctypes
import functools
import subprocess
from pathlib import Path

import torch

from gpuless.base import disk_cache
from gpuless.compile import toolchain

EXPECT = "The first baseline: every GPU rung is compared with it once."
FOUND = (
    "999 us for one head of 256 queries, 3.93 ms of 512, 14.2 ms of 1024, 57.2 ms of 2048, 3.50 ms at b4t64, on "
    "one core of a Xeon in the H200's host, copies included. Not the slowest rung of the ladder: that is the next one."
)
PROVENANCE = "15-418 attention milestone: the sequential version against which its GPU kernels were checked."
MODEL = {"serves": {"any": 3}}
DTYPES = ["f32"]

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC")


@functools.cache
def _library() -> ctypes.CDLL:
    def make(work: Path) -> tuple[Path, None]:
        target = work / "sequential.so"
        subprocess.run([toolchain.require(), *FLAGS, str(SOURCE), "-o", str(target)], cwd=work, check=True)
        return target, None

    key = toolchain.key(FLAGS, SOURCE.read_text(encoding="utf-8"))
    return ctypes.CDLL(str(disk_cache.kept("native", f"attention-sequential-{key}", make).path))


def run(
    qkv: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    B: int,
    T: int,
    NH: int,
    HS: int,
    scale: float,
    causal: int,
) -> None:
    here = [t if t is None or t.device.type == "cpu" else t.cpu() for t in (qkv, out, lse)]
    pointers = [None if t is None else ctypes.c_void_p(t.data_ptr()) for t in here]
    _library().attention(*pointers, B, T, NH, HS, ctypes.c_float(scale), causal)
    for result, made in zip((out, lse), here[1:], strict=True):
        if result is not None and made is not None and made is not result:
            result.copy_(made)
