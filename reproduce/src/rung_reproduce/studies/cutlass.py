"""CUTLASS itself beside the ladder and cuBLAS: one GEMM template with a bias in its epilogue, in three tile shapes.

It needs nvcc and CUTLASS's headers: `pip install nvidia-cutlass`, or CUTLASS_PATH. Nothing else in the project does.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from rung.errors import RungError
from rung.operation import Library
from rung.rungs import catalogue
from rung.rungs.library import LibraryRung
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, need_gpu, shown

TILES = {  # columns of a tile of 128 rows -> how its warps share the work
    "128x128": (128, "Pingpong", ""),
    "128x256": (256, "Cooperative", "Cooperative"),
}
FORMATS = {"bf16": "cutlass::bfloat16_t", "f16": "cutlass::half_t"}
OURS, CUBLAS = "matmul/25_tile_order", "matmul/cublaslt"
SHAPES = ("b8t1024", "b8t1024 proj", "square 8192")


def require() -> Path:
    """The folder that holds include/ and tools/util/include/."""
    found = importlib.util.find_spec("cutlass_library")
    chosen = os.environ.get("CUTLASS_PATH") or (Path(str(found.origin)).with_name("source") if found else None)
    if chosen is None or not (Path(chosen) / "include/cutlass/cutlass.h").exists():
        raise RungError("CUTLASS's headers were not found: `pip install nvidia-cutlass`, or set CUTLASS_PATH.")
    if shutil.which("nvcc") is None:
        raise RungError("CUTLASS is compiled by nvcc, which is not on the PATH.")
    return Path(chosen)


def build(tile: str, dtype: str, folder: Path) -> Path:
    """The product in one tile shape, as a shared library for Hopper."""
    columns, kernel, epilogue = TILES[tile]
    root, out = require(), folder / f"{tile}-{dtype}.so"
    schedules = (
        f"-DSCHEDULE=cutlass::gemm::KernelTmaWarpSpecialized{kernel}",
        f"-DSCHEDULE_EPILOGUE=cutlass::epilogue::TmaWarpSpecialized{epilogue}",
    )
    words = [
        "nvcc", "-std=c++17", "-O3", "-w", "-DNDEBUG", "-gencode=arch=compute_90a,code=sm_90a",
        "--expt-relaxed-constexpr", "-shared", "-Xcompiler", "-fPIC", f"-I{root}/include",
        f"-I{root}/tools/util/include", f"-DFORMAT={FORMATS[dtype]}", f"-DCOLUMNS={columns}", *schedules,
        "-o", str(out), str(Path(__file__).with_name("cutlass_gemm.cu")),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RungError(f"nvcc could not compile CUTLASS: {done.stderr.strip()[:400]}")
    return out


def rung(tile: str, library: Path, dtype: str) -> LibraryRung:
    """The built product as one more library of the ladder, checked and raced as any."""
    product = ctypes.CDLL(str(library)).product

    @functools.cache
    def multiprocessors(device: int) -> int:
        return torch.cuda.get_device_properties(device).multi_processor_count

    def run(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, dtype: str
    ) -> torch.Tensor:
        rows, (columns, depth) = x.numel() // x.shape[-1], weight.shape
        at = [ctypes.c_void_p(t.data_ptr() if t is not None else None) for t in (x, weight, bias, out)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        failed = product(*at, rows, columns, depth, multiprocessors(x.device.index), stream)
        if failed:
            raise RungError(f"CUTLASS refused {rows} x {columns} x {depth}: status {failed}.")
        return out

    name = f"cutlass_{tile}"
    needs = ("C % 8 == 0", "OC % 8 == 0")
    return LibraryRung(catalogue.operation("matmul"), Library(name, run, (dtype,), "cuda", "CUTLASS 3.", needs=needs))


def run(runner: Runner) -> Found:
    """Times of the two tiles, of cuBLAS and of the ladder's rung, in one race for each shape."""
    need_gpu(runner, "cutlass")
    lines = []
    shapes = catalogue.operation("matmul").shapes
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        pairs = [(tile, dtype) for dtype in FORMATS for tile in TILES]
        built = dict(zip(pairs, pool.map(lambda pair: build(pair[0], pair[1], Path(folder)), pairs), strict=True))
        for dtype in FORMATS:
            theirs = [rung(tile, built[tile, dtype], dtype) for tile in TILES]
            for shape in SHAPES:
                raced = runner.race([OURS, CUBLAS, *theirs], shapes[shape], dtype)
                times = [raced[name].us for name in (catalogue.find(OURS).full_name, CUBLAS)]
                tiles = [raced[one.full_name].us for one in theirs]
                best = min((us for us in tiles if us), default=None)
                ratio = f"{times[0] / best:.2f}" if times[0] and best else ""
                lines.append((shape, dtype, *map(shown, tiles), *map(shown, times[::-1]), ratio))
    ratios = [float(line[-1]) for line in lines if line[-1]]
    found = Found(
        "x * weight^T + bias by CUTLASS, cuBLAS and the ladder",
        ("shape", "dtype", *(f"CUTLASS {tile}, us" for tile in TILES), "cublaslt, us", "ours, us", "ours / CUTLASS"),
        lines,
        f"The ladder's rung takes {min(ratios):.2f} to {max(ratios):.2f} of the time of CUTLASS's better tile."
        if ratios
        else "Times need a GPU.",
    )
    return found
