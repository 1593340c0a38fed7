"""Where a token's time goes: generation under torch's profiler, beside the least time, and inside the decode rung."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rung.bench import race
from rung.errors import RungError
from rung.models.family import TOKENIZED, requested
from rung.models.gpu.engine import GpuPlan
from rung.models.load import load
from rung.models.weights import weight_bytes
from rung.profile import stopwatch, trace
from rung.results import machine
from rung.results.row import Row
from rung.rungs import identity

if TYPE_CHECKING:
    from rung.models.gpu.engine import GpuSteps
    from rung.profile.stopwatch import Inside
    from rung.profile.trace import Breakdown


class Writer(NamedTuple):
    """Writes this many tokens, and counts them."""

    write: Callable[[int], int]
    engine: GpuSteps | None  # of the plan best


class Floor(NamedTuple):
    """The least time of a token: its weights, read once at the measured copy bandwidth."""

    bytes: float
    bandwidth: float

    @property
    def seconds(self) -> float:
        return self.bytes / self.bandwidth


class Found(NamedTuple):
    """What a run showed, and its row."""

    breakdown: Breakdown
    floor: Floor | None
    inside: Inside | None
    row: Row


def profile(
    model: str, device: str | None, plan: str | None, dtype: str | None, tokens: int, path: Path | None, *, whole: bool
) -> Found:
    """Generates `tokens` tokens under the profiler."""
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if where == "cuda" and not torch.cuda.is_available():
        raise RungError("no CUDA device was found; --device cpu profiles the CPU's operators.")
    made: list[Writer] = []

    def work() -> int:
        if whole or not made:
            made.append(_writer(model, where, plan, dtype))
        return made[-1].write(tokens)

    if not whole:
        work()  # compiled, captured and warm
    found = trace.record(work, path)
    engine = made[-1].engine if where == "cuda" else None
    floor = None
    if engine is not None:
        floor = Floor(weight_bytes(engine.config, engine.dtype), race.measure_ceilings().bytes)
    inside = _inside(engine) if engine is not None else None
    return Found(found, floor, inside, _as_result(model, dtype, found, floor, inside, made[-1].engine, whole))


def _as_result(
    model: str,
    dtype: str | None,
    found: Breakdown,
    floor: Floor | None,
    inside: Inside | None,
    engine: GpuSteps | None,
    whole: bool,
) -> Row:
    """The profile as the results store keeps it."""
    rung = engine.latest.work.rung if engine is not None and engine.latest is not None else None
    figures: dict[str, float | None] = {
        "token_us": found.seconds * 1e6,
        "gap_us": found.gap * 1e6,
        "floor_us": None if floor is None else floor.seconds * 1e6,
    }
    detail = {
        "shares": [vars(s) for s in found.shares],
        "copies": [vars(t) for t in found.copies] or None,
        "calls": [vars(t) for t in found.calls] or None,
        "floor": None if floor is None else floor._asdict(),
        "inside": None if inside is None else inside.as_json(),
    }
    return Row(
        kind="profile",
        what=model.removeprefix("random:"),
        part="whole run" if whole else "generate",
        dtype=dtype or (engine.dtype if engine is not None else ""),
        options={"device": found.device, "tokens": found.tokens},
        texts={rung.full_name: identity.text(rung)} if rung is not None else {},
        detail={name: value for name, value in detail.items() if value is not None},
        weights="random" if model.startswith("random:") else model,
        machine=machine.facts(),
        state=machine.state(),
    ).with_metrics(**figures)


def _inside(engine: GpuSteps) -> Inside | None:
    """For the session's decode rung, at the text's present length."""
    session = engine.latest
    if session is None or session.work.rung is None:
        return None
    rung = session.work.rung
    bound = {o.name for o in rung.operation.operands}
    tensors = {n: t for n, t in session.tensors.items() if n in bound}
    return stopwatch.of(rung, tensors, session.values, engine.real, session.work.tuning)


def _writer(model: str, where: str, plan: str | None, dtype: str | None) -> Writer:
    loaded = load(model, device=where, dtype=dtype or "auto", plan=plan)
    prompt = [next(iter(TOKENIZED.values())) if requested(model) else list(loaded.tokenizer.encode("Once upon a time"))]
    options: Any = {"temperature": 0.0, "stop_tokens": []}

    def write(tokens: int) -> int:
        return sum(len(c.tokens) for c in loaded.generate(prompt, **options, max_new_tokens=tokens))

    def here(tokens: int) -> int:
        """In this thread, the one that torch's profiler watches on a CPU."""
        model = loaded.transformer
        cache = model.new_cache(1, len(prompt[0]) + tokens)
        logits = model.advance(prompt, cache)
        for _ in range(tokens - 1):
            logits = model.advance([[int(logits.argmax())]], cache)
        return tokens

    if where == "cpu":
        return Writer(here, None)

    return Writer(write, loaded.plan.engine if isinstance(loaded.plan, GpuPlan) else None)
