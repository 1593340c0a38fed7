"""Keys and values take the memory of the tokens that are there."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest
import torch

import gpt2_models as models
from rung.errors import RungError
from rung.models.batching.pages import PagedCache
from rung.models.cache import Cache
from rung.models.cpu.plan import CpuPlan
from rung.models.family import read_config
from rung.models.weights import Linear, converted, weights_of

MB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_long_context_takes_memory_where_tokens_are_written() -> None:
    before = resident()
    cache = Cache(30, 32, 3, 8192, 64, torch.bfloat16, torch.device("cpu"))  # 6 GB
    cache.begin(32)
    cache.write(0, torch.ones(32, 3, 100, 64), torch.ones(32, 3, 100, 64))
    assert resident() - before < 16 * MB
    assert cache.k[0, 31, 2, 99].eq(1).all() and not cache.k[29].any()


def test_memory_of_tokens_that_no_longer_matter_is_given_back() -> None:
    cache = PagedCache((2, 2, 64), 2, 32768, 33 * 1024, "float32")
    before = resident()
    assert cache.fit(0, 1000) and cache.fit(1, 32768)
    cache.k[:], cache.v[:] = 1, 2
    assert resident() - before > 50 * MB
    cache.release(1)
    assert resident() - before < 8 * MB
    assert cache.k[1, 31].eq(1).all() and cache.v[1, 0].eq(2).all() and not cache.v[:, 32:1000].any()


def test_what_no_address_space_holds_is_refused() -> None:
    with pytest.raises(RungError, match="fit into memory"):
        Cache(30, 1 << 30, 32, 1 << 17, 128, torch.float32, torch.device("cpu"))


def test_random_weights_are_drawn_in_the_formats_of_a_plan_one_by_one() -> None:
    config = read_config(models.saved() / "config.json")
    plan = CpuPlan("bfloat16")
    made, most, live = [], [0], weakref.WeakSet[torch.Tensor]()

    def matrix(tensor: torch.Tensor) -> Linear:
        live.add(tensor)
        most.append(sum(t.dtype == torch.float32 for t in live))
        made.append(plan.matrix(tensor))
        return made[-1]

    found = weights_of(config, "cpu", matrix=matrix, vector=plan.vector)
    expected = converted(weights_of(config, "cpu"), plan.matrix, plan.vector)
    assert len(made) > 10 and max(most) == 1
    assert all(torch.equal(a, b) for a, b in zip(found.tensors(), expected.tensors(), strict=True))
