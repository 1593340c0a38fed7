"""The command line: one module per verb, imported only when that verb is used."""

from __future__ import annotations

import atexit
import difflib
import functools
import importlib
import io
import itertools
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from rung import plugins, progress
from rung.cli.ending import discard_output, exit_code_of, interrupted
from rung.errors import RungError

# group -> verb -> (module, what it does), in the order in which `rung --help` shows them.
# A verb's function has the verb's name, or its module's (with a trailing underscore where Python has the name).
GROUPS = {
    "learn": {
        "list": ("list_", "The ladders, or the rungs of one."),
        "show": ("show", "A rung's idea and source, and how it differs from its parent; an operation's operands."),
        "learn": ("learn", "Exercises: kernels with blanks, graded without a GPU; where you stand."),
        "draw": ("draw", "Pictures of a warp's accesses: sectors and banks, beside the parent."),
    },
    "kernels": {
        "new": ("new", "A working kernel to start from."),
        "check": ("check", "Is a rung right? Against a float64 reference, on a GPU or emulated."),
        "judge": ("judge", "Verdicts on a file of many kernels, by work and not by time."),
        "inspect": ("inspect", "Registers, shared memory, spills and occupancy, without a GPU."),
        "count": ("count", "Requests, sectors and bank conflicts of a rung, by line, without a GPU."),
        "export": ("export", "Export a rung: torch, the hub's kernels, KernelBench, LeetGPU, GPU MODE, flashinfer."),
    },
    "programs": {
        "run": ("run", "Any CUDA program, without a GPU: its output, its kernels' faults and races."),
        "mcp": ("mcp", "check, run, inspect and count as tools of the Model Context Protocol."),
    },
    "models": {
        "generate": ("generate", "Write text with a model of GPT-2's or Llama's kind."),
        "chat": ("chat", "Talk with a model in the terminal."),
        "serve": ("serve", "OpenAI's completions over HTTP, with a page to try them."),
        "score": ("score", "How likely texts are: log-probability, perplexity, bits per byte, as JSON lines."),
        "eval": ("eval_", "Tasks of lm-evaluation-harness: accuracy, perplexity."),
    },
    "measure": {
        "bench": ("bench", "How fast? Rungs and libraries, interleaved, checked in the same run."),
        "sweep": ("sweep", "Which launch parameters are best for a rung on this GPU? --found lists them."),
        "profile": ("profile", "Nsight Compute's counters of a rung; or where a token's time goes."),
        "roofline": ("roofline", "How far are rungs from the hardware's ceilings? A chart and a table."),
        "results": ("results", "What was measured: list, filter, compare two machines or commits, export."),
        "report": ("report", "Everything known about every ladder, in one HTML file."),
        "calibrate": ("calibrate", "This GPU's latencies and rates, from which times are predicted."),
        "doctor": ("doctor", "What works on this machine, what is missing, what to do."),
    },
}
VERBS = {verb: row for group in GROUPS.values() for verb, row in group.items()}


# Verbs that compile kernels: a cache that cannot be used ends them before they begin.
COMPILING = ("check", "bench", "sweep", "profile", "inspect", "count", "draw", "calibrate")
TELLING = {"check": "reading the file and the operation"}  # verbs that tell what they do at once, and their first step
DOCUMENTED = ("check", "inspect", "count")  # verbs with one JSON document (show/document.py)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; foreseeable mistakes end in one sentence and exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    _prepare_streams()
    work = functools.partial(_dispatch, words)
    if arguments is None and words and words[0] in TELLING:
        _end_at_once(work)
    sys.exit(exit_code_of(work))


def _end_at_once(work: Callable[[], int]) -> NoReturn:
    """Ends the process with the code of `work`, without the time, up to seconds, in which Python takes torch apart."""
    try:
        code = exit_code_of(work)
    except SystemExit as end:
        code = int(end.code or 0)
    if "torch" not in sys.modules:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it is closed
            stream.flush()
    os._exit(code)


def _prepare_streams() -> None:
    """Closed streams read and write nothing; characters that the terminal cannot show become '?'."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if words[0] in ("-V", "--version"):
        from rung import __version__

        print(f"rung {__version__}")
        return 0
    if words[0] == "--ladders":
        if len(words) < 3:
            raise RungError("--ladders takes a folder of ladders, followed by a verb.")
        os.environ["RUNG_LADDERS"] = words[1]
        words = words[2:]
    verb = words[0]
    if verb not in VERBS and verb not in (known := [*VERBS, *plugins.entries(plugins.COMMANDS)]):
        close = difflib.get_close_matches(verb, known, n=1)
        suggestion = f" (did you mean {close[0]}?)" if close else ""
        raise RungError(f"there is no verb {verb!r}{suggestion}; `rung --help` lists them.")
    if verb == "run":  # whose options are gpuless's
        from gpuless.program import command

        return command.run(words[1:], "rung")
    with progress.telling(TELLING[verb], progress.BEGAN) if verb in TELLING else nullcontext():
        return _run(verb, _whole(words[1:]))


def _whole(words: list[str]) -> list[str]:
    """`--ray` may be given without an address, which Typer cannot express."""
    return [
        f"{word}=auto" if word == "--ray" and (not behind or behind.startswith("-")) else word
        for word, behind in itertools.zip_longest(words, words[1:], fillvalue="")
    ]


def _function(verb: str) -> tuple[str, Callable[..., None]]:
    """What a verb does, in a sentence, and its function; of rung's own, then of other packages'."""
    if verb not in VERBS:
        entry = plugins.entries(plugins.COMMANDS)[verb]
        return plugins.summary(entry), entry.load()
    module_name, summary = VERBS[verb]
    module = importlib.import_module(f"rung.cli.{module_name}")
    return summary, getattr(module, verb, None) or getattr(module, module_name)


def _run(verb: str, words: list[str]) -> int:
    import typer

    summary, function = _function(verb)
    from typer.core import TyperCommand

    Misuse: Any = typer.BadParameter.__base__  # also of unknown and missing options

    class Verb(TyperCommand):
        def get_help(self, *given: Any) -> str:
            """Replaces Typer's type names, such as list[str], which mean little to users who do not know Python."""
            return re.sub(r"<list\[(\w+)\]>", lambda m: f"<{m[1].lower()}>".ljust(len(m[0])), super().get_help(*given))

        def make_context(self, *given: Any, **more: Any) -> Any:
            try:
                return super().make_context(*given, **more)
            except Misuse as error:
                problem = error.format_message().rstrip(".")
                raise RungError(f"{problem}; `rung {verb} --help` lists the options.") from None

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(verb, help=function.__doc__ or summary, cls=Verb)(_ended_quietly(_begun(verb, function)))
    app(words, prog_name=f"rung {verb}", standalone_mode=True)  # ends the process, with the verb's own code
    return 0


def _begun(verb: str, function: Callable[..., None]) -> Callable[..., None]:
    """Runs the verb once what every verb requires holds."""

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> None:
        for name, value in options.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise RungError(f"--{name.strip('_').replace('_', '-')} is {value}; give a finite number.")
        if verb in COMPILING or os.environ.get("RUNG_CACHE"):
            from gpuless.base import disk_cache

            disk_cache.settle()
            if verb in COMPILING:
                disk_cache.require()
                os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's: others would spin for products so small
        try:
            function(*args, **options)
        except RungError as error:
            if verb in DOCUMENTED and (options.get("json") or options.get("as_json")):
                from rung.cli import console
                from rung.show import document

                console.print_json(document.document(verb, 2, findings=[document.finding(error.kind, str(error))]))
            raise

    return checked


def _ended_quietly(function: Callable[..., None]) -> Callable[..., None]:
    """Runs the verb; a closed pipe is not a failure."""

    @functools.wraps(function)
    def verb(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
        except KeyboardInterrupt:
            sys.exit(interrupted())

    return verb


def _help() -> str:
    others = {name: ("", plugins.summary(entry)) for name, entry in plugins.entries(plugins.COMMANDS).items()}
    width = max(map(len, [*VERBS, *others]))
    wide = max(60, shutil.get_terminal_size().columns)
    what = "GPU kernels climbed one step at a time, their judge without a GPU, and language models that run on them."
    lines = textwrap.wrap(f"rung: {what}", wide)
    lines += ["", "usage: rung VERB ...      (`rung help VERB` shows a verb's options)"]
    indent = " " * (width + 4)
    for group, verbs in {**GROUPS, **({"other packages": others} if others else {})}.items():
        lines += ["", group]
        for verb, (_, summary) in verbs.items():
            lines += textwrap.wrap(summary, wide, initial_indent=f"  {verb:<{width}}  ", subsequent_indent=indent)
    lines += ["", "  rung --version", "  rung --ladders FOLDER VERB ...      with your own operations, a folder each"]
    return "\n".join(lines)
