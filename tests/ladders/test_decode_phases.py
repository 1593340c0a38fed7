"""The step phase by phase: what blocks send one another, as it lies in memory, is what the reference's phases send."""

from __future__ import annotations

import math

import pytest
import torch
from test_one_kernel import FEW_KEYS, Text, dims

from rung.dtypes import dtype as named
from rung.ladders.decode import twin
from rung.operation import Tensors, Values
from rung.rungs import catalogue

BLOCKS = 4  # multiprocessors of the emulator
LENGTH = 9


def after_a_step(number: str, values: Values, tuning: dict[str, int] | None = None) -> tuple[Tensors, Tensors]:
    """The packets that the blocks exchanged, as 32-bit words, with the caches and logits; and the reference's vectors.
    Cached keys and values beyond the text are NaN, also in the reference's operands."""
    rung = catalogue.find(f"decode/{number}")
    text = Text(values, named("bf16"), LENGTH, 1, tuning=tuning, rung=rung)
    for cache in text.begin.values():
        cache[..., LENGTH:, :] = math.nan
    text.reset()
    text.step()
    exact = {n: x.double() if x.is_floating_point() else x.long() for n, x in text.own.items()}
    exact |= {name: x.double() for name, x in text.begin.items()}
    exact["tokens"], exact["lengths"] = text.text[LENGTH : LENGTH + 1].long(), torch.tensor([LENGTH])
    buffers, sent = text.prepared.buffers, twin.step(exact, values, exact["k_cache"], exact["v_cache"])
    sent = {name: x[0] for name, x in sent.items()}
    return {**text.own, "packets": buffers["mail"].view(-1, 4), "clock": buffers["clock"]}, sent


def near(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    error = (found.double() - expected).norm() / expected.norm()
    assert error < 2e-2, f"{what}: {float(error):.2g} of the vector's norm"


class Packets:
    """Reads mailboxes one after the other, in the order of `Mailboxes` in one_kernel_layout.cuh."""

    def __init__(self, words: torch.Tensor) -> None:
        self.words, self.at = words, 0

    def take(self, count: int) -> torch.Tensor:
        self.at += count
        return self.words[self.at - count : self.at]

    def vector(self, rows: int, each: int, *, unit: int = 1) -> torch.Tensor:
        """A vector whose rows the blocks share, `unit` at a time, with `each` elements in a packet: floats, or bf16."""
        shares = [unit * (rows // unit // BLOCKS + (b < rows // unit % BLOCKS)) for b in range(BLOCKS)]
        of_block = math.ceil(max(shares) / each)
        words = self.take(BLOCKS * of_block)[:, :3].contiguous().view(BLOCKS, -1)
        numbers = words.view(torch.float32 if each == 3 else torch.bfloat16)
        return torch.cat([numbers[b, :share] for b, share in enumerate(shares)]).double()

    def attention(self, heads: int, size: int, parts: int) -> torch.Tensor:
        """The heads' outputs, merged from the parts of their keys by the weights in each packet's third word."""
        packets = self.take(heads * parts * size // 4).view(heads, parts, size // 4, 4)
        y = packets[..., :2].contiguous().view(torch.float16).double()  # (heads, parts, packets, 4)
        weight = packets[..., 2].contiguous().view(torch.float32).double().exp2()
        weight = torch.where(packets[..., 3] == 0, 0.0, weight)  # a part without keys sends nothing
        return ((y * weight[..., None]).sum(1) / weight.sum(1)[..., None]).flatten()


SLOW = [pytest.param(number, marks=pytest.mark.slow) for number in ("epochs", "weight_ring", "tensor_cores")]


@pytest.mark.parametrize("number", ["grid_barriers", "pacing", *SLOW])
def test_every_vector_that_blocks_exchange_is_the_references(number: str) -> None:
    values = dims(64, 2, L=2, MAXT=40)
    tuning = {n: x for n, x in FEW_KEYS.items() if n in catalogue.find(f"decode/{number}").tune}
    found, expected = after_a_step(number, values, tuning)
    C, NH, HS, F = (int(values[n]) for n in ("C", "NH", "HS", "F"))
    packets = Packets(found["packets"])
    near(packets.vector(3 * C, 3), expected["qkv"], "queries, keys and values")
    near(packets.vector(C, 3), expected["after_attention"], "the stream after attention")
    near(packets.vector(C, 3), expected["after_mlp"], "the stream after the MLP")
    near(packets.vector(F, 6, unit=2), expected["hidden"], "hidden units")
    near(packets.attention(NH, HS, max(1, BLOCKS // NH)), expected["attention"], "outputs of heads")
    near(found["logits"][0], expected["logits"], "logits")
    for i, name in enumerate(("k_cache", "v_cache"), start=1):
        near(found[name][-1, 0, :, LENGTH].flatten(), expected["qkv"].view(3, C)[i], name)
        assert found[name][:, 0, :, LENGTH + 1 :].isnan().all()


@pytest.mark.parametrize(
    ("number", "heads"), [("clusters", 2), ("clusters", 1), pytest.param("clusters_int8", 2, marks=pytest.mark.slow)]
)
def test_partial_sums_of_clusters_are_the_references(number: str, heads: int) -> None:
    values = dims(64, heads, L=2, MAXT=40)
    found, expected = after_a_step(number, values)
    C, clusters = int(values["C"]), 2
    parity = int(found["clock"][0]) - 1 & 1  # the clock has counted the layer's epoch
    sums, at = [], 0
    for parts in (heads, clusters):
        stride = math.ceil(parts / 16) * 16
        words = found["packets"][at : at + 2 * (C // 4) * stride].view(2, C // 4, stride, 4)[parity, :, :parts]
        numbers = (words & ~3).contiguous().view(torch.float32).double()  # two bits of each word are the epoch's
        sums.append(numbers.sum(1).flatten())
        at += 2 * (C // 4) * stride
    if "proj_s" in found:  # rows of eight bits: who adds up the sums multiplies them by the row's scale
        sums = [s * found[name][-1].double() for s, name in zip(sums, ("proj_s", "fc2_s"), strict=True)]
    near(found["logits"][0], expected["logits"], "logits")
    assert found["k_cache"][:, 0, :, LENGTH + 1 :].isnan().all()
    for i, name in enumerate(("k_cache", "v_cache"), start=1):
        near(found[name][-1, 0, :, LENGTH].flatten(), expected["qkv"].view(3, C)[i], name)
    added = [found[name][-1].double() for name in ("proj_b", "fc2_b")]
    near(sums[0], expected["after_attention"] - expected["x"] - added[0], "attention's sums over heads")
    near(sums[1], expected["after_mlp"] - expected["after_attention"] - added[1], "the MLP's sums over parts")
