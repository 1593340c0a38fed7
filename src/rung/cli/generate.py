"""`rung generate`: text from a GPT-2."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.errors import RungError

if TYPE_CHECKING:
    from rung.gpt2.generate import Run
    from rung.gpt2.load import Model
    from rung.gpt2.options import Completion


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to go on from. Left out or '-': standard input.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="inner, gpt2[-medium|-large|-xl], distilgpt2, a hub id or a folder."
        ),
    ] = "inner",
    device: Annotated[str, typer.Option(help="cpu, cuda, or emulator: CUDA kernels without a GPU.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="auto, float32, bfloat16, int8; on a GPU also tf32 and float16.")
    ] = "auto",
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Stop after so many tokens.")
    ] = 200,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="0 always takes the likeliest.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest tokens that sum up to p.")] = 0.95,
    min_p: Annotated[float, typer.Option(help="Leave out tokens below p times the likeliest one.")] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: tokens that occurred become less likely.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken from the logits of tokens in the new text.")
    ] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, once for every occurrence.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    num_samples: Annotated[int, typer.Option(help="Texts for each prompt.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given again.")] = None,
    stop_token: Annotated[
        list[str] | None, typer.Option(help="End at this token, a number or its text; may be given again.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of text.")] = False,
    slide: Annotated[
        bool, typer.Option("--slide", help="When the context is full, forget its older half and go on.")
    ] = False,
    echo: Annotated[
        bool | None,
        typer.Option("--echo/--no-echo", help="Print the prompt too (the default, except in JSON)."),
    ] = None,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Log-probabilities of the tokens, in JSON.")
    ] = False,
    prompts: Annotated[Path | None, typer.Option(help="A file of prompts, one a line.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Texts written at the same time; by default as many as the memory allows.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a text.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Times, tokens per second and memory, on stderr.")
    ] = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print a text only when it is complete.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(help="A branch, tag or commit of the model on the hub.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what was downloaded before.")] = False,
    plan: Annotated[
        str | None,
        typer.Option(
            help="Which rungs serve the operations, on emulator and cuda: naive, reduction, tiled, tensorcore, "
            "flash, fused, library, torch or best."
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="Swap one rung: attention=5 or gelu=my_kernel.cu; may be given again."),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Let a token see so many tokens only, itself the last of them.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; by default as many as there are.")] = None,
) -> None:
    """Write text with a GPT-2 model.

    rung generate "Once upon a time"

    rung generate "The ship" --model gpt2 -n 100 -t 0.7 --seed 1 --stats

    cat chapter.txt | rung generate --model ./my-model --dtype int8

    rung generate --prompts lines.txt --num-samples 3 --json

    rung generate "Hello" --device emulator -n 2 --kernel layernorm=7
    """
    if logprobs and not json_:
        raise RungError("log-probabilities are part of the JSON output; add --json.")
    if device == "cpu":
        # The compiler, should it be needed, works while torch is imported.
        from rung.gpt2.cpu import build

        build.begin()
    texts = _prompts(prompt, prompts)
    from rung.gpt2.load import load

    chosen = load(
        model, device=device, dtype=dtype, revision=revision, offline=offline, threads=threads, plan=plan,
        kernels=_kernels(kernel or []), window=window,
    )  # fmt: skip
    show_prompt = (not json_) if echo is None else echo
    run = chosen.run(
        texts,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        max_new_tokens=max_new_tokens,
        seed=seed,
        num_samples=num_samples,
        stop=tuple(stop or ()),
        stop_tokens=_stop_tokens(chosen, stop_token or [], ignore_eos),
        slide=slide,
        echo=show_prompt,
        logprobs=logprobs,
        batch_size=batch_size,
    )
    single = len(texts) * num_samples == 1
    if single and not json_ and not no_stream and sys.stdout.isatty():
        _stream(run, texts[0] if show_prompt else "")
    else:
        # Into a file or pipe each text goes as soon as it is complete; figures are known when all are.
        _collect(run, as_json=json_, at_once=not sys.stdout.isatty() and not (json_ and stats))
        _print(run.take(unfinished=True), _figures(chosen, run) if stats else None, json_)
    if stats and not json_:
        print(_summary(_figures(chosen, run)), file=sys.stderr)
    if run.interrupted:
        raise typer.Exit(130)


def _prompts(prompt: str | None, file: Path | None) -> list[str]:
    if file is not None:
        if prompt is not None:
            raise RungError("both a prompt and --prompts were given; choose one.")
        return _lines(file)
    if prompt is None or prompt == "-":
        if prompt is None and sys.stdin.isatty():
            raise RungError('there is no prompt; try: rung generate "Once upon a time".')
        prompt = _text(sys.stdin.buffer.read(), "standard input").removesuffix("\n")
    if not prompt:
        raise RungError("the prompt is empty; give at least one character to go on from.")
    return [prompt]


def _lines(file: Path) -> list[str]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RungError(f"{file} cannot be read ({error.strerror}); name a text file of prompts.") from None
    lines = [line.removesuffix("\r") for line in _text(content, str(file)).removesuffix("\n").split("\n")]
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise RungError(f"{file} holds no prompt; write one a line.")
    blank = len(lines) - len(texts)
    if blank:
        print(f"rung: {file}: {blank} blank line{'s' * (blank > 1)} left out.", file=sys.stderr)
    return texts


def _text(content: bytes, origin: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RungError(f"{origin} is not UTF-8 (line {line}); convert it, with iconv for example.") from None


def _kernels(given: list[str]) -> dict[str, str]:
    kernels = {}
    for text in given:
        operation, equals, rung = text.partition("=")
        if not (operation and equals and rung):
            raise RungError(f"--kernel {text!r} is not OPERATION=RUNG; write for example layernorm=7.")
        kernels[operation] = rung
    return kernels


def _stop_tokens(model: Model, given: list[str], ignore_eos: bool) -> list[int]:
    ids = [] if ignore_eos else list(model.config.eos)
    for text in given:
        id = int(text) if text.isdigit() else model.tokenizer.token(text)
        if id is None:
            raise RungError(f"--stop-token {text!r} is no single token of this model; use --stop for a text.")
        if id >= model.config.vocabulary:
            raise RungError(f"--stop-token {id} is outside the model's vocabulary of {model.config.vocabulary:,}.")
        ids.append(id)
    return ids


def _stream(run: Run, prompt: str) -> None:
    out = sys.stdout
    out.write(prompt)
    out.flush()
    try:
        for _, piece in run:
            out.write(piece)
            out.flush()
    except KeyboardInterrupt:  # it came while writing
        run.interrupted = True
    out.write("\n")
    out.flush()


def _collect(run: Run, *, as_json: bool, at_once: bool) -> None:
    from contextlib import nullcontext

    total = len(run.completions)
    progress: Any = nullcontext()
    if total > 1 and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        progress = Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
    try:
        with progress as bar:
            task = bar.add_task("texts", total=total) if bar else None
            for _ in run:
                if at_once:
                    _print(run.take(), None, as_json)
                if bar:
                    bar.update(task, completed=run.finished)
    except KeyboardInterrupt:
        run.interrupted = True


def _print(completions: Iterable[tuple[int, Completion]], figures: dict[str, Any] | None, as_json: bool) -> None:
    for index, completion in completions:
        if as_json:
            fields = {k: v for k, v in asdict(completion).items() if v is not None}
            print(json.dumps(fields | ({"stats": figures} if figures else {}), ensure_ascii=False), flush=True)
            continue
        if index:
            print("---")
        print(completion.text, flush=True)


def _figures(model: Model, run: Run) -> dict[str, Any]:
    s = run.stats
    return {
        "model": model.name,
        "device": model.plan.on,
        "dtype": model.plan.dtype,
        "load_s": round(model.load_seconds, 3),
        "prompt_tokens": s.prompt_tokens,
        "prefill_ms": round(s.prefill_seconds * 1e3, 2),
        "new_tokens": s.new_tokens,
        "tokens_per_s": round(s.tokens_per_second, 1) if s.tokens_per_second else None,
        "peak_memory_mb": round(_peak_memory() / 1e6, 1),
        "plan": model.plan.name,
        "rungs": model.plan.rungs_in_use,
        "notes": model.plan.notes,
    }


def _peak_memory() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _summary(f: dict[str, Any]) -> str:
    speed = f"{f['tokens_per_s']:,} tokens/s" if f["tokens_per_s"] else "one token"
    rungs = [f"plan {f['plan']}: {', '.join(f['rungs'].values())}"] if f["rungs"] else []
    figures = (
        f"{f['model']}, {f['dtype']} on {f['device']}: loaded in {f['load_s']:.2f} s, "
        f"{f['prompt_tokens']} prompt tokens in {f['prefill_ms']:.1f} ms, "
        f"{f['new_tokens']} new ones at {speed}; {f['peak_memory_mb']:,.0f} MB at most."
    )
    return "\n".join([figures, *rungs, *(f"note: {note}" for note in f["notes"])])
