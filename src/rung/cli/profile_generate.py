"""`rung profile generate`: where a token's time goes, by kernel, against memory, and inside the decode rung."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rung.cli import console
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.models.gpu.engine import GpuSteps
    from rung.profile.stopwatch import Inside
    from rung.profile.trace import Breakdown
    from rung.results.row import Row

SHOWN = 15


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


def run(
    model: str,
    device: str | None,
    plan: str | None,
    dtype: str | None,
    tokens: int,
    path: Path | None,
    json: bool,
    whole: bool = False,
) -> None:
    """Generate `tokens` tokens under the profiler and report where their time went."""
    import torch

    from rung.profile import trace
    from rung.results import store

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
    writer = made[-1]
    floor = _floor(writer.engine) if where == "cuda" and writer.engine is not None else None
    inside = _inside(writer.engine) if floor is not None and writer.engine is not None else None
    row = _as_result(model, dtype, found, floor, inside, writer.engine, whole)
    if where == "cuda":
        store.append(row)
    if json:
        console.print_json(row.as_json())
        return
    _print(found, floor)
    if inside is not None:
        print_inside(inside)
    if path is not None:
        print(f"Trace: {path} (open it in ui.perfetto.dev or chrome://tracing).")


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
    from rung.results import machine
    from rung.results.row import Row
    from rung.rungs import identity

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


def _print(found: Breakdown, floor: Floor | None) -> None:
    what = "kernel" if found.device == "cuda" else "operator"
    overlap = any(s.running > 1.02 * s.seconds for s in found.shares)
    rows = [
        (
            s.name[:70],
            f"{s.calls:.1f}",
            f"{s.running * 1e6:.1f}" if overlap else "",
            f"{s.seconds * 1e6:.1f}",
            f"{s.seconds / found.seconds:.1%}",
        )
        for s in found.shares[:SHOWN]
    ]
    rest = sum(s.seconds for s in found.shares[SHOWN:])
    if rest:
        rows.append((f"{len(found.shares) - SHOWN} others", "", "", f"{rest * 1e6:.1f}", f"{rest / found.seconds:.1%}"))
    # On a CPU, rung's compiled step calls no torch operator, so the profiler does not see its time.
    idle = "gaps" if found.device == "cuda" else "outside of torch's operators: rung's compiled step, Python"
    rows.append((f"({idle})", "", "", f"{found.gap * 1e6:.1f}", f"{found.gap / found.seconds:.1%}"))
    columns = (what, "calls", "runs, us", "us per token", "share")
    console.table(columns, rows, right=columns[1:])
    place = "in gaps" if found.device == "cuda" else "outside of operators"
    print(
        f"\n{found.seconds * 1e6:.1f} us per token on the {found.device} under the profiler, "
        f"{found.gap / found.seconds:.0%} of it {place}, over {found.tokens} tokens and their prompt."
    )
    if overlap:
        print("Kernels may overlap: each is assigned the time by which it outlasts those that started before it.")
    for title, totals in (("copies", found.copies), ("calls of CUDA", found.calls)):
        if totals:
            print(f"\n{title} of the whole run:\n")
            lines = [
                (t.name[:70], t.calls, f"{t.seconds * 1e3:.3f}", f"{t.bytes / 1e6:.2f}" if t.bytes else "")
                for t in totals[:SHOWN]
            ]
            console.table((title, "how many", "ms", "MB"), lines, right=("how many", "ms", "MB"))
    if floor is not None:
        print(
            f"Reading a step's {floor.bytes / 1e6:,.0f} MB of weights takes at least {floor.seconds * 1e6:.0f} us "
            f"({floor.bandwidth / 1e12:.2f} TB/s here): {floor.seconds / found.seconds:.0%} of a token's time."
        )


def print_inside(inside: Inside) -> None:
    """The table of a kernel that timed itself, a line for each row and thread."""
    columns = (*(f"{c}, us" for c in inside.columns), "all, us", "share")
    rows = []
    for group in inside.groups():
        all_of_it = [sum(spent) for _, spent in group]
        for (name, spent), whole in zip(group, all_of_it, strict=True):
            rows.append((name, *map(_us, spent), _us(whole), f"{whole / inside.timed_seconds:.1%}"))
        if len(group) > 1:
            sums = [sum(part) for part in zip(*(spent for _, spent in group), strict=True)]
            rows.append(("together", *map(_us, sums), _us(sum(sums)), f"{sum(sums) / inside.timed_seconds:.1%}"))
    print(f"\nInside {inside.rung}, the mean of {inside.blocks} blocks:\n")
    console.table((" ", *columns), rows, right=columns)
    print(
        f"\nThe build with timers took {inside.timed_seconds * 1e6:.1f} us per call, "
        f"the usual one {inside.seconds * 1e6:.1f} us."
    )
    if inside.default_tuning:
        print("Both with the rung's default tuning: with this shape's own, the timers' registers spill.")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds > 0 else ""


def _floor(engine: GpuSteps) -> Floor:
    from rung.bench import race
    from rung.reproduce.climbs import model as generation

    return Floor(generation.weight_bytes(engine.config, engine.dtype), race.measure_ceilings().bytes)


def _inside(engine: GpuSteps) -> Inside | None:
    """For the session's decode rung, at the text's present length."""
    from rung.profile import stopwatch as inside

    session = engine.latest
    if session is None or session.work.rung is None:
        return None
    rung = session.work.rung
    bound = {o.name for o in rung.operation.operands}
    tensors = {n: t for n, t in session.tensors.items() if n in bound}
    return inside.of(rung, tensors, session.values, engine.real, session.work.tuning)


def _writer(model: str, where: str, plan: str | None, dtype: str | None) -> Writer:
    from rung.cli.climb import PROMPT_TOKENS
    from rung.models.family import requested
    from rung.models.gpu.engine import GpuPlan
    from rung.models.load import load

    loaded = load(model, device=where, dtype=dtype or "auto", plan=plan)
    prompt = [PROMPT_TOKENS if requested(model) else list(loaded.tokenizer.encode("Once upon a time"))]
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
