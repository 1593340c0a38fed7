"""`rung climb`: the whole model, from the simplest kernels to the fastest decode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.models.family import Config
    from rung.models.weights import Weights
    from rung.reproduce.climbs.model import Climb, Climbed
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
    svg: options.Svg = None,
    json: options.Json = False,
) -> None:
    """The whole model, from the simplest kernels to the fastest decode: first correctness, then speed.

    rung climb

    rung climb --model gpt2 --dtype bfloat16 --svg climb.svg
    """
    import torch

    from rung.models.family import requested
    from rung.models.load import find
    from rung.reproduce.climbs import course
    from rung.reproduce.climbs import model as generation
    from rung.show import attention_text_chart, model_chart

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
    config, weights, ids = _model(model, prompt, device)
    trained = "random" if model.startswith("random:") else model
    if study == "attention":
        from rung.reproduce.climbs import attention

        number = (dtype or ["float32"])[0]
        variants = attention.variants("cuda" if device == "cuda" else "emulator", rung, number)
        name, results = model.removeprefix("random:"), []
        for row in attention.run(
            config, weights, ids, tokens, variants,
            batch=batch, seconds=seconds, model=name, trained=trained, dtype=number,
        ):  # fmt: skip
            results.append(_store(row, device, output))  # at once, so that an interrupted study keeps its results
            console.note(f"{row.part}: {attention_text_chart.result(row)}")
        console.print_json([row.as_json() for row in results]) if json else _print_study(results)
        _draw_study(results, svg)
        return
    climber = generation.Climber(
        model.removeprefix("random:"), config, weights, ids, tokens,
        device="cuda" if device == "cuda" else "emulator", bandwidth=_bandwidth(device), seconds=seconds,
        study=study or "", progress=lambda row: None if json else console.note(_line(row)),
    )  # fmt: skip
    plans = [name for name in plan if name != "none"] if plan is not None else None
    results = []
    steps = generation.steps(dtype or ["float32", "bfloat16", "int8"], plans, rung) if study is None else course.steps()
    for step in climber.climb(steps):
        results.append(_store(climber.result.result(step, trained), device, output))
    if svg is not None and (timed := model_chart.steps(results)):
        _draw(model_chart.chart(timed), svg)
    if json:
        console.print_json([row.as_json() for row in results])
    else:
        _print(climber.result)
    if any(row.verdict == "failed" for row in results):
        raise typer.Exit(1)


def _store(row: Result, device: str, output: Path | None) -> Result:
    """Rows of a GPU go to the user's store, all rows to the named file."""
    from rung.results import store

    stored = row if output is None else store.append(row, output)
    return store.append(stored) if device == "cuda" else stored


def _model(model: str, prompt: str, device: str) -> tuple[Config, Weights, list[int]]:
    from rung.models import family
    from rung.models import weights as model_weights
    from rung.models.family import TOKENIZED

    if (config := family.requested(model)) is not None:
        if prompt not in TOKENIZED:
            raise RungError("random weights have no tokenizer; leave --prompt out, or name a real --model.")
        where = "cuda" if device == "cuda" else "cpu"
        return config, model_weights.weights_of(config, where), list(TOKENIZED[prompt])
    from rung.models.family import read_config
    from rung.models.load import find
    from rung.models.tokenizer import read_tokenizer
    from rung.models.weights import Linear, read_weights

    folder = find(model)
    config = read_config(folder / "config.json")
    weights = read_weights(folder, config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    return config, weights, list(read_tokenizer(folder).encode(prompt))


def _bandwidth(device: str) -> float | None:
    if device != "cuda":
        return None
    from rung.bench import race

    return race.measure_ceilings().bytes


def _line(row: Climbed) -> str:
    if row.verdict != "ok":
        return f"{row.dtype} {row.name}: {row.verdict}: {row.reason}"
    speed = "right" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f} tokens/s"
    return f"{row.dtype} {row.name}: {speed}"


def _draw(picture: str, path: Path) -> None:
    from rung.show.charts import write_svg

    write_svg(picture, path)


def _print(result: Climb) -> None:
    columns = (
        "step", "dtype", "tokens/s", "vs before", "first, ms", "peak, MB", "of bandwidth", "KL", "same", "tokens", "",
    )  # fmt: skip
    shown = []
    for row in result.rows:
        known = row.tokens_per_second is not None
        shown.append(
            (
                row.name,
                row.dtype,
                f"{row.tokens_per_second:,.0f}" if known else "",
                f"{row.gain:.2f}x" if row.gain else "",
                f"{row.first_seconds * 1e3:.1f}" if row.first_seconds else "",
                f"{row.peak_bytes / 1e6:,.0f}" if row.peak_bytes else "",
                f"{row.of_bandwidth:.1%}" if row.of_bandwidth else "",
                f"{row.divergence:.1e}" if row.divergence is not None else "",
                f"{row.identical}" if row.identical is not None else "",
                row.tokens or "",
                row.reason or ("" if row.verdict == "ok" else row.verdict),
            )
        )
    console.table(columns, shown, right=columns[2:10], drop=("tokens", "peak, MB", "same", "first, ms", "KL"))


def _print_study(rows: Sequence[Result]) -> None:
    from rung.show.attention_text_chart import result

    columns = ("attention", "time", "against naive torch at the same length", "same tokens", "")
    shown = [
        (
            row.part,
            result(row) if row.verdict == "ok" else "",
            f"{row.metrics['vs_naive']:.2f}x" if row.verdict == "ok" else "",
            f"{row.metrics['same_tokens']:.0f}" if "same_tokens" in row.metrics else "",
            row.reason,
        )
        for row in rows
    ]
    console.table(columns, shown, right=columns[1:4])


def _draw_study(rows: Sequence[Result], svg: Path | None) -> None:
    from rung.show import attention_text_chart

    if svg is None:
        return
    if any("seconds" in row.metrics for row in rows):
        _draw(attention_text_chart.chart(rows[0].what, rows), svg)
    else:
        console.note(f"{svg} was not drawn: there are no times.")
