"""Chunks over streams: the same bits however units are cut, and what a trace says of overlap."""

import pytest
import torch

from rung.dtypes import dtype
from rung.errors import RungError
from rung_reproduce.parallel import pipeline

F32 = dtype("f32")


def result(rung, qkv, chunk, streams, device, causal=True):
    out = torch.full((*qkv.shape[:2], qkv.shape[2] // 3), torch.nan)
    line = pipeline.Pipeline(
        rung, qkv, out, dtype=F32, causal=causal, chunk=chunk, streams=streams, device=device
    )
    line.run()
    line.run()  # buffers are used again
    return out


@pytest.mark.parametrize(("chunk", "streams"), [(1, 1), (2, 2), (3, 2), (3, 4), (5, 3), (7, 9), (20, 2)])
def test_however_units_are_cut_the_bits_are_those_of_one_call(chunk, streams):
    qkv = torch.randn(7, 19, 48, generator=torch.Generator().manual_seed(1))
    whole = result("attention/01_sequential", qkv, 7, 1, "cpu")
    assert not whole.isnan().any()
    assert torch.equal(result("attention/01_sequential", qkv, chunk, streams, "cpu"), whole)


def test_a_cuda_rung_in_chunks_has_the_bits_of_one_call():
    qkv = torch.randn(3, 17, 96, generator=torch.Generator().manual_seed(2))
    whole = result(pipeline.RUNG, qkv, 3, 1, "emulator")
    assert torch.equal(result(pipeline.RUNG, qkv, 2, 2, "emulator"), whole)
    q, k, v = qkv.double().split(32, 2)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(whole.double(), right, rtol=1e-5, atol=1e-5)


def test_no_chunk_and_no_stream_are_refused():
    for chunk, streams in ((0, 1), (1, 0)):
        with pytest.raises(RungError, match="both must be at least 1"):
            result("attention/01_sequential", torch.zeros(1, 1, 3), chunk, streams, "cpu")


def event(cat, name, ts, dur):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur}


def test_a_trace_tells_how_busy_each_part_was():
    found = pipeline.overlap(
        [
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 100),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 100, 100),
            event("kernel", "flash", 100, 80),
            event("kernel", "flash", 150, 80),  # two streams at once: 130 busy in all
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 200, 50),
            event("cpu_op", "aten::copy_", 0, 1000),
            {"ph": "i", "cat": "kernel", "name": "mark", "ts": 999},
        ]
    )
    assert [round(x * 1e6) for x in (found.wall, found.copying_in, found.computing, found.copying_out)] == [
        250, 200, 130, 50,
    ]  # fmt: skip
    assert found.bound == pytest.approx(200e-6)
    assert found.reached == pytest.approx((380 - 250) / (380 - 200))
    with pytest.raises(RungError, match="neither a kernel nor a copy"):
        pipeline.overlap([event("cpu_op", "aten::mm", 0, 1)])


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_on_a_gpu_streams_change_no_bit_and_overlap(name):
    rung = pipeline.RUNG if name == "f32" else "attention/27_tensor_cores"
    rows = pipeline.measure(
        units=192,
        T=1024,  # less, and in bf16 it is launching that takes the time
        HS=64,
        dtype=dtype(name),
        causal=True,
        rung=rung,
        chunks=(12, 40),
        streams=(2,),
        repeats=3,
    )
    assert len(rows) == 3
    assert max(r.overlap.reached for r in rows[1:]) > rows[0].overlap.reached
