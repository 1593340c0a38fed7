"""The command `gpuless`: programs, test suites and builds where a GPU in software is found."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from gpuless.base.errors import CompileError, UserError
from gpuless.doors import reports
from gpuless.facts import gpus

_USAGE = """gpuless run [OPTIONS] main.cu [FILE.cu ...] [ARGUMENT ...]    compile a CUDA program and run it
gpuless run [OPTIONS] COMMAND [ARGUMENT ...]                 run a program, a test suite, make, ...
gpuless diff [OPTIONS] A.cu B.cu [ARGUMENT ...]              what the kernels of two programs need and do
gpuless nvcc ...                                             NVIDIA's nvcc, for the GPU in software
gpuless toolkit                                              the folder for CUDAToolkit_ROOT, CUDA_HOME
gpuless lsp                                                  the language server for editors, over standard input
"""
_WITH_VALUE = (
    *("-I", "-D", "-U", "-L", "-l", "-std", "--std", "-include", "-isystem"),
    *("-Xcompiler", "-Xlinker", "-Xptxas", "-Xnvlink"),
)
_OF_NVCC = (*_WITH_VALUE, "-O", "-X", "-rdc", "-W", "-m", "-f", "-w", "-G", "-g")


def parser(verb: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"gpuless {verb}", usage=f"gpuless {verb} [OPTIONS] main.cu|COMMAND [ARGUMENT ...]", allow_abbrev=False,
        description="Options of nvcc (-I, -D, -l, -std, -Xcompiler, ...) are taken for a program's files.",
    )  # fmt: skip
    made.add_argument("--gpu", default=gpus.USUAL, help=f"the GPU that programs see (default {gpus.USUAL})")
    made.add_argument("--arch", help="the architecture that files are compiled for (default: the GPU's)")
    made.add_argument("--races", action="store_true", help="look for races in every launch")
    made.add_argument("--no-races", action="store_true", help="look for none")
    made.add_argument("--order", default="forward", help="forward, reverse, shuffled, or all (eight of them)")
    made.add_argument("--seed", type=int, default=0, help="of shuffled orders")
    made.add_argument("--nan", action="store_true", help="tell where a NaN, an infinity or an overflow is made")
    made.add_argument("--stop-at-first", action="store_true", help="end the program at its first fault")
    made.add_argument("--quiet", "-q", action="store_true", help="no summary, no progress")
    made.add_argument("--json", action="store_true", help="one JSON document in place of the output")
    reports.add_options(made)
    return made


def _split(verb: str, words: Sequence[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Our options, nvcc's, and what is to run."""
    made = parser(verb)
    with_value = {name for action in made._actions if action.nargs is None for name in action.option_strings}
    ours: list[str] = []
    nvcc: list[str] = []
    rest = [*words]
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        known = word.partition("=")[0] in made._option_string_actions
        into = ours if known or not word.startswith(_OF_NVCC) else nvcc
        into.append(word)
        if word in (with_value if known else _WITH_VALUE) and rest:
            into.append(rest.pop(0))
    if rest[:1] == ["--"]:
        rest.pop(0)
    options = made.parse_args(ours)
    if not rest:
        made.error("name a program's files, or a command")
    return options, nvcc, rest


def _how(options: argparse.Namespace, **more: Any) -> Any:
    from gpuless.program import execution

    if options.order not in (*execution.ORDERS, "all"):
        raise UserError(f"--order {options.order} is not known: take {', '.join(execution.ORDERS)} or all.")
    if options.arch:
        os.environ["GPULESS_ARCH"] = options.arch
    if options.nan:
        os.environ["GPULESS_NAN"] = "1"
    given = {
        "order": "forward" if options.order == "all" else options.order,
        "seed": options.seed,
        "races": "yes" if options.races else "no" if options.no_races else "auto",
        "gpu": gpus.find(options.gpu).key,
        "quiet": options.quiet,
        "stop": options.stop_at_first,
    }
    return execution.Execution(**(given | more))


def _command(nvcc: Sequence[str], words: Sequence[str], gpu: str) -> list[str]:
    """What is to run: a program's files are compiled first."""
    from gpuless.program import building, execution

    files, arguments = execution.split(words)
    if not files:
        return [*words]
    say = _say if sys.stderr.isatty() else lambda _: None
    return [str(building.program(files, building.Options(more=tuple(nvcc), gpu=gpu), say)), *arguments]


def _say(text: str) -> None:
    print(f"gpuless: {text}", file=sys.stderr)


def run(words: Sequence[str]) -> int:
    options, nvcc, rest = _split("run", words)
    with reports.asked(options) as asked:
        return _run(options, nvcc, rest, asked)


def _run(options: argparse.Namespace, nvcc: Sequence[str], rest: Sequence[str], asked: reports.Reports) -> int:
    from gpuless.program import execution

    how = _how(options)
    command = _command(nvcc, rest, how.gpu)
    ended = execution.run(command, how, keep=options.json)
    if options.order == "all" and not ended.code:
        for other in execution.orders(how)[1:]:
            ended = execution.run(command, other, keep=True)
            if ended.code:
                again = f"--order {other.order} --seed {other.seed}"
                if not options.json:
                    print(ended.errors, file=sys.stderr, end="")
                    _say(f"with {again} the program ends with {ended.code}.")
                break
        else:
            _say("the same exit code under eight orders.")
    code, found = asked.judged(ended.code, ended.findings(), ended.records)
    if options.json:
        print(json.dumps(document("run", code, found, ended, [*rest]), indent=1))
    elif code > 128 and not ended.faults:
        _say(found[-1]["text"] + ".")
    asked.write(rest, code, found, ended.kernels)
    return code


def document(verb: str, code: int, found: Sequence[Any], ended: Any, command: Sequence[str]) -> dict[str, Any]:
    """A run as one JSON document."""
    return {
        "schema": "gpuless/1", "verb": verb, "verdict": "failed" if code else "ok", "exit": code,
        "command": [*command], "findings": [*found], "results": ended.kernels, "notes": ended.notes,
        "output": ended.output,
    }  # fmt: skip


def nvcc(words: Sequence[str]) -> int:
    from gpuless.program import toolkit

    compiler = str(toolkit.compiler())
    os.execv(compiler, [compiler, *words])


def toolkit_folder(_: Sequence[str]) -> int:
    from gpuless.program import toolkit

    print(toolkit.folder())
    return 0


def lsp(_: Sequence[str]) -> int:
    from gpuless.doors import language_server

    language_server.serve()
    return 0


def diff(words: Sequence[str]) -> int:
    from gpuless.doors import difference

    return difference.run(words)


VERBS = {"run": run, "diff": diff, "nvcc": nvcc, "toolkit": toolkit_folder, "lsp": lsp}


def main(words: Sequence[str] | None = None) -> None:
    """The console script."""
    verb, *rest = [*(sys.argv[1:] if words is None else words)] or ["--help"]
    if verb not in VERBS:
        print(_USAGE, end="", file=sys.stdout if verb in ("--help", "-h") else sys.stderr)
        sys.exit(0 if verb in ("--help", "-h") else 2)
    try:
        sys.exit(VERBS[verb](rest))
    except CompileError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
    except UserError as problem:
        _say(str(problem))
        sys.exit(2)


if __name__ == "__main__":
    main()
