"""Wrong Triton kernels that Triton's own interpreter runs rightly: races between programs and within one, lanes that no
load fills, products in tf32; and right ones of the same kinds, which must stay right.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rung import emulator
from rung.errors import EmulatorFault
from rung.rungs import python_module

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


def launched(tmp_path: Path, text: str, grid: int, *args: object, order: str = "forward", races: bool = True) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(HEAD + text)
    kernel = python_module.load(path, emulated=True).kernel
    with emulator.under(check_races=races, order=order):
        kernel[(grid,)](*args)


WRONG = {
    "lanes store their own values to one address": (
        "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i * 0, tl.load(x + i))\n",
        "different values to one address",
    ),
    "a scalar is loaded back": (
        "def kernel(x, out):\n    tl.store(out, tl.load(x))\n    tl.store(out + 1, tl.load(out))\n",
        "loads what another has stored",
    ),
    "a lane loads another's number": (
        "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i, tl.load(x + i))\n"
        "    tl.store(out + 4 + i, tl.load(out + 3 - i))\n",
        "loads what another has stored",
    ),
    "numbers move within an array": (
        "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i, tl.load(out + i + 1))\n",
        "stores what another has touched",
    ),
    "an atomic elsewhere": (
        "def kernel(x, out):\n    p = tl.program_id(0)\n    before = tl.load(out + p - 1, mask=p > 0, other=0.0)\n"
        "    tl.store(out + p, before + tl.load(x + p))\n    tl.atomic_add(x + 7, 1.0)\n",
        "load and store one address",
    ),
    "a relaxed counter": (
        "def kernel(x, out):\n    p = tl.program_id(0)\n    tl.store(out + p, tl.load(x + p))\n"
        "    if tl.atomic_add(x + 7, 1.0, sem='relaxed') == 1.0:\n        tl.store(out + 4, tl.load(out + 0))\n",
        "load and store one address",
    ),
}
RIGHT = {
    "a barrier between": "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i, tl.load(x + i))\n"
    "    tl.debug_barrier()\n    tl.store(out + 4 + i, tl.load(out + 3 - i))\n",
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
    text, message = WRONG[name]
    with pytest.raises(EmulatorFault, match=message):
        launched(tmp_path, text, 1 + ("program_id" in text), torch.arange(8.0) % 7, torch.zeros(8))


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_barrier_or_an_atomic_orders_is_no_race(name: str, tmp_path: Path) -> None:
    x = torch.zeros(8, dtype=torch.int32 if name == "a lock" else torch.float32)
    launched(tmp_path, RIGHT[name], 2 if name in ("the last program", "a lock") else 1, x, torch.zeros(8))


def test_programs_run_in_other_orders_too(tmp_path: Path) -> None:
    text = "def kernel(x, out):\n    tl.store(out, tl.program_id(0).to(tl.float32))\n"
    out, last = torch.zeros(1), {}
    for order in ("forward", "reverse", "shuffled"):
        launched(tmp_path, text, 16, out, out, order=order, races=False)
        last[order] = int(out)
    assert last["forward"] == 15 and last["reverse"] == 0 and last["shuffled"] not in (0, 15)


def test_a_lane_that_no_load_fills_is_no_zero(tmp_path: Path) -> None:
    text = "def kernel(x, out):\n    i = tl.arange(0, 4)\n    tl.store(out + i, tl.load(x + i, mask=i < 2))\n"
    out = torch.zeros(4)
    launched(tmp_path, text, 1, torch.ones(4), out)
    assert out[:2].tolist() == [1, 1] and out[2:].isnan().all()


@pytest.mark.parametrize(("precision", "exact"), [("tf32", False), ("ieee", True)])
def test_a_product_in_tf32_has_the_numbers_of_tf32(precision: str, exact: bool, tmp_path: Path) -> None:
    text = (
        "def kernel(x, out):\n    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]\n"
        f"    tl.store(out + i, tl.dot(tl.load(x + i), tl.load(x + i), input_precision='{precision}'))\n"
    )
    x, out = torch.eye(16) * (1 + 2**-20), torch.zeros(16, 16)
    launched(tmp_path, text, 1, x, out)
    assert bool((out.diag() > 1).all()) == exact


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("    i = tl.arange(0, 8)\n    tl.store(out + i, tl.load(x + i * 2 + p))\n", ["program 1", "lane 7", "line 9", "1 elements", "'x'"]),
        ("    i = tl.arange(0, 8)\n    tl.store(out + i + p, tl.load(x + i) + i)\n", ["program 1", "lane 7", "line 9", "stores", "'out'"]),
        ("    tl.store(out, tl.load(x + p - 1))\n", ["program 0", "line 8", "1 elements before", "'x'"]),
        ("    tl.atomic_add(out + 8 + p, 1.0)\n", ["program 0", "line 8", "changes", "1 elements past", "'out'"]),
    ],
)  # fmt: skip
def test_an_access_outside_a_tensor_is_told_by_parameter_program_lane_and_line(
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
