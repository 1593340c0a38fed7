"""`rung climb`: the whole model, from the simplest kernels to the fastest decode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.results.row import Row as Result

PROMPT = "Hello, I'm a language model,"
NEW_TOKENS = 512


def climb(
    model: Annotated[
        str, typer.Option("--model", "-m", help="As for generate; random:gpt2 has random weights.")
    ] = "random:gpt2",
    prompt: Annotated[str, typer.Option(help="The prompt.")] = PROMPT,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Tokens to write at each step.")] = NEW_TOKENS,
    dtype: Annotated[list[str] | None, typer.Option(help="float32, bfloat16, int8 ... (repeatable).")] = None,
    plan: Annotated[list[str] | None, typer.Option(help="Only these plans (repeatable; none: skip them).")] = None,
    rung: Annotated[
        list[str] | None, typer.Option(help="Only these rungs of decode, or of the study's ladder (repeatable).")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Without a cache: attention (rung by rung) or course (rungs only).")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="With --study attention: number of texts at once.")] = 1,
    seconds: Annotated[
        float, typer.Option(min=0.5, help="Time limit for each step; a slow one writes fewer tokens.")
    ] = 12.0,
    device: Annotated[str, typer.Option(help="cuda, or emulator to try the verb without a GPU.")] = "cuda",
    output: options.Output = None,
    svg: Annotated[Path | None, typer.Option(help="Draw a chart into this SVG file.")] = None,
    json: options.Json = False,
) -> None:
    """The whole model, from the simplest kernels to the fastest decode: first correctness, then speed.

    rung climb

    rung climb --model gpt2 --dtype bfloat16 --svg climb.svg
    """
    import torch

    from rung.models.family import requested
    from rung.models.folders import find
    from rung.show import model_chart
    from rung_reproduce.climbs import course, tables
    from rung_reproduce.climbs import model as generation
    from rung_reproduce.show import attention_text_chart
    from rung_reproduce.show.charts import write_svg
    from rung_reproduce.show.model_chart import chart

    if device not in ("cuda", "emulator"):
        raise RungError(f"device {device!r} runs no rungs; use cuda or emulator.")
    if requested(model) is None:
        find(model)
    if device == "cuda" and not torch.cuda.is_available():
        raise RungError("`rung climb` needs a CUDA device; --device emulator tries it, without times.")

    if study not in (None, "attention", "course"):
        raise RungError(f"there is no study {study!r} of the climb; there are attention and course.")
    if study == "course":
        prompt = course.PROMPT if prompt == PROMPT else prompt
        tokens = course.NEW_TOKENS if tokens == NEW_TOKENS else tokens
    config, weights, ids = generation.model_of(model, prompt, device)
    trained = "random" if model.startswith("random:") else model
    if study == "attention":
        from rung_reproduce.climbs import attention

        number = (dtype or ["float32"])[0]
        variants = attention.variants("cuda" if device == "cuda" else "emulator", rung, number)
        name, results = model.removeprefix("random:"), []
        for row in attention.run(
            config, weights, ids, tokens, variants,
            batch=batch, seconds=seconds, model=name, trained=trained, dtype=number,
        ):  # fmt: skip
            results.append(_store(row, device, output))  # at once, so that an interrupted study keeps its results
            if row.options["study"] == study:
                console.note(f"{row.part}: {attention_text_chart.result(row)}")
        if json:
            console.print_json([row.as_json() for row in results])
        else:
            console.show([tables.attention_study(attention_text_chart.of_study(results))])
        _draw_study(attention_text_chart.of_study(results), svg)
        return
    climber = generation.Climber(
        model.removeprefix("random:"), config, weights, ids, tokens,
        device="cuda" if device == "cuda" else "emulator", bandwidth=generation.bandwidth_of(device), seconds=seconds,
        study=study or "", progress=lambda row: None if json else console.note(tables.line(row)),
    )  # fmt: skip
    plans = [name for name in plan if name != "none"] if plan is not None else None
    results = []
    steps = generation.steps(dtype or ["float32", "bfloat16", "int8"], plans, rung) if study is None else course.steps()
    for step in climber.climb(steps):
        results.append(_store(climber.result.result(step, trained), device, output))
    if svg is not None and (timed := model_chart.steps(results)):
        write_svg(chart(timed), svg)
    if json:
        console.print_json([row.as_json() for row in results])
    else:
        console.show([tables.climbed(climber.result)])
    if any(row.verdict == "failed" for row in results):
        raise typer.Exit(1)


def _store(row: Result, device: str, output: Path | None) -> Result:
    """Rows of a GPU go to the user's store, all rows to the named file."""
    from rung.results import store

    stored = row if output is None else store.append(row, output)
    return store.append(stored) if device == "cuda" else stored


def _draw_study(rows: Sequence[Result], svg: Path | None) -> None:
    from rung_reproduce.show import attention_text_chart
    from rung_reproduce.show.charts import write_svg

    if svg is None:
        return
    if any("seconds" in row.metrics for row in rows):
        write_svg(attention_text_chart.chart(rows[0].what, rows), svg)
    else:
        console.note(f"{svg} was not drawn: there are no times.")
