"""Triton's interpreter, with bfloat16 mended: products and rounding as on a GPU."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rung.rungs import python_module

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def product(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def narrow(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16))
"""


def kernels(folder: Path):  # type: ignore[no-untyped-def]
    path = folder / "kernels.py"
    path.write_text(SOURCE)
    return python_module.load(path, interpret=True)


def test_a_dot_of_bfloat16_multiplies_values_not_bits(tmp_path: Path) -> None:
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (1, 2))
    out = torch.empty(16, 16)
    kernels(tmp_path).product[(1,)](a, b, out, 16)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


def test_a_cast_to_bfloat16_rounds_to_nearest_even(tmp_path: Path) -> None:
    random = torch.randn(1016, generator=torch.Generator().manual_seed(3)) * 1e3
    bits = (0x3F808000, 0x3F818000, 0x3F807FFF, 0x3FFFFFFF, 0x7F7FFFFF)
    ties = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    x = torch.cat([random, ties, torch.tensor([float("inf"), float("-inf"), 0.0])])
    out = torch.empty(1024, dtype=torch.bfloat16)
    kernels(tmp_path).narrow[(1,)](x, out, 1024)
    assert torch.equal(out, x.bfloat16())


def test_triton_that_was_imported_to_be_compiled_is_interpreted_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "largest.py"
    path.write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef largest(x, out, N: tl.constexpr):\n"
        "    tl.store(out, tl.max(tl.load(x + tl.arange(0, N)), 0) + tl.cdiv(N, 3))\n"
    )
    code = (
        "import triton.language, torch; from pathlib import Path; from rung.rungs import python_module\n"
        f"kernel = python_module.load(Path({str(path)!r}), interpret=True).largest\n"
        "x, out = torch.arange(8.0), torch.zeros(1); kernel[(1,)](x, out, 8); assert float(out) == 10.0"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_source_path())
    assert done.returncode == 0, done.stderr


# What a user may do in one process, in any order. `changed` looks past what modules gain (submodules, helpers).
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import torch, triton.language as tl
from triton.language import core, math, random, standard
from rung.rungs import catalogue, python_module
from rung.check.judge import check
from rung.profile.inspect import inspect

OWNERS = (tl, core, math, random, standard, core.tensor, core.dtype, core.tensor_descriptor_base)
BEFORE = [dict(vars(owner)) for owner in OWNERS]
FLOATS = np.geterr()

def changed():
    pairs = [(o.__name__, o, before) for o, before in zip(OWNERS, BEFORE)]
    lost = [f"{w}.{n}" for w, o, before in pairs for n in before if vars(o).get(n) is not before[n]]
    lost += [f"{w}.{n}" for w, o, before in pairs if isinstance(o, type) for n in vars(o) if n not in before]
    return lost + ([] if np.geterr() == FLOATS else ["numpy's settings"])

for word in sys.argv[1:]:
    what, name = word.split("=")
    if what == "check":
        report = check(catalogue.find(name), "f32", device="emulator", quick=True)
        assert report.verdict == "ok", report
    elif what == "inspect":
        (row,) = inspect([catalogue.find(name)], ["sm_90"], mix=False)
        assert row.state == "ok", (name, row.reason)
    else:
        kernel = python_module.load(Path(name), interpret=True).outer
        try:
            kernel[(1,)](torch.ones(8), 8)
        except Exception as problem:
            assert "no such thing" in str(problem), problem
        else:
            raise SystemExit("nothing was raised")
    assert not changed(), (word, changed())
"""


def in_one_process(folder: Path, *words: str) -> None:
    """With a cache of compiled kernels of its own, or Triton would compile nothing."""
    environment = _source_path() | {"TRITON_CACHE_DIR": str(folder / "triton")}
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    # softmax calls `tl.max` and `tl.sum`, which patch the language when they are called
    ("check=softmax/triton", "inspect=layernorm/triton", "inspect=softmax/triton", "inspect=residual/triton"),
    ("inspect=softmax/triton", "check=softmax/triton", "check=residual/triton", "inspect=layernorm/triton"),
], ids=["check first", "inspect first"])  # fmt: skip
def test_what_was_interpreted_can_be_compiled_in_the_same_process(tmp_path: Path, words: tuple[str, ...]) -> None:
    in_one_process(tmp_path, *words)


def test_a_kernel_that_fails_leaves_the_language_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "failing.py"
    path.write_text(
        "import triton\nimport triton.language as tl\nfrom triton.language import core\n\n\n"
        "@triton.jit\ndef inner(x):\n    tl.max(x, 0)\n    tl.static_assert(False, 'no such thing')\n\n\n"
        "@triton.jit\ndef outer(x, N: tl.constexpr):\n    inner(tl.load(x + tl.arange(0, N)))\n"
    )
    in_one_process(tmp_path, f"fail={path}", "inspect=softmax/triton", "check=softmax/triton")


def _source_path() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": "src"}


def test_a_tiles_product_is_not_shared_among_threads(tmp_path: Path) -> None:
    kernels(tmp_path)
    libraries = [ctypes.CDLL(str(path)) for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")]
    counts = [library.scipy_openblas_get_num_threads64_() for library in libraries]
    assert set(counts) <= {1}
