"""Which backend serves a model, and with how many slots."""

from __future__ import annotations

import os

import torch

from rung.gpt2.batching.backend import Backend
from rung.gpt2.batching.host import HostBackend
from rung.gpt2.cpu.plan import NativeStep
from rung.gpt2.model import Transformer

# Texts at a time on a CPU: the native step takes as many columns in one pass over the weights.
MOST_SLOTS = 32
SHARE = 0.5  # of the memory that is free, for keys and values


def backend_of(transformer: Transformer, slots: int | None = None) -> Backend:
    """The backend of a model that was loaded; `slots` in place of what its memory allows."""
    step = transformer.service.stepper
    native = step.engine if isinstance(step, NativeStep) else None
    return HostBackend(transformer, slots or _slots(transformer), native)


def slot_bytes(transformer: Transformer) -> int:
    """Keys and values of one text that fills the context."""
    config, plan = transformer.config, transformer.plan
    return 2 * config.layers * config.C * config.context * plan.cache_dtype.itemsize


def _slots(transformer: Transformer) -> int:
    if transformer.plan.device.type == "cuda":
        free = torch.cuda.mem_get_info()[0]
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(MOST_SLOTS, int(SHARE * free) // slot_bytes(transformer)))
