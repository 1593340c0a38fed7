"""`rung profile`: Nsight Compute's counters of a rung, or where a token's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.profile.generation import Found


def profile(
    rung: Annotated[str, typer.Argument(metavar="OP/RUNG", help="A rung; `generate`: text generation.")],
    file: options.File = None,
    vs: Annotated[str | None, typer.Option(help="Another rung to compare with.")] = None,
    shape: options.Shape = None,
    dtype: options.Dtype = None,
    tune: options.Tune = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="With generate: which model; random:gpt2-xl has random weights.")
    ] = "inner",
    device: Annotated[
        str | None,
        typer.Option(help="With generate: cpu or cuda (default: what is here)."),
    ] = None,
    plan: Annotated[str | None, typer.Option(help="With generate: which plan computes the model.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=2, help="With generate: how many tokens.")] = 32,
    trace: Annotated[
        Path | None, typer.Option(help="With generate: write a Chrome trace (open it in ui.perfetto.dev).")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="With generate: include loading and compiling.")] = False,
    json: options.Json = False,
) -> None:
    """Nsight Compute's counters of one checked launch: throughput, occupancy, caches, conflicts, stalls.

    Clocks are left as they are. `rung profile generate` shows where a token's time goes, on a CPU too.

    Examples: rung profile attention/13 --vs attention/14 · rung profile generate -m gpt2 --trace token.json
    """
    if rung == "generate":
        from rung.profile.generation import profile as generation_of

        _generate(generation_of(model, device, plan, dtype, tokens, trace, whole=whole), trace, json)
        return
    if device not in (None, "cuda"):
        raise RungError(f"--device {device} is for `rung profile generate`; `rung count` counts without a GPU.")
    from rung import adopt
    from rung.profile import counters
    from rung.results import store
    from rung.rungs.subjects import subject_of

    subject, tuning = subject_of(adopt.named(rung, file), None, shape, dtype), options.parse_tuning(tune)
    reports = [counters.profile(subject, tuning)]
    store.append(counters.as_result(subject, tuning, reports[0]))
    if vs is not None:
        other = subject_of(vs, None, shape or subject.shape, dtype or subject.dtype.name)
        reports.append(counters.profile(other))
        store.append(counters.as_result(other, None, reports[1]))
    if json:
        console.print_json([r.as_json() for r in reports])
    else:
        from rung.show import profile_tables

        console.show(profile_tables.counters(reports))


def _generate(found: Found, path: Path | None, json: bool) -> None:
    from rung.results import store
    from rung.show import profile_tables

    if found.breakdown.device == "cuda":
        store.append(found.row)
    if json:
        console.print_json(found.row.as_json())
        return
    console.show(profile_tables.generation(found))
    if path is not None:
        print(f"Trace: {path} (open it in ui.perfetto.dev or chrome://tracing).")
