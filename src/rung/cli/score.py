"""`rung score`: how likely texts are."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rung.cli import console, options
from rung.errors import RungError
from rung.models import resume
from rung.models.text_files import labelled, texts_of


def score(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts: .jsonl (one text per line), .parquet, or plain files; - or nothing for standard input."
        ),
    ] = None,
    model: options.Model = "inner",
    field: Annotated[
        str, typer.Option(help="The field of a .jsonl line or a .parquet row that holds the text.")
    ] = "text",
    lines: Annotated[bool, typer.Option("--lines", help="Each line of a plain file is a separate text.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--output", "--out", "-o", help="Write JSON lines here; a run that was stopped is resumed."),
    ] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Each token's log-probability, rank and entropy.")
    ] = False,
    predict_first: Annotated[
        bool, typer.Option("--predict-first", help="Score the first token as well, after an end-of-text token.")
    ] = False,
    perplexity: Annotated[bool, typer.Option("--perplexity", help="One file's perplexity, as a sentence.")] = False,
    stride: options.Stride = None,
    context: options.Context = None,
    window: options.Window = None,
    global_: options.Global = 0,
    dtype: options.ModelDtype = "auto",
    device: options.ModelDevice = "auto",
    revision: options.Revision = None,
    offline: options.Offline = False,
    threads: options.Threads = None,
    gpus: options.Gpus = None,
    ray: options.Ray = None,
) -> None:
    """Log-probability, perplexity and bits per byte of each text, as JSON lines in the order of the texts.

    rung score chapter.txt --model gpt2 --perplexity --stride 512

    cat questions.jsonl | rung score --field question -o scores.jsonl

    rung score corpus.jsonl --model gpt2 --ray auto -o scores.jsonl
    """
    how: dict[str, Any] = {
        "model": model, "device": options.device_of(gpus, device, ray), "dtype": dtype, "revision": revision,
        "offline": offline, "threads": threads, "window": window, "global_tokens": global_,
    }  # fmt: skip
    if perplexity:
        return _tell_perplexity(how, files or [], {"stride": stride, "context": context})
    scoring = {"per_token": per_token, "predict_first": predict_first, "stride": stride, "context": context}
    asked = {"model": model, "dtype": dtype, "revision": revision, "field": field, "lines": lines, **scoring}
    run = resume.run_of(asked)
    done = resume.done(out, run)
    every = labelled(files or ["-"], field, lines)
    waiting: deque[dict[str, Any]] = deque()

    def texts() -> Iterator[str]:
        for index, (label, text) in enumerate(every):
            if index < done:
                continue
            waiting.append({"index": index, **label, **({"run": run} if out else {})})
            yield text

    with resume.opened(out) as sink, console.progress("texts") as report:
        for number, one in enumerate(_scores(how, texts(), scoring, gpus, ray), done + 1):
            print(json.dumps({**waiting.popleft(), **one}), file=sink, flush=True)
            report("", number, None)


def _tell_perplexity(how: dict[str, Any], files: list[str], scoring: dict[str, Any]) -> None:
    """The perplexity of one file, as a sentence."""
    if len(files) != 1:
        raise RungError("--perplexity takes one file, as in `rung score chapter.txt --perplexity`.")
    (text,) = texts_of(files[0], "", lines=False, plain=True)
    (one,) = _scores(how, iter([text]), scoring, None, None)
    if "perplexity" not in one:
        raise RungError("the text is too short: perplexity needs two tokens at least.")
    loss = -one["logprob"] / one["predicted"]
    figures = f"perplexity {one['perplexity']:.4f} ({loss:.4f} nats per token)"
    print(f"{figures} over {one['tokens']:,} tokens")


def _scores(
    how: dict[str, Any], texts: Iterator[str], scoring: dict[str, Any], gpus: int | None, ray: str | None
) -> Iterator[dict[str, Any]]:
    if ray is None and gpus is None:
        from rung.models.load import load

        return (one.as_json() for one in load(**how).scores(texts, **scoring))
    from rung.models.batching.blocks import Job, over_gpus, over_ray

    job = Job(how, "score", scoring)
    found = over_gpus(job, texts, gpus) if ray is None and gpus else over_ray(job, texts, ray or "auto")
    return (one for (one,) in found)
