"""`rung chat`: a conversation in the terminal, by the model's chat template."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from rung.cli import options
from rung.cli.generate import begin
from rung.errors import RungError

NEW, END = "/new", "/end"


def chat(
    model: options.Model = "inner",
    system: Annotated[str | None, typer.Option(help="What the model is told before the first message.")] = None,
    device: options.ModelDevice = "auto",
    dtype: options.ModelDtype = "auto",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Tokens of an answer.", min=1)] = 1024,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy decoding.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Sample from the most likely tokens that sum to p.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.")] = None,
    draft: options.Draft = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    offline: options.Offline = False,
) -> None:
    """Talk with a model that brings a chat template, a line at a time.

    /new begins another conversation, /end or Ctrl-D ends, Ctrl-C ends an answer.

    rung chat --model HuggingFaceTB/SmolLM2-135M-Instruct

    rung chat --model ./qwen3-0.6b-q8_0.gguf --dtype int8 --system "Answer in one sentence."
    """
    begin(device, dtype, None, long=True)
    from rung.models.load import load
    from rung.serve.chat import template_of

    chosen = load(model, device=device, dtype=dtype, threads=threads, revision=revision, offline=offline, draft=draft)
    template = template_of(chosen.folder, chosen.config, chosen.tokenizer)
    if template is None:
        raise RungError(f"{model} brings no chat template; `rung generate` continues texts with it.")
    how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    before = [{"role": "system", "content": system}] if system else []
    messages = list(before)
    while (text := _line()) not in (None, END):
        if text == NEW:
            messages = list(before)
        if not text or text == NEW:
            continue
        messages.append({"role": "user", "content": text})
        ids = chosen.tokenizer.encode(template.text(messages))
        room = chosen.config.context + 1 - len(ids)
        if room < 1:
            messages.pop()
            print(f"rung: the conversation fills the model's context; {NEW} begins another.", file=sys.stderr)
            continue
        run = chosen.run([ids], max_new_tokens=min(max_new_tokens, room), **how)
        for _, piece in run:
            print(piece, end="", flush=True)
        print(flush=True)
        messages.append({"role": "assistant", "content": run.completions[0].text})


def _line() -> str | None:
    """The next line that the user writes; None at the end."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    import readline  # noqa: F401 - input() then edits lines and keeps a history

    try:
        return input("> ").strip()
    except EOFError:
        print()
        return None
