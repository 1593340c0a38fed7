"""Chooses a model's backend and its number of slots."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuless.base.processors import available_memory
from rung.errors import RungError
from rung.lazy import torch
from rung.models.batching.adaptive_drafting import AdaptiveDrafting
from rung.models.batching.host_sampling import HostBackend
from rung.models.batching.pages import PAGE
from rung.models.batching.text import Backend
from rung.models.transformer import Transformer

if TYPE_CHECKING:
    from rung.models.gpu.engine import GpuSteps

# Texts at a time on a CPU: the number of columns that the native step takes in one pass over the weights.
MOST_SLOTS = 32
MOST_GPU_SLOTS = 256
EXACT_SLOTS = 32  # in float32, in which a single text also uses the kernels for all rows
SHARE = 0.4  # share of the free memory that is used for keys and values


def backend_of(transformer: Transformer, slots: int | None = None) -> Backend:
    """The backend of a loaded model; `slots` overrides the number that fits into memory."""
    engine, on_cpu = transformer.service.engine, transformer.plan.on == "cpu"
    # On a CPU a text has pages of its tokens, at least one.
    context = transformer.config.context
    least = slot_bytes(transformer) * (PAGE if on_cpu else context) // context
    most = _memory(transformer) // least
    if slots is not None and slots > most:
        fit = f"keys and values of at most {most:,} texts fit into memory, so give less."
        raise RungError(f"slots is {slots:,}; {fit}")
    if engine is not None:
        from rung.models.gpu.slots import GpuBackend

        if transformer.drafting is not None:
            from rung.models.gpu.engine import Columns

            columns = Columns(engine)
            slots = min(slots or columns.columns_at_once, columns.columns_at_once)
            source = transformer.drafting.source
            proposing = Columns(source.service.engine) if source is not None else None
            drafted = HostBackend(transformer, slots, columns, transformer.drafting, proposing)
            # With a draft model, sampled text differs from text without drafts. Timing selects the kernels in any
            # case, so a text without drafts uses the kernels for the present number of texts.
            return AdaptiveDrafting(
                drafted,
                GpuBackend(transformer, engine, slots, exact=False),
                lambda text: proposing is None or text.options.sampling.temperature == 0,
            )
        exact = engine.real.name == "f32"
        room = None
        if not exact and engine.config.family.steps is None:
            room = _room(transformer)
        slots = slots or (_gpu_slots(transformer, engine) if room is None else MOST_GPU_SLOTS)
        return GpuBackend(transformer, engine, slots, exact=exact, room=room)
    native = transformer.service.native
    if transformer.plan.on == "cuda":
        fitting = max(1, min(MOST_SLOTS, _room(transformer) // transformer.config.context))
        return HostBackend(transformer, slots or fitting, native, transformer.drafting)
    # On a CPU memory follows the tokens that are there.
    return HostBackend(transformer, slots or MOST_SLOTS, native, transformer.drafting, room=_room(transformer))


def slot_bytes(transformer: Transformer) -> int:
    """Keys and values of one text that fills the context."""
    config, plan = transformer.config, transformer.plan
    size = 4 if plan.cache_dtype == "float32" else 2
    return 2 * config.layers * config.NKV * config.HS * config.context * size


def _room(transformer: Transformer) -> int:
    """Tokens whose keys and values may be in memory at a time."""
    return int(SHARE * _free(transformer)) * transformer.config.context // slot_bytes(transformer)


def _gpu_slots(transformer: Transformer, engine: GpuSteps) -> int:
    # Sessions with fewer rows, and those for prompts, take the same amount again.
    room, text = int(SHARE * _free(transformer)), slot_bytes(transformer)
    fitting = room // text
    if engine.cache == "int8":
        in_eight_bits = text * (transformer.config.HS + 4) // (transformer.config.HS * engine.real.size)
        few = engine.config.family.steps.MAX_ROWS_OWN_MMA
        if room // in_eight_bits >= 2 * few:  # the smallest power of two with that many rows
            fitting = room // in_eight_bits
    most = min(EXACT_SLOTS if engine.real.name == "f32" else MOST_GPU_SLOTS, max(1, fitting))
    slots = 1 << most.bit_length() - 1
    while slots > 1 and not engine.takes(slots):
        slots //= 2
    return slots


def _memory(transformer: Transformer) -> int:
    if transformer.plan.on == "cuda":
        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free(transformer: Transformer) -> int:
    if transformer.plan.on == "cuda":
        return torch.cuda.mem_get_info()[0]
    return available_memory()
