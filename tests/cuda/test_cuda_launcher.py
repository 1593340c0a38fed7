"""Arguments reach the driver with the bytes of their kind: a stand-in for its launch call looks."""

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuless import tensor_map
from gpuless.launch import Argument, Build
from rung.cuda import launcher
from rung.cuda.driver import load_module
from rung.errors import RungError


class OnDevice:
    """A tensor's face, on a GPU that is not there."""

    device = SimpleNamespace(index=0)

    def data_ptr(self) -> int:
        return 0x7F00_DEAD_BEE0


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The raw 8-byte slots of each launch."""
    monkeypatch.setattr(launcher, "current_stream", lambda index: 0x55)
    return []


def made(
    args: list[Argument], received: list[tuple[int, ...]], result: Any = 0
) -> tuple[launcher.Launcher, Any]:
    config = SimpleNamespace(hStream=None)
    kinds = tuple(kind for kind, _ in args)
    made = launcher.Launcher("mine.cu", "k", object(), config, kinds, 0)

    def launch(_config: Any, _function: Any, parameters: int, _extra: int) -> tuple[Any, ...]:
        pointers = (ctypes.c_void_p * len(kinds)).from_address(parameters)
        received.append(tuple(ctypes.c_uint64.from_address(p or 0).value for p in pointers))
        return (result,)

    made._start = launch
    return made, config


@pytest.mark.parametrize(
    ("kind", "value", "bits"),
    [
        ("pointer", None, 0),
        ("pointer", OnDevice(), 0x7F00_DEAD_BEE0),
        ("i32", -2, 0xFFFF_FFFE),
        ("u32", 4_000_000_000, 4_000_000_000),
        ("i64", -3, 2**64 - 3),
        ("u64", 2**64 - 1, 2**64 - 1),
        ("f32", 1.5, 0x3FC0_0000),
        ("f64", 2.5, 0x4004_0000_0000_0000),
        ("bool", True, 1),
        ("f16", 1.0, 0x3C00),
        ("bf16", 1.0, 0x3F80),
    ],
)
def test_each_kind_fills_its_own_bytes_only(
    kind: str, value: Any, bits: int, received: list[tuple[int, ...]]
) -> None:
    args: list[Argument] = [("i64", -1), (kind, value), ("i64", -1)]
    launch, config = made(args, received)
    launch.pack(args)
    launch()
    assert received == [(2**64 - 1, bits, 2**64 - 1)]
    assert config.hStream == 0x55


def test_a_tensor_map_fills_its_128_bytes(monkeypatch: pytest.MonkeyPatch, received: list[tuple[int, ...]]) -> None:
    encoded = bytes(range(tensor_map.SIZE))
    args: list[Argument] = [("i32", 7), ("tensor_map", SimpleNamespace(encode=lambda: encoded)), ("i32", 9)]
    launch, _ = made(args, received)
    launch.pack(args)
    places = list(launch._pointers)
    assert ctypes.string_at(places[1], tensor_map.SIZE) == encoded
    assert [ctypes.c_int.from_address(places[i]).value for i in (0, 2)] == [7, 9]


@pytest.mark.parametrize("value", [0.1, -3.0, 1 / 3, 65504.0, 1e-3, 1.00390625, 1.01171875, 3.4e38])
def test_bfloat16_rounds_as_torch_does(value: float, received: list[tuple[int, ...]]) -> None:
    args: list[Argument] = [("bf16", value)]
    launch, _ = made(args, received)
    launch.pack(args)
    launch()
    expected = torch.tensor(value).bfloat16().view(torch.int16).item()
    assert received[0][0] == int(expected) & 0xFFFF


def test_a_bound_launch_repeats_the_same_arguments(received: list[tuple[int, ...]]) -> None:
    args: list[Argument] = [("i32", 7), ("f32", 0.5)]
    launch, _ = made(args, received)
    launch.pack(args)
    launch()
    launch()
    bits = struct.unpack("<I", struct.pack("<f", 0.5))[0]
    assert received == [(7, bits)] * 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([("i32", 1), ("i32", 2**31)], "argument 2 of kernel 'k' is 2147483648, which is no i32"),
        ([("u32", -1)], "argument 1 of kernel 'k' is -1, which is no u32"),
        ([("i32", 1.5)], "argument 1 of kernel 'k' is 1.5, which is no i32"),
        ([("f16", 1e6)], "argument 1 of kernel 'k' is 1000000.0, which is no f16"),
        ([("pointer", torch.ones(1))], "is a tensor on cpu, but the kernel runs on cuda:0"),
    ],
)
def test_a_value_that_does_not_fit_its_parameter_is_named(
    args: list[Argument], message: str, received: list[tuple[int, ...]]
) -> None:
    launch, _ = made(args, received)
    with pytest.raises(RungError, match=message):
        launch.pack(args)


def test_no_gpu_is_one_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(RungError, match=r"mine\.cu cannot run on the GPU: no CUDA device"):
        load_module(Build("", "mine.cu", (), ()))
