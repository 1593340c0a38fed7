"""NVRTC accepts every CUDA rung for the GPUs that its rules admit; what g++ lets by, a clash with a builtin say, is seen.

All of them for all architectures and number formats are some 2,800 compilations. Each rung is compiled for one of its
architectures in one of its formats, drawn by its text: a rung that changes meets others.
"""

from __future__ import annotations

import math

import pytest

from gpuless.compile import nvrtc
from pretended_gpu import pretend
from rung.dtypes import DTYPES
from rung.models import operations as tables
from rung.models.family import parse_config
from rung.models.gpt2.rungs import decode_rungs
from rung.models.ladder_plan import _at
from rung.profile import inspect_triton
from rung.rungs import catalogue, identity
from rung.rungs.cuda import CudaRung
from rung.rungs.python import PythonRung

ARCHITECTURES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0))
PLANS = [name for name in tables.PLANS if name not in ("torch", "best", "library")]


def admitted(rung: CudaRung, dtype: str) -> dict[str, int] | None:
    """The first case that the rung takes on the GPU that is pretended."""
    legal = (rung.operation.complete(c.values) for c in rung.operation.cases if dtype in c.dtypes)
    return next((v for v in legal if rung.refusal(v, DTYPES[dtype], device="cuda") is None), None)  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize("operation", list(catalogue.operations()))
def test_each_rung_compiles_for_an_architecture_that_it_admits(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = [r for r in catalogue.rungs(operation) if isinstance(r, CudaRung)]
    assert ladder
    for rung in ladder:
        number = int(identity.text(rung)[:8], 16)
        turns = [(gpu, dtype) for gpu in ARCHITECTURES for dtype in rung.dtypes]
        for gpu, dtype in turns[number % len(turns) :] + turns[: number % len(turns)]:
            pretend(monkeypatch, *gpu)
            values = admitted(rung, dtype)
            if values is not None:
                break
        else:
            pytest.fail(f"no GPU is admitted by {rung.full_name}")
        cubin = nvrtc.compile_cubin(rung.build(values, DTYPES[dtype]), f"sm_{gpu[0]}{gpu[1]}")
        launched = {k for k, _ in rung.launches(values, DTYPES[dtype], device="cuda")}
        assert launched <= set(cubin.resources), (rung.full_name, gpu, dtype)


@pytest.mark.parametrize("operation", list(catalogue.operations()))
def test_triton_compiles_each_rung_at_its_smallest_case(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = catalogue.operation(operation)
    for rung in catalogue.rungs(operation, libraries=False):
        if not isinstance(rung, PythonRung) or rung.kind != "triton":
            continue
        pretend(monkeypatch, 9, 0)
        dtype = DTYPES[rung.dtypes[0]]
        cases = [ladder.complete(c.values) for c in ladder.cases if dtype.name in c.dtypes]
        taken = [v for v in cases if rung.refusal(v, dtype, device="cuda") is None]
        smallest = min(taken, key=lambda v: math.prod(v[d] for d in ladder.dims))
        inspect_triton._compiled(rung, "sm_90", smallest, dtype, None)


@pytest.mark.parametrize("gpu", ARCHITECTURES)
def test_every_plan_has_a_rung_for_each_operation(gpu: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, *gpu)
    for activation in ("gelu_new", "relu"):
        config = parse_config({"model_type": "gpt2", "activation_function": activation}, "gpt2")
        for plan in PLANS:
            for operation, names in tables.plan_rungs(plan).items():
                ladder = catalogue.operation(tables.ladder_of(operation))
                values = ladder.complete(_at(config, operation) | ({"window": 256} if "local" in operation else {}))
                for dtype in ("f32", "f16", "bf16"):
                    found = [tables.find(operation, name) for name in (*names, *tables.last_resort(operation))]
                    takes = [r for r in found if r.refusal(values, DTYPES[dtype], device="cuda") is None]
                    assert takes or found[0].stand_in(values, DTYPES[dtype], "cuda"), (plan, operation, dtype)


@pytest.mark.parametrize("gpu", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_whole_steps_have_a_rung_of_their_own(
    gpu: tuple[int, int], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, *gpu)
    decode = catalogue.operation("decode")
    values = decode.complete(decode.shapes["gpt2"])
    rungs = [catalogue.find(f"decode/{n}") for n in decode_rungs(1, 768, dtype, lambda _: True) if n != "torch"]
    assert any(r.refusal(values, DTYPES[dtype], device="cuda") is None for r in rungs)
