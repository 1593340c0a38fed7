"""Wrong Triton kernels whose results are right mostly: races between programs and within one, accesses outside of
tensors; and right ones of the same kinds, which must stay right.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gpuless
from rung.cuda import triton as on_machine
from rung.errors import EmulatorFault
from rung.rungs import python_module

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


def launched(tmp_path: Path, text: str, grid: int, *args: object, order: str = "forward", races: bool = True) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(HEAD + text)
    kernel = python_module.load(path, emulated=True).kernel
    with on_machine.enabled(), gpuless.under(check_races=races, order=order):
        kernel[(grid,)](*args)


# Text, the line that is told, and what the other access is by: a thread of the block, or of another.
WRONG = {
    "lanes store their own values to one address": (
        "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i * 0, tl.load(x + i))\n", 8, "instruction",
    ),
    "a lane loads another's number": (
        "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i, tl.load(x + i))\n"
        "    tl.store(out + 4 + i, tl.load(out + 3 - i))\n", 9, "line 8",
    ),
    "numbers move within an array": (
        "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i, tl.load(out + i + 1))\n", 8, "line 8",
    ),
    "numbers move within an array of many warps": (
        "def kernel(x, out):\n    i = tl.arange(0, 512)\n    tl.store(x + i, tl.load(x + i + 128))\n", 8, "line 8",
    ),
    "an atomic elsewhere": (
        "def kernel(x, out):\n    p = tl.program_id(0)\n    before = tl.load(out + p - 1, mask=p > 0, other=0.0)\n"
        "    tl.store(out + p, before + tl.load(x + p))\n    tl.atomic_add(x + 7, 1.0)\n", 8, "of block (0, 0, 0)",
    ),
    "a relaxed counter": (
        "def kernel(x, out):\n    p = tl.program_id(0)\n    tl.store(out + p, tl.load(x + p))\n"
        "    if tl.atomic_add(x + 7, 1.0, sem='relaxed') == 1.0:\n        tl.store(out + 4, tl.load(out + 0))\n",
        10, "of block (0, 0, 0)",
    ),
}  # fmt: skip
RIGHT = {
    "a barrier between": "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i, tl.load(x + i))\n"
    "    tl.debug_barrier()\n    tl.store(out + 4 + i, tl.load(out + 3 - i))\n",
    "each lane its own, of many": "def kernel(x, out):\n    i = tl.arange(0, 64)\n    a = tl.load(x + i)\n"
    "    tl.store(x + i, a - tl.max(a, 0))\n    tl.store(x + i, tl.load(x + i) * 2)\n",
    "a count that all read": "def kernel(x, out):\n    n = tl.load(out + 7)\n    if n == 0:\n"
    "        tl.atomic_xchg(out + 7, 1.0)\n    tl.store(out + tl.arange(0, 4), n)\n",
    "each lane its own": "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i, tl.load(out + i) + 1)\n"
    "    tl.store(out + i, tl.load(out + i) + 1)\n",
    "one value for all": "def kernel(x, out):\n    tl.store(out + tl.arange(0, 4) * 0, tl.load(x))\n",
    "the last program": "def kernel(x, out):\n    p = tl.program_id(0)\n    tl.store(out + p, tl.load(x + p))\n"
    "    if tl.atomic_add(x + 7, 1.0) == 1.0:\n        tl.store(out + 4, tl.load(out + 0) + tl.load(out + 1))\n",
    "a lock": "def kernel(x, out):\n    while tl.atomic_cas(x + 7, 0, 1) == 1:\n        pass\n"
    "    tl.store(out, tl.load(out) + 1.0)\n    tl.debug_barrier()\n    tl.atomic_xchg(x + 7, 0)\n",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_race_of_a_triton_kernel_is_found(name: str, tmp_path: Path) -> None:
    text, line, other = WRONG[name]
    with pytest.raises(EmulatorFault) as caught:
        launched(tmp_path, text, 1 + ("program_id" in text), torch.arange(640.0) % 7, torch.zeros(8))
    assert caught.value.kind == "race" and f"line {line}:" in str(caught.value) and other in str(caught.value)


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_barrier_or_an_atomic_orders_is_no_race(name: str, tmp_path: Path) -> None:
    x = torch.zeros(64, dtype=torch.int32 if name == "a lock" else torch.float32)
    launched(tmp_path, RIGHT[name], 2 if name in ("the last program", "a lock") else 1, x, torch.zeros(8))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("    i = tl.arange(0, 8)\n    tl.store(out + i, tl.load(x + i * 2 + p))\n", ["block (1, 0, 0)", "line 9", "past the end", "'x'", "element 15"]),
        ("    i = tl.arange(0, 8)\n    tl.store(out + i + p, tl.load(x + i) + i)\n", ["block (1, 0, 0)", "line 9", "past the end", "'out'", "element 8"]),
        ("    tl.store(out, tl.load(x + p - 1))\n", ["block (0, 0, 0)", "line 8", "before the start", "'x'", "element -1"]),
        ("    tl.atomic_add(out + 8 + p, 1.0)\n", ["block (0, 0, 0)", "line 8", "past the end", "'out'", "element 8"]),
    ],
)  # fmt: skip
def test_an_access_outside_a_tensor_is_told_by_parameter_block_element_and_line(
    text: str, told: list[str], tmp_path: Path
) -> None:
    x, out = torch.zeros(15), torch.zeros(8)
    with pytest.raises(EmulatorFault) as caught:
        launched(tmp_path, "def kernel(x, out):\n    p = tl.program_id(0)\n" + text, 2, x, out, races=False)
    assert caught.value.kind == "bounds"
    assert [word for word in told if word not in str(caught.value)] == []


def test_block_pointers_are_checked_at_their_boundaries(tmp_path: Path) -> None:
    body = (
        "def kernel(x, out):\n"
        "    at = tl.make_block_ptr(x, shape=(6,), strides=(1,), offsets=(0,), block_shape=(8,), order=(0,))\n"
        "    tl.store(out + tl.arange(0, 8), tl.load(at CHECK))\n"
    )
    x, out = torch.arange(6.0), torch.zeros(8)
    launched(tmp_path, body.replace("CHECK", ", boundary_check=(0,), padding_option='zero'"), 1, x, out)
    assert out.tolist() == [*range(6), 0, 0]
    with pytest.raises(EmulatorFault, match="'x'"):
        launched(tmp_path, body.replace(" CHECK", ""), 1, x, out, races=False)
