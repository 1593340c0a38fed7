"""A kernel's parameters are bound by name and type; what cannot be bound is named."""

from pathlib import Path

import pytest
import torch

from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.rungs import catalogue
from rung.rungs.base import Prepared
from rung.rungs.cuda import CudaRung

F32 = DTYPES["f32"]

TEMPLATE = """/*---
idea = "A test."
dtypes = ["f32", "bf16"]
{keys}
[[launch]]
kernel = "k"
grid = 1
block = 1
{launch}
---*/
extern "C" __global__ void k({parameters}) {{ {body} }}
"""


def prepared(
    folder: Path, parameters: str, body: str, keys: str = "", launch: str = "", dtype: str = "f32"
) -> Prepared:
    path = folder / "mine.cu"
    path.write_text(TEMPLATE.format(parameters=parameters, body=body, keys=keys, launch=launch))
    rung = CudaRung(catalogue.operation("residual"), path)
    kind = DTYPES[dtype].torch
    tensors = {n: torch.full((2, 3, 4), float(i), dtype=kind) for i, n in enumerate(("a", "b", "out"))}
    values = rung.operation.complete({"B": 2, "T": 3, "C": 4})
    done = rung.prepare(tensors, values, DTYPES[dtype], device="emulator")
    done.run()
    done.buffers["out"] = tensors["out"]
    return done


def test_names_types_and_expressions_arrive(tmp_path: Path) -> None:
    done = prepared(
        tmp_path,
        "const float* __restrict__ first, float* out, int N, long long rows, float third, unsigned stride, "
        "bool yes",
        "out[0] = N; out[1] = rows; out[2] = third; out[3] = stride; out[4] = yes ? first[0] + 7 : 0;",
        keys='[bind]\nfirst = "b"\nN = "B * T * C"\nrows = "B * T"\nthird = "C / 3"\n'
        'stride = "a_stride_T"\nyes = "T == 3"',
    )
    assert done.buffers["out"].flatten()[:5].tolist() == pytest.approx([24, 6, 4 / 3, 4, 8])


def test_a_buffer_is_made_cleared_and_bound(tmp_path: Path) -> None:
    done = prepared(
        tmp_path,
        "float* scratch, float* out, int C",
        "scratch[C] += 1; out[0] = scratch[C] + scratch[0];",
        keys='[buffers.scratch]\nshape = ["B", "C"]\ndtype = "f32"\nzero = true',
    )
    assert done.buffers["scratch"].shape == (2, 4)
    done.run()  # cleared before every run: the count stays at one
    assert float(done.buffers["out"].flatten()[0]) == 1.0


def test_launches_repeat_with_each(tmp_path: Path) -> None:
    done = prepared(
        tmp_path, "float* out, int layer", "out[layer] = layer + 10;", launch='each = { layer = "C" }'
    )
    assert done.buffers["out"].flatten()[:4].tolist() == [10, 11, 12, 13]
    assert len(done.launches) == 4


def test_constant_memory_is_filled_before_the_launch(tmp_path: Path) -> None:
    path = tmp_path / "constant.cu"
    path.write_text(
        '/*---\nidea = "c"\n[constants]\nb = "held"\n[[launch]]\nkernel = "k"\ngrid = 1\nblock = 1\n---*/\n'
        "__constant__ float held[64];\n"
        'extern "C" __global__ void k(float* out) { out[0] = held[0] + held[5]; }\n'
    )
    rung = CudaRung(catalogue.operation("residual"), path)
    tensors = {n: torch.arange(6.0).view(1, 1, 6) for n in ("a", "b", "out")}
    tensors["out"] = torch.zeros(1, 1, 6)
    values = rung.operation.complete({"B": 1, "T": 1, "C": 6})
    rung.prepare(tensors, values, F32, device="emulator").run()
    assert float(tensors["out"][0, 0, 0]) == 5.0
    assert "b" in rung.binds
    large = {n: torch.zeros(1, 1, 65) for n in ("a", "b", "out")}
    with pytest.raises(RungError, match="held"):
        rung.prepare(large, rung.operation.complete({"B": 1, "T": 1, "C": 65}), F32, device="emulator")


@pytest.mark.parametrize(
    ("parameters", "keys", "message"),
    [
        ("float* out, const float* x", "", "'x'.*no operand .a, b, out.; map it"),
        ("float* out, int n", "", "'n'.*no value .a, b, out; B, T, C"),
        ("float* out, int n", '[bind]\nn = "Q + 1"', "'Q'"),
        ("float* out, const int* a", "", "holds f32"),
        ("float* out, struct Thing a", "", "cannot be passed|Thing"),
        ("float* out, const Thing* a", "", "Thing"),
        ("float* out, int n", '[bind]\nn = "C / 3"', "whole number"),
        ("float* out, int n", '[bind]\nn = "B << 40"', "cannot hold"),
        ("float* out", 'needs = "C >= 8"', "needs C >= 8"),
        ("float* out", '[tune]\nBLOCK = ["x"]', "tune.BLOCK"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, parameters: str, keys: str, message: str) -> None:
    with pytest.raises(RungError, match=message):
        prepared(tmp_path, parameters, "out[0] = 1;", keys)


def test_a_float_pointer_does_not_pass_for_bf16(tmp_path: Path) -> None:
    with pytest.raises(RungError, match="points to float, but the tensor holds bf16"):
        prepared(tmp_path, "float* out", "out[0] = 1;", dtype="bf16")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_real_is_the_format_also_without_the_ladders_header(tmp_path: Path, dtype: str) -> None:
    done = prepared(tmp_path, "const Real* b, Real* out", "out[1] = (Real)((float)b[3] + 7.f);", dtype=dtype)
    assert float(done.buffers["out"].flatten()[1]) == 8.0


def test_numbers_that_are_only_moved_may_be_moved_as_integers(tmp_path: Path) -> None:
    path, text = tmp_path / "mine.cu", TEMPLATE.replace('"f32", "bf16"', '"f16"')
    path.write_text(text.format(parameters="const short* x, short* out", body="out[0] = x[0];", keys="", launch=""))
    rung = CudaRung(catalogue.operation("copy"), path)
    tensors = {"x": torch.tensor([-1.5], dtype=torch.float16), "out": torch.zeros(1, dtype=torch.float16)}
    values = rung.operation.complete({"N": 1})
    rung.prepare(tensors, values, DTYPES["f16"], device="emulator").run()
    assert float(tensors["out"]) == -1.5


def test_an_unknown_tunable_is_named() -> None:
    rung = catalogue.find("residual/01_naive")
    with pytest.raises(RungError, match="no tunable 'BLOK'; it has BLOCK"):
        rung.tuned({"BLOK": 64})


def test_rungs_are_found_by_number_name_and_library() -> None:
    for spec in ("residual/01_naive", "residual/naive", "residual/1", "residual/01"):
        assert catalogue.find(spec).full_name == "residual/01_naive"
    assert catalogue.find("residual/torch").kind == "library"
    with pytest.raises(RungError, match="did you mean 01_naive"):
        catalogue.find("residual/01_naiv")
    with pytest.raises(RungError, match="did you mean residual"):
        catalogue.find("residul/1")


@pytest.mark.parametrize("operation", catalogue.operations())
def test_libraries_give_every_output_that_an_operation_requires(operation: str) -> None:
    of = catalogue.operation(operation)
    outputs = {o.name for o in of.operands if o.written and o.name in of.required}
    for library in catalogue.rungs(operation):
        assert library.kind != "library" or outputs <= library.binds, library.name
