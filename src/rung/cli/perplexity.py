"""`rung perplexity`: how well a model predicts a text file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rung.cli import options
from rung.errors import RungError
from rung.files import read_bytes


def perplexity(
    model: Annotated[str, typer.Argument(help="inner, gpt2, a hub id or a folder.")],
    file: Annotated[Path, typer.Argument(help="A text file in UTF-8.")],
    stride: options.Stride = None,
    context: options.Context = None,
    dtype: options.ModelDtype = "float32",
    device: options.ModelDevice = "auto",
    json_: options.Json = False,
    revision: options.Revision = None,
    offline: options.Offline = False,
    threads: options.Threads = None,
    window: options.Window = None,
    global_: options.Global = 0,
) -> None:
    """How well a model predicts a text file, over windows that overlap.

    rung perplexity gpt2 chapter.txt --stride 512
    """
    try:
        text = read_bytes(file).decode()
    except UnicodeDecodeError:
        raise RungError(f"{file} is not UTF-8; convert it, with iconv for example.") from None
    except OSError as error:
        raise RungError(f"{file} cannot be read ({error.strerror}); name a text file.") from None
    from rung.models import perplexity as measure
    from rung.models.load import load

    chosen = load(
        model, device=device, dtype=dtype, revision=revision, offline=offline, threads=threads, window=window,
        global_tokens=global_,
    )  # fmt: skip
    result = measure.perplexity(chosen, text, stride=stride, context=context)
    if json_:
        print(json.dumps({"perplexity": result.perplexity, "loss": result.loss, "tokens": result.tokens}))
    else:
        loss = f"{result.loss:.4f} nats per token"
        print(f"perplexity {result.perplexity:.4f} ({loss}) over {result.tokens:,} tokens")
