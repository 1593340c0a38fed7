"""Scratch that is zeroed once is kept from call to call, and launches may differ on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rung.arrays import dtype_of
from rung.dtypes import dtype as named
from rung.errors import RungError
from rung.rungs import catalogue, header
from rung.rungs.base import Device, Prepared
from rung.rungs.cuda import CudaRung

COUNTER = """/*---
idea = "Counts its calls."
[buffers.counter]
shape = ["1"]
dtype = "i32"
zero = {zero}
[[launch]]
kernel = "count"
grid = 1
block = "32 + (0 if emulated else 64)"
---*/
extern "C" __global__ void count(int* counter, float* out)
{{
    if (threadIdx.x > 0) return;
    counter[0] += 1;
    out[0] = counter[0];
    out[1] = blockDim.x;
}}
"""
RESIDUAL = catalogue.operation("residual")
RESIDUAL_VALUES = RESIDUAL.complete({"B": 1, "T": 1, "C": 4})


def counter(folder: Path, zero: str) -> CudaRung:
    path = folder / "counter.cu"
    path.write_text(COUNTER.format(zero=zero))
    return CudaRung(RESIDUAL, path)


def counting(rung: CudaRung) -> tuple[Prepared, Callable[[], float]]:
    """A rung whose scratch is not empty when it is made, and its next count."""
    tensors = {name: torch.full((1, 1, 4), -7.0) for name in ("a", "b", "out")}
    prepared = rung.prepare(
        tensors,
        RESIDUAL_VALUES,
        named("f32"),
        device="emulator",
        empty=lambda _, shape, kind: torch.full(shape, 41, dtype=dtype_of(kind, torch)),
    )

    def count() -> float:
        prepared.run()
        return float(tensors["out"][0, 0, 0])

    return prepared, count


def test_buffers_zeroed_once_keep_their_content_from_call_to_call(tmp_path: Path) -> None:
    rung = counter(tmp_path, '"once"')
    (prepared, first), (_, second) = counting(rung), counting(rung)
    assert int(prepared.buffers["counter"]) == 0
    assert [first(), first(), second(), first(), second()] == [1, 2, 1, 3, 2]


def test_buffers_zeroed_always_or_never_are_distinguished(tmp_path: Path) -> None:
    _, count = counting(counter(tmp_path, "true"))
    assert [count(), count()] == [1, 1]
    _, count = counting(counter(tmp_path, "false"))
    assert [count(), count()] == [42, 43]


@pytest.mark.parametrize("zero", ['"twice"', "1", '["once"]'])
def test_another_word_for_when_to_zero_is_refused(zero: str) -> None:
    with pytest.raises(RungError) as caught:
        header.parse(COUNTER.format(zero=zero), "mine.cu")
    message = str(caught.value)
    assert message.startswith("mine.cu: buffers.counter.zero = ") and message.endswith('is neither true, false nor "once".')


def test_a_launch_may_differ_on_the_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rung = counter(tmp_path, "true")
    facts = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
    devices: tuple[Device, ...] = ("emulator", "cuda")
    blocks = [rung.launches(RESIDUAL_VALUES, named("f32"), device=device)[0][1].block for device in devices]
    assert blocks == [(32, 1, 1), (96, 1, 1)]
