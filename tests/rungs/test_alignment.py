"""A view at an odd offset is refused by kernels with vector loads, before anything runs, and taken by the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rung.dtypes import DTYPES, element
from rung.errors import RungError
from rung.operation import Tensors, Values
from rung.rungs import alignment, catalogue
from rung.rungs.base import Rung

F32 = DTYPES["f32"]
VALUES = {"B": 1, "T": 2, "C": 32}
KERNEL = """/*---
idea = "Four at a time."
dtypes = ["f32", "bf16"]
{keys}
[[launch]]
kernel = "k"
grid = 1
block = 1
---*/
{include}
extern "C" __global__ void k(const {pointee}* x, {pointee}* out) {{ {body} }}
"""
QUADS = {
    "include": "#include <vector_types.h>",
    "pointee": "float",
    "body": "*reinterpret_cast<float4*>(out) = *reinterpret_cast<const float4*>(x);",
}
ALONE = {"include": "// as float4 would", "pointee": "float", "body": "out[0] = x[0];"}


def custom(folder: Path, *, keys: str = "", include: str, pointee: str, body: str) -> Rung:
    path = folder / "mine.cu"
    path.write_text(KERNEL.format(keys=keys, include=include, pointee=pointee, body=body))
    return catalogue.rung_from_file(catalogue.operation("gelu"), path)


def shifted(*, x: int = 0, out: int = 0) -> tuple[Tensors, Values]:
    """Operands of gelu that start so many numbers after a 16-byte boundary."""
    made = {}
    for name, offset in (("x", x), ("out", out)):
        whole = torch.linspace(-3, 3, 64 + 8)
        assert whole.data_ptr() % 64 == 0
        made[name] = whole[offset : offset + 64].view(1, 2, 32)
    return made, catalogue.operation("gelu").complete(VALUES)


@pytest.mark.parametrize(("name", "offset"), [("x", 1), ("out", 2)])
def test_a_view_that_vector_loads_would_fault_on_is_refused_with_a_rung_that_would_do(name: str, offset: int) -> None:
    tensors, values = shifted(**{name: offset})
    message = rf"gelu/04_in_flight needs {name} to start at a multiple of 16 bytes.*; gelu/05_triton would do\."
    with pytest.raises(RungError, match=message) as refused:
        catalogue.find("gelu/04").prepare(tensors, values, F32, device="emulator")
    assert "\n" not in str(refused.value)


def test_the_same_view_goes_through_a_rung_without_vectors() -> None:
    tensors, values = shifted(x=1, out=3)
    catalogue.find("gelu/01").prepare(tensors, values, F32, device="emulator").run()
    expected = torch.nn.functional.gelu(tensors["x"], approximate="tanh")
    assert torch.allclose(tensors["out"], expected, atol=1e-5)


def test_what_the_rule_prevents_is_a_fault(tmp_path: Path) -> None:
    rung = custom(tmp_path, keys="align = 1", **QUADS)
    tensors, values = shifted(x=1)
    with pytest.raises(RungError, match="no multiple of 16"):
        rung.prepare(tensors, values, F32, device="emulator").run()
    tensors, values = shifted(x=4)
    rung.prepare(tensors, values, F32, device="emulator").run()
    assert torch.equal(tensors["out"].flatten()[:4], tensors["x"].flatten()[:4])


def test_the_header_may_ask_for_more_or_less_than_its_code_tells(tmp_path: Path) -> None:
    tensors, values = shifted(x=4)  # 16 bytes on
    assert custom(tmp_path, **QUADS).refusal(values, F32, None, tensors) is None
    wide = custom(tmp_path, keys='align = "8 * sizeof_real"', **QUADS)
    assert "multiple of 32 bytes" in str(wide.refusal(values, F32, None, tensors))
    with pytest.raises(RungError, match="align = True is not an expression"):
        custom(tmp_path, keys="align = true", **QUADS)
    tensors, values = shifted(x=1)
    assert custom(tmp_path, **ALONE).refusal(values, F32, None, tensors) is None


def test_vectors_in_a_header_of_its_own_count_and_those_of_comments_do_not(tmp_path: Path) -> None:
    (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n#include "rung.cuh"\n')
    (tmp_path / "inner.cuh").write_text("// float4\n")
    source = '#include "outer.cuh"\n/* load_vec */'
    assert alignment.of_source(source, (tmp_path,)) == 1
    (tmp_path / "inner.cuh").write_text("struct Pair { uint4 a, b; };\n")
    assert alignment.of_source(source, (tmp_path,)) == 16
    assert alignment.of_source(f"using namespace nvcuda::wmma;\n{source}", (tmp_path,)) == 32


def test_a_single_number_may_lie_anywhere() -> None:
    whole = torch.ones(8)
    values = catalogue.operation("gelu").complete({"B": 1, "T": 1, "C": 1})
    one = {"x": whole[1:2].view(1, 1, 1), "out": whole[2:3].view(1, 1, 1)}
    assert catalogue.find("gelu/02").refusal(values, F32, None, one) is None


def test_a_python_rung_says_it_too_and_a_tunable_may_decide() -> None:
    rung, values = catalogue.find("matmul/17"), catalogue.operation("matmul").complete({**VALUES, "OC": 32})
    whole = torch.ones(64 + 8)
    tensors = {"x": whole[1:65].view(1, 2, 32), "weight": torch.ones(32, 32), "out": torch.ones(1, 2, 32)}
    tf32 = DTYPES["tf32"]
    assert rung.refusal(values, tf32, None, tensors) is None
    assert "needs x to start" in str(rung.refusal(values, tf32, {"DESCRIPTORS": 1}, tensors))


@pytest.mark.slow
@pytest.mark.parametrize("name", catalogue.operations())
def test_nothing_that_torch_allocates_is_refused(name: str) -> None:
    operation = catalogue.operation(name)
    for case in operation.cases:
        if case.where == "cuda":
            continue
        values = operation.complete(case.values)
        for real in map(DTYPES.__getitem__, case.dtypes):
            tensors: Tensors = {}
            for o in operation.operands:
                base = tensors.get(o.view_of or "")
                if o.view is not None and base is not None:
                    tensors[o.name] = o.view(base, values)
                else:
                    tensors[o.name] = torch.empty(o.size(values), dtype=element(o.dtype, real))
            for rung in catalogue.rungs(name):
                without = rung.refusal(values, real)
                assert without is not None or rung.refusal(values, real, None, tensors) is None
