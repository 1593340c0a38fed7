"""A tensor map: bound by name, laid out as the emulator reads it, refused where the copy engine would."""

import ctypes
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpuless import tensor_map
from gpuless.tensor_map import TensorMap, packed_strides
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung

KERNEL = """/*---
idea = "Says what is inside a map."
dtypes = ["f32", "tf32", "bf16"]
[tune]
ROWS = [2, 1]
[maps.a_map]
operand = "{operand}"
dims = ["B * T", "C"]
box = ["ROWS", 4]
offset = "C"
{keys}
[[launch]]
kernel = "k"
grid = 1
block = 1
---*/
#include "tensor_map.cuh"
extern "C" __global__ void k({parameter}, const float* a, float* out)
{{
    const float* const words = reinterpret_cast<const float*>(&{name});
    for (int i = 0; i < 22; i++) out[i] = words[i];
}}
"""


def map_of(
    folder: Path,
    keys: str = "",
    dtype: str = "f32",
    operand: str = "a",
    parameter: str = "const __grid_constant__ TensorMap a_map",
) -> list[float]:
    path = folder / "mine.cu"
    path.write_text(KERNEL.format(keys=keys, operand=operand, parameter=parameter, name=parameter.split()[-1]))
    rung = CudaRung(catalogue.operation("residual"), path)
    tensors = {n: torch.zeros(2, 3, 4, dtype=DTYPES[dtype].torch) for n in ("a", "b", "out")}
    values = rung.operation.complete({"B": 2, "T": 3, "C": 4})
    rung.prepare(tensors, values, DTYPES[dtype], device="emulator").run()
    magic, address, *rest = struct.unpack("<QQ4Q5I", bytes(tensors["out"].view(torch.uint8).flatten()[:68]))
    return [float(magic != 0), address - tensors["a"].data_ptr() if magic else 0, *map(float, rest)]


def test_what_the_header_says_is_inside(tmp_path: Path) -> None:
    assert map_of(tmp_path) == [1, 16, 16, 0, 0, 0, 4, 6, 1, 1, 1]
    assert map_of(tmp_path, 'swizzle = 32\nstrides = ["2 * C"]')[2] == 32


def test_an_unused_map_is_zeros(tmp_path: Path) -> None:
    assert map_of(tmp_path, 'when = "T == 2"\nstrides = ["C + 1"]')[:3] == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operand": "c"}, "'c', which does not exist; there are a, b, out"),
        ({"parameter": "const __grid_constant__ TensorMap other"}, "'other'.*there are a_map"),
        ({"parameter": "TensorMap a_map"}, "__grid_constant__"),
        ({"keys": 'strides = ["C + 1"]'}, "strides .*multiples of 16"),
        ({"keys": "swizzle = 48"}, "swizzle is one of"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(RungError, match=message):
        map_of(tmp_path, **change)


def test_what_the_copy_engine_refuses_is_refused_before() -> None:
    tensor = torch.zeros(64, 128, dtype=torch.bfloat16)
    good = TensorMap("m", tensor, (64, 128), (128,), (64, 64), swizzle=128)
    assert len(good.emulated()) == 128
    for change, message in (
        ({"box": (64, 128)}, "row of its box has 256 bytes"),
        ({"box": (512, 64)}, "not between 1 and 256"),
        ({"offset": 1}, "no multiple of 16"),
        ({"dims": (2, 2, 2, 2, 2, 2)}, "6 dimensions"),
        ({"box": (64,)}, "as many sizes"),
        ({"tensor": tensor.to(torch.complex64)}, "no elements of torch.complex64"),
        ({"dims": (0, 128)}, "between 1 and"),
    ):
        with pytest.raises(RungError, match=message):
            replace(good, **change)  # type: ignore[arg-type]


def test_the_driver_gets_sizes_fastest_first_and_room_where_it_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(64, 128)
    encoded: list[tuple[object, ...]] = []

    def encode(room: int, kind: int, rank: int, address: int, *rest: object) -> int:
        arrays = [list(a)[: rank - 1 if i == 1 else rank] for i, a in enumerate(rest[:4])]  # type: ignore[call-overload]
        encoded.append((kind, address - tensor.data_ptr(), *arrays, *rest[4:]))
        assert room % 64 == 0
        ctypes.memset(room, 0x5A, 128)
        return 0

    monkeypatch.setattr(tensor_map, "_driver_function", lambda: encode)
    made = TensorMap("m", tensor, (64, 64), (128,), (16, 32), offset=64, swizzle=128, promotion=256, fill="nan", tf32=True)
    assert made.encode() == b"\x5a" * 128
    # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, and after the sizes: no interleaving, swizzle of 128, promotion of 256, NaN
    assert encoded == [(11, 256, [64, 64], [512], [32, 16], [1, 1], 0, 3, 3, 1)]
    monkeypatch.setattr(tensor_map, "_driver_function", lambda: lambda *_: 1)
    with pytest.raises(RungError, match=r"maps\.m cannot be encoded: the driver returns CUDA_ERROR_INVALID_VALUE"):
        made.encode()


def test_strides_without_gaps() -> None:
    assert packed_strides((7,)) == ()
    assert packed_strides((2, 3, 4, 5)) == (60, 20, 5)
