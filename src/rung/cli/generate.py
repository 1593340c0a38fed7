"""`rung generate`: a text continued."""

from __future__ import annotations

import json
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from gpuless.base.files import read_text, shown, whole
from rung.cli import options
from rung.errors import RungError
from rung.models import resume

if TYPE_CHECKING:
    from rung.models.family import Config
    from rung.models.generate import Run
    from rung.models.options import Completion
    from rung.models.tokenizer import Tokenizer

LONG = 40  # characters: probably more tokens than a step takes


def generate(
    text: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The text to continue. Left out or '-': standard input.")
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The same as an option.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Continue this file's text; - is standard input.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help='A file of prompts: one per line, or .jsonl with a string or {"prompt": ...} per line.'),
    ] = None,
    model: options.Model = "inner",
    device: options.ModelDevice = "auto",
    dtype: options.ModelDtype = "auto",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Stop after this many tokens.")] = 200,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy decoding.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Sample from the most likely tokens that sum to p.")] = 0.95,
    min_p: Annotated[float, typer.Option(help="Drop tokens less likely than p times the most likely one.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, tokens that occurred become less likely.")] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from the logits of tokens that the new text contains.")
    ] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, once per occurrence.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    num_samples: Annotated[int, typer.Option(help="Texts for each prompt.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text (repeatable).")] = None,
    stop_token: Annotated[
        list[str] | None, typer.Option(help="End at this token, a number or its text (repeatable).")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Continue past the end-of-text token.")] = False,
    slide: Annotated[
        bool, typer.Option("--slide", help="When the context is full, drop its older half and continue.")
    ] = False,
    echo: Annotated[
        bool | None, typer.Option("--echo/--no-echo", help="Print the prompt too (default, except with --json).")
    ] = None,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="Log-probabilities of the tokens, in JSON.")] = False,
    batch_size: Annotated[
        int | None, typer.Option(help="Texts written at the same time (default: as many as fit into memory).")
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="A JSON schema's file: the text follows it.")] = None,
    json_: options.Json = False,
    stats: Annotated[bool, typer.Option("--stats", help="Times, tokens per second and memory, on stderr.")] = False,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print a text only when it is complete.")] = False,
    revision: options.Revision = None,
    offline: options.Offline = False,
    plan: Annotated[
        str | None,
        typer.Option(
            help="Which rungs compute the operations (devices cuda and emulator): naive, reduction, tiled, tensorcore, "
            "flash, fused, library, torch or best."
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Replace one rung: attention=5 or gelu=my_kernel.cu (repeatable).")
    ] = None,
    window: options.Window = None,
    global_: options.Global = 0,
    draft: options.Draft = None,
    cache: options.Cache = None,
    context: options.Longest = None,
    threads: options.Threads = None,
    gpus: options.Gpus = None,
    ray: options.Ray = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write JSON lines here; a run that was stopped is resumed.")
    ] = None,
) -> None:
    """Write text with a language model: GPT-2, Llama, Qwen, Mistral, Gemma 3, StarCoder2, also from a GGUF file.

    rung generate "Once upon a time"

    rung generate "The ship" --model gpt2 -n 100 -t 0.7 --seed 1 --stats

    rung generate -f chapter.txt --model ./my-model --dtype int8

    rung generate --prompts questions.jsonl --num-samples 3 --json

    rung generate -f log.txt --model gpt2 --draft ngram --stats

    rung generate "Hello" --device emulator -n 2 --kernel layernorm=7
    """
    if logprobs and not json_:
        raise RungError("log-probabilities are part of the JSON output; add --json.")
    if "" in (stop or ()):
        raise RungError("--stop is empty; give the text that ends a text, or leave it out.")
    texts = _prompts(text, prompt, file, prompts)
    begin(device, dtype, ray, long=any(len(text) > LONG for text in texts))
    device = options.device_of(gpus, device, ray)
    json_ = json_ or output is not None
    how: dict[str, Any] = {
        "model": model, "device": device, "dtype": dtype, "revision": revision, "offline": offline, "threads": threads,
        "plan": plan, "kernels": _kernels(kernel or []), "window": window,
        "global_tokens": global_, "draft": draft, "cache": cache, "context": context,
    }  # fmt: skip
    show_prompt = (not json_) if echo is None else echo
    request: dict[str, Any] = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty, "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty, "max_new_tokens": max_new_tokens, "seed": seed,
        "num_samples": num_samples, "stop": tuple(stop or ()), "slide": slide, "echo": show_prompt,
        "logprobs": logprobs, "batch_size": batch_size, "schema": schema and read_text(schema),
    }  # fmt: skip
    if num_samples < 1:
        raise RungError(f"num_samples is {num_samples}; give a whole number of at least 1.")
    elsewhere = {"device", "offline", "threads", "batch_size"}  # where and how fast, not what is written
    asked = {name: value for name, value in (how | request).items() if name not in elsewhere}
    resumed = resume.run_of({**asked, "stop_token": stop_token or [], "ignore_eos": ignore_eos})
    done = resume.done(output, resumed)
    first = done // num_samples * num_samples  # results of prompts that are already done
    texts = texts[done // num_samples :]
    ends = Counter[str]()
    with resume.opened(output) as sink:

        def say(completions: Iterable[tuple[int, Completion]], figures: dict[str, Any] | None = None) -> None:
            def missing() -> Iterator[tuple[int, Completion]]:
                for i, one in completions:
                    if first + i >= done:
                        ends[one.finish_reason] += 1
                        yield first + i, one

            _print(missing(), figures, json_, sink if output else None, resumed)

        if ray is not None:
            say(_over_ray(how, texts, request, (stop_token or [], ignore_eos), ray))
            _tell_full(ends)
            return
        from rung.models.load import load
        from rung.show import run_figures

        chosen = load(**how)
        if gpus is not None:
            from rung.models.batching.worker_pool import Setup

            chosen.spread([Setup(how, gpu=gpu) for gpu in range(1, gpus)])
        request["stop_tokens"] = _stop_tokens(chosen.config, lambda: chosen.tokenizer, stop_token or [], ignore_eos)
        run = chosen.run(texts, **request)
        single = len(texts) * num_samples == 1
        if single and not json_ and not no_stream and sys.stdout.isatty():
            _stream(run, texts[0] if show_prompt else "")
            ends.update(one.finish_reason for one in run.completions)
        else:
            # A file or pipe gets each text as soon as it is complete; figures are known when all are.
            at_once = output is not None or (not sys.stdout.isatty() and not (json_ and stats))
            _collect(run, say if at_once else None)
            say(run.take(unfinished=output is None), run_figures.of_run(chosen, run) if stats else None)
    _tell_full(ends)
    if stats and not json_:
        print(run_figures.sentence(run_figures.of_run(chosen, run)), file=sys.stderr)
    if run.interrupted:
        raise typer.Exit(130)


def begin(device: str, dtype: str, ray: str | None, *, long: bool = False) -> None:
    """Work to do while torch is imported: compile the CPU kernels, those for long prompts too, or create the GPU's
    context."""
    on_gpu = Path("/dev/nvidiactl").exists()
    if device == "cpu" or (device == "auto" and not on_gpu):
        from rung.models.cpu import build

        if (named := build.DEFAULT if dtype == "auto" else dtype) in build.BITS:
            build.begin(named)
            if long:
                build.begin(named, build.PASSES)
    elif device in ("auto", "cuda") and on_gpu and ray is None:
        from rung.lazy import begin_context

        begin_context()


def _over_ray(
    how: dict[str, Any], texts: list[str], request: dict[str, Any], stops: tuple[list[str], bool], address: str
) -> Iterator[tuple[int, Completion]]:
    from rung.models.batching.blocks import Job, over_ray
    from rung.models.family import read_config
    from rung.models.folders import find
    from rung.models.options import Completion
    from rung.models.tokenizer import read_tokenizer

    folder = find(how["model"], revision=how["revision"], offline=how["offline"])
    seed = secrets.randbits(32) if request["seed"] is None else request["seed"]
    stop_tokens = _stop_tokens(read_config(folder / "config.json"), lambda: read_tokenizer(folder), *stops)
    found = over_ray(Job(how, "generate", {**request, "seed": seed, "stop_tokens": stop_tokens}), texts, address)
    return enumerate(Completion(**record) for records in found for record in records)


def _prompts(text: str | None, prompt: str | None, file: Path | None, prompts: Path | None) -> list[str]:
    from rung.models import text_files

    given = [
        name
        for name, value in (("PROMPT", text), ("--prompt", prompt), ("--file", file), ("--prompts", prompts))
        if value is not None
    ]
    if len(given) > 1:
        raise RungError(f"{given[0]} and {given[1]} were both given; choose one.")
    if prompts is not None:
        return text_files.prompt_records(prompts) if prompts.suffix == ".jsonl" else text_files.prompt_lines(prompts)
    if file is not None:
        return [text_files.some(text_files.read(file).removesuffix("\n"))]
    text = prompt if text is None else text
    if text is None and sys.stdin.isatty():
        raise RungError('there is no prompt; try: rung generate "Once upon a time".')
    return [text_files.some(text_files.read(Path("-")).removesuffix("\n") if text in (None, "-") else str(text))]


def _kernels(given: list[str]) -> dict[str, str]:
    kernels = {}
    for text in given:
        operation, equals, rung = text.partition("=")
        if not (operation and equals and rung):
            raise RungError(f"--kernel {text!r} is not OPERATION=RUNG; write for example layernorm=7.")
        kernels[operation] = rung
    return kernels


def _stop_tokens(config: Config, tokenizer: Callable[[], Tokenizer], given: list[str], ignore_eos: bool) -> list[int]:
    ids = [] if ignore_eos else list(config.eos)
    for text in given:
        number = whole(text)
        id = tokenizer().token(text) if number is None or number < 0 else number
        if id is None:
            raise RungError(f"--stop-token {shown(text)} is not a single token of this model; use --stop for a text.")
        if id >= config.vocabulary:
            raise RungError(f"--stop-token {id} is outside the model's vocabulary of {config.vocabulary:,}.")
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
    except KeyboardInterrupt:  # it occurred during generation
        run.interrupted = True
    out.write("\n")
    out.flush()


def _collect(run: Run, say: Callable[[Iterable[tuple[int, Completion]]], None] | None) -> None:
    total = len(run.completions)
    report: AbstractContextManager[Callable[[str, int, int | None], None]] = nullcontext(lambda *_: None)
    if total > 1:
        from rung.cli import console  # which imports much

        report = console.progress("texts")
    try:
        with report as tell:
            for _ in run:
                if say:
                    say(run.take())
                tell("", run.finished, total)
    except KeyboardInterrupt:
        run.interrupted = True


def _tell_full(ends: Counter[str]) -> None:
    """Texts that are shorter than requested are mentioned."""
    if full := ends["context"]:
        which = "the text ended" if ends.total() == 1 else f"{full} of {ends.total()} texts ended"
        print(
            f"rung: {which} before {'its' if full == 1 else 'their'} last token was written, since the model's context "
            "is full; --slide drops the older half and continues.",
            file=sys.stderr,
        )


def _print(
    completions: Iterable[tuple[int, Completion]],
    figures: dict[str, Any] | None,
    as_json: bool,
    sink: TextIO | None,
    run: str,
) -> None:
    for index, completion in completions:
        if as_json:
            fields: dict[str, Any] = {"index": index, "run": run} if sink else {}
            fields |= {k: v for k, v in asdict(completion).items() if v is not None}
            line = json.dumps(fields | ({"stats": figures} if figures else {}), ensure_ascii=False)
            print(line, file=sink, flush=True)
            continue
        if index:
            print("---")
        print(completion.text, flush=True)
