"""`rung convert`: a checkpoint of nanoGPT or llm.c as a folder that every program reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.errors import RungError


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="nanoGPT's ckpt.pt, or llm.c's .bin.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write: config.json, model.safetensors.")],
) -> None:
    """Write a checkpoint of nanoGPT or llm.c in Hugging Face's layout, with the tokenizer next to it.

    rung convert out-shakespeare/ckpt.pt my-model
    """
    if folder.exists() and any(folder.iterdir()):
        raise RungError(f"{folder} exists and is not empty; name a new folder.")
    from rung.models.gpt2.checkpoints import convert as write

    config = write(checkpoint, folder)
    print(f"{folder}: {config.layers} layers, {config.C} channels, a vocabulary of {config.vocabulary:,}")
    if not (folder / "tokenizer.json").exists():
        print("no tokenizer was found next to the checkpoint: copy tokenizer.json into the folder to write text")
