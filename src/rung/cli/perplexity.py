"""`rung perplexity`: how well a model predicts a text file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rung.errors import RungError


def perplexity(
    model: Annotated[str, typer.Argument(help="inner, gpt2, a hub id or a folder.")],
    file: Annotated[Path, typer.Argument(help="A text file in UTF-8.")],
    stride: Annotated[
        int | None, typer.Option(help="Tokens from window to window; half the context.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens a window; the model's whole context.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, int8.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda or emulator.")] = "cpu",
    json_: Annotated[bool, typer.Option("--json", help="The figures as a JSON object.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="A branch, tag or commit of the model on the hub.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what was downloaded before.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads; by default as many as there are.")] = None,
) -> None:
    """How well a model predicts a text file, over windows that overlap.

    rung perplexity gpt2 chapter.txt --stride 512
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RungError(f"{file} is not UTF-8; convert it, with iconv for example.") from None
    except OSError as error:
        raise RungError(f"{file} cannot be read ({error.strerror}); name a text file.") from None
    from rung.gpt2 import perplexity as measure
    from rung.gpt2.load import load

    chosen = load(model, device=device, dtype=dtype, revision=revision, offline=offline, threads=threads)
    result = measure.perplexity(chosen, text, stride=stride, context=context)
    if json_:
        print(json.dumps({"perplexity": result.perplexity, "loss": result.loss, "tokens": result.tokens}))
    else:
        loss = f"{result.loss:.4f} nats a token"
        print(f"perplexity {result.perplexity:.4f} ({loss}) over {result.tokens:,} tokens")
