"""NVRTC accepts every CUDA rung in every dtype; what g++ lets by, a clash with a builtin say, is seen here."""

import pytest

from rung.cuda import nvrtc
from rung.dtypes import dtype as named
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung


@pytest.mark.parametrize("operation", list(catalogue.operations()))
def test_compiles_for_sm_90(operation: str) -> None:
    ladder = [r for r in catalogue.rungs(operation) if isinstance(r, CudaRung)]
    assert ladder
    for rung in ladder:
        for name in rung.dtypes:
            legal = (rung.operation.complete(c.values) for c in rung.operation.cases if name in c.dtypes)
            values = next(v for v in legal if rung.refusal(v, named(name)) is None)
            cubin = nvrtc.compile_cubin(rung.build(values, named(name)), "sm_90")
            launched = {k for k, _ in rung.launches(values, named(name))}
            assert launched <= set(cubin.resources), rung.full_name
