"""The matmul ladder and its fusions: what the checker's own cases and default tilings do not reach."""

from __future__ import annotations

import pytest
import torch

from rung.arrays import dtype_of
from rung.check.judge import check
from rung.check.report import LADDER
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.operation import Tensors, Values
from rung.precision import float32_products
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung

FUSED = ("matmul_gelu", "matmul_residual", "layernorm_matmul")
SMALL_TILES = {"BM": 64, "BN": 64, "WM": 32, "WN": 32}


def run(spec: str, values: Values, tensors: Tensors, name: str = "f32", **tuning: int) -> torch.Tensor:
    rung, dtype = catalogue.find(spec), dtype_named(name)
    operation = rung.operation
    full = operation.complete(values)
    out = torch.full(operation.operand("out").size(full), torch.nan, dtype=dtype.torch)
    rung.prepare({**tensors, "out": out}, full, dtype, device="emulator", tuning=tuning).run()
    return out


def inputs(name: str, values: Values, dtype: str = "f32") -> Tensors:
    operation = catalogue.operation(name)
    tensors = operation.inputs(
        operation.complete(values),
        dtype_named(dtype),
        seed=3,
        empty=lambda _, shape, kind: torch.empty(shape, dtype=dtype_of(kind, torch)),
    )
    del tensors["out"]
    return tensors


@pytest.mark.parametrize(
    ("spec", "tuning"),
    [
        # Six tiles for the emulator's four multiprocessors: blocks pass from one tile to the next.
        ("matmul/16", {**SMALL_TILES, "GROUP": 2, "BLOCKS": 1}),
        ("matmul/16", {**SMALL_TILES, "STAGES": 3, "BLOCKS": 2}),
        ("matmul/15", {**SMALL_TILES, "SPLITS": 2}),
        ("matmul/14", {**SMALL_TILES, "STAGES": 4}),
        ("matmul/19", {"BN": 128}),
        ("matmul/8", {"BM": 64, "BN": 64, "BK": 8}),
        ("layernorm_matmul/3", SMALL_TILES),
        ("layernorm_matmul/2", {"BM": 64, "BN": 64}),
    ],
)
def test_other_tilings_are_right_too(spec: str, tuning: dict[str, int]) -> None:
    report = check(catalogue.find(spec), "f16", device="emulator", case="aligned", tuning=tuning, effort=LADDER)
    assert report.verdict == "ok", report.reason


@pytest.mark.parametrize("name", ["matmul/14", "matmul/16", "matmul_gelu/3", "layernorm_matmul/3"])
def test_a_tile_deeper_than_its_rows_reach_is_refused_by_rule(name: str) -> None:
    values: Values = {"B": 1, "T": 3, "C": 8, "OC": 8}
    tensors = inputs(name.split("/")[0], values, "tf32")
    with pytest.raises(RungError, match=r"needs BK \* sizeof_real"):
        run(name, values, tensors, "tf32", BK=64)


@pytest.mark.parametrize(
    "name",
    [
        "matmul/14",
        "matmul/15",
        "matmul/16",
        "matmul_gelu/3",
        "matmul_residual/3",
        "layernorm_matmul/3",
        "token_logprob/4",
    ],
)
def test_tiles_whose_copies_do_not_repeat_with_the_swizzle_are_refused_by_rule(name: str) -> None:
    """One warp copies four rows of 128 bytes at a time, and the swizzle repeats every eight: that does not compile."""
    one_warp = {"BM": 64, "BN": 64, "WM": 64, "WN": 64, "BK": 32, "STAGES": 3}
    values: Values = {"B": 1, "T": 64, "C": 768, "OC": 3072, "V": 512}
    rung = catalogue.find(name)
    complete = rung.operation.complete({d: values[d] for d in rung.operation.dims})
    assert "% 8 == 0" in (rung.refusal(complete, dtype_named("tf32"), one_warp) or "")


# Rows of x, their depth, rows of the weight: several tiles and blocks, short rows, and rows that end within 16 bytes.
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(300, 200, 264), (140, 136, 520), (7, 72, 13), (130, 64, 257), (387, 8, 256)])
@pytest.mark.parametrize("columns", [128, 256])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_products_of_four_warps(shape: tuple[int, int, int], columns: int, dtype: str) -> None:
    T, C, OC = shape
    values: Values = {"B": 1, "T": T, "C": C, "OC": OC}
    tensors = inputs("matmul", values, dtype)
    out = run("matmul/19", values, tensors, dtype, BN=columns, GROUP=4).double()
    exact = tensors["x"].double() @ tensors["weight"].double().T + tensors["bias"].double()
    assert float((out - exact).norm() / exact.norm()) < dtype_named(dtype).norm_cap


@pytest.mark.parametrize("name", ["matmul_gelu", "matmul_residual"])
def test_in_f32_a_fused_epilogue_changes_no_bit(name: str) -> None:
    values: Values = {"B": 1, "T": 21, "C": 19, "OC": 35}
    tensors = inputs(name, values)
    separate, fused = (run(f"{name}/{which}", values, tensors) for which in ("separate", "fused"))
    assert torch.equal(separate, fused)


def test_pipeline_split_and_persistent_rungs_read_nothing_between_rows() -> None:
    """NaN next to the operands in memory must not leak in through rows that are too short for a tile."""
    values: Values = {"B": 1, "T": 5, "C": 24, "OC": 11}
    wide_x, wide_weight = torch.full((9, 24), torch.nan), torch.full((19, 24), torch.nan)
    x, weight = wide_x[2:7], wide_weight[4:15]
    generator = torch.Generator().manual_seed(7)
    x.copy_(torch.randn(5, 24, generator=generator))
    weight.copy_(torch.randn(11, 24, generator=generator))
    exact = x.double() @ weight.double().T
    for rung in (14, 15, 16):
        out = run(f"matmul/{rung}", values, {"x": x.view(1, 5, 24), "weight": weight}, "tf32")
        torch.testing.assert_close(out[0].double(), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", FUSED)
def test_every_dtype_has_a_fused_rung(name: str) -> None:
    served = {d for rung in catalogue.rungs(name, libraries=False)[1:] for d in rung.dtypes}
    assert served == {"f32", "tf32", "f16", "bf16"}


def test_float32_precision_is_restored_after_a_failure() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    with pytest.raises(ZeroDivisionError), float32_products("tf32"):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        raise ZeroDivisionError
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_gelu_of_the_reference_is_the_tanh_form() -> None:
    operation = catalogue.operation("matmul_gelu")
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    weight = torch.randn(5, 8, dtype=torch.float64)
    found = operation.reference({"x": x, "weight": weight}, {})["out"]
    product = x @ weight.T
    torch.testing.assert_close(found, torch.nn.functional.gelu(product, approximate="tanh"))
    assert not torch.allclose(found, torch.nn.functional.gelu(product), rtol=0, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_cublaslt_gelu_is_the_tanh_form(dtype: str) -> None:
    report = check(catalogue.find("matmul_gelu/cublaslt"), dtype, device="cuda")
    assert report.verdict == "ok", report.reason


FEW_BYTES = {"matmul/28_halves": 8}  # its widest tile has 168 registers, and needs one or two more


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["matmul", *FUSED])
def test_nothing_spills_on_hopper(operation: str) -> None:
    from gpuless.compile import nvrtc

    for rung in catalogue.rungs(operation, libraries=False):
        if not isinstance(rung, CudaRung):
            continue
        values = rung.operation.complete({"B": 4, "T": 64, "C": 768, "OC": 768})
        for dtype in {rung.dtypes[0], rung.dtypes[-1]}:
            cubin = nvrtc.compile_cubin(rung.build(values, dtype_named(dtype)), "sm_90")
            for kernel, used in cubin.resources.items():
                allowed = FEW_BYTES.get(rung.full_name, 0)
                assert max(used.spill_stores, used.stack) <= allowed, f"{rung.full_name} {dtype}: {kernel}"
