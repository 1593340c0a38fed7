"""The public interface in Python: what its page shows is run, and mistakes are named."""

import re
from pathlib import Path

import numpy as np
import pytest

import gpuless
from emulation import needs_compiler
from gpuless.base.errors import UserError

README = Path(__file__).parents[1] / "README.md"
SOURCE = """
template <typename T> __global__ void add(const T* x, T* out, long long n, T by, bool twice)
{ long long i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = x[i] + by * (twice ? 2 : 1); }
"""


@needs_compiler
def test_what_the_page_shows_runs() -> None:
    names: dict[str, object] = {}
    shown = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(shown) == 3
    for text in shown:
        exec(text, names)
    assert "LDG" not in repr(names["launched"])  # what a terminal shows is the counts, not the code


@needs_compiler
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_take_the_size_of_their_parameter(kind: type) -> None:
    name = {np.float32: "add<float>", np.float64: "add<double>"}[kind]
    module, session = gpuless.compile_cuda(SOURCE, kernels=[name]), gpuless.Session()
    x, out = session.memory(np.arange(40, dtype=kind), writable=False), session.memory(np.zeros(40, kind))
    session.launch(module["add"], (2, 1), 32, {"x": x, "out": out, "n": 40, "by": 0.5, "twice": True})
    assert (out == x + 1).all() and session.launches == 1


@needs_compiler
def test_an_array_that_is_only_read_is_guarded_and_names_are_checked() -> None:
    module, session = gpuless.compile_cuda(SOURCE, kernels=["add<float>"]), gpuless.Session()
    x = session.memory(np.zeros(8, np.float32), writable=False)
    with pytest.raises(gpuless.EmulatorFault) as fault:
        session.launch(module["add"], 1, 8, {"x": x, "out": x, "n": 8, "by": 1.0, "twice": False})
    assert fault.value.kind == "bounds" and "'out'" in str(fault.value)
    with pytest.raises(UserError, match="its parameters are x, out, n, by, twice"):
        session.launch(module["add"], 1, 8, {"x": x, "y": x})
    with pytest.raises(UserError, match="has 5 parameters, and 2 were given"):
        session.launch(module["add"], 1, 8, [x, x])
    with pytest.raises(UserError, match="name one kernel"):
        module["mul"]
    with pytest.raises(UserError, match="does not count"):
        session.traffic()


@needs_compiler
def test_numbers_take_the_type_of_their_parameter_and_instances_are_found_as_they_were_asked_for() -> None:
    source = """
template <int N> __global__ void scale(const float* x, float* out, float by, double more, int n)
{ if (threadIdx.x < n) out[threadIdx.x] = x[threadIdx.x] * by + float(more) + N; }
"""
    module, session = gpuless.compile_cuda(source, kernels=["scale<0>", "scale<10>"]), gpuless.Session()
    x, out = session.memory(np.arange(8, dtype=np.float32)), session.memory(np.zeros(8, np.float32))
    session.launch(module["scale<0>"], 1, 8, [x, out, 2, 1, 8.0])
    assert (out == 2 * x + 1).all()
    session.launch(module["scale< 10 >"], 1, 8, {"x": x, "out": out, "by": np.float32(1), "more": True, "n": 8})
    assert (out == x + 11).all()
    with pytest.raises(UserError, match="n is of type int"):
        session.launch(module["scale<0>"], 1, 8, [x, out, 2, 1, 8.5])
