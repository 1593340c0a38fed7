"""The command `gpuless`: programs, test suites and builds where a GPU in software is found. `rung run` is
`gpuless run`."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from gpuless.base.errors import CompileError, UserError
from gpuless.doors import reports
from gpuless.facts import gpus

_USAGE = """gpuless run main.cu [FILE.cu ...] [OPTIONS] [[--] ARGUMENT ...]    compile a CUDA program and run it
gpuless run [OPTIONS] COMMAND [ARGUMENT ...]                       run a program, a test suite, make, ...
gpuless count [OPTIONS] main.cu|COMMAND [ARGUMENT ...]             what its kernels need, do and take by a model
gpuless diff [OPTIONS] A.cu B.cu [ARGUMENT ...]                    what the kernels of two programs need and do
gpuless nvcc ...                                                   NVIDIA's nvcc, for the GPU in software
gpuless toolkit                                                    the folder for CUDAToolkit_ROOT, CUDA_HOME
gpuless lsp                                                        the language server for editors, over standard input
"""
_WITH_VALUE = (
    *("-I", "-D", "-U", "-L", "-l", "-std", "--std", "-include", "-isystem"),
    *("-Xcompiler", "-Xlinker", "-Xptxas", "-Xnvlink"),
)
_OF_NVCC = (*_WITH_VALUE, "-O", "-X", "-rdc", "-W", "-m", "-f", "-w", "-G", "-g")


def parser(verb: str, tool: str = "gpuless") -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"{tool} {verb}", allow_abbrev=False,
        usage=f"{tool} {verb} [OPTIONS] main.cu [FILE.cu ...]|COMMAND [OPTIONS] [[--] ARGUMENT ...]",
        description="Compile a CUDA program and run it, or run a command, where a GPU in software is found, which "
        "reports faults and races. Output and exit code are the program's; a fault ends with 101, a race with 102, "
        "misused memory with 103. Options of nvcc (-I, -D, -l, -std, -Xcompiler, ...) are taken for a program's files.",
    )  # fmt: skip
    made.add_argument("--gpu", default=gpus.USUAL, help=f"the GPU that programs see (default {gpus.USUAL})")
    made.add_argument("--arch", help="the architecture that files are compiled for (default: the GPU's)")
    made.add_argument("--device", default="emulator", help="emulator, or cuda: this machine's GPU, without reports")
    made.add_argument("--races", action="store_true", help="look for races in every launch")
    made.add_argument("--no-races", action="store_true", help="look for none")
    made.add_argument("--order", default="forward", help="forward, reverse, shuffled, or all (eight of them)")
    made.add_argument("--seed", type=int, default=0, help="of shuffled orders")
    made.add_argument("--nan", action="store_true", help="tell where a NaN, an infinity or an overflow is made")
    made.add_argument("--precision", action="store_true", help="tell how far stored numbers are from float64's")
    made.add_argument("--stop-at-first", action="store_true", help="end the program at its first fault")
    made.add_argument("--quiet", "-q", action="store_true", help="no summary, no progress")
    made.add_argument("--json", action="store_true", help="one JSON document in place of the output")
    reports.add_options(made)
    return made


def _split(verb: str, words: Sequence[str], tool: str) -> tuple[argparse.Namespace, list[str], list[str], list[str]]:
    """Our options, nvcc's, a program's files, and a command or the program's arguments."""
    from gpuless.program import execution

    made = parser(verb, tool)
    with_value = {name for action in made._actions if action.nargs is None for name in action.option_strings}
    ours: list[str] = []
    nvcc: list[str] = []
    rest = [*words]

    def take(of_nvcc: tuple[str, ...], *, unknown: bool) -> None:
        while rest and rest[0].startswith("-") and rest[0] != "--":
            known = rest[0].partition("=")[0] in made._option_string_actions
            if not known and not unknown and not rest[0].startswith(of_nvcc):
                return
            word = rest.pop(0)
            into = ours if known or not word.startswith(of_nvcc) else nvcc
            into.append(word)
            if word in (with_value if known else _WITH_VALUE) and rest:
                into.append(rest.pop(0))

    take(_OF_NVCC, unknown=True)
    files, rest = execution.split(rest)
    if files:
        take(_WITH_VALUE, unknown=False)
    if rest[:1] == ["--"]:
        rest.pop(0)
    options = made.parse_args(ours)
    if not files and not rest:
        made.error("name a program's files, or a command")
    return options, nvcc, [*map(str, files)], rest


def _how(options: argparse.Namespace) -> Any:
    from gpuless.program import execution

    if options.order not in (*execution.ORDERS, "all"):
        raise UserError(f"--order {options.order} is not known: take {', '.join(execution.ORDERS)} or all.")
    if options.device not in ("emulator", "cuda"):
        raise UserError(f"--device {options.device} is not known: take emulator or cuda.")
    if options.nan and options.precision:
        raise UserError("--nan and --precision watch the same instructions: take one of them.")
    if options.device == "cuda" and (options.order == "all" or options.races):
        raise UserError("--order all and --races need the emulator, which looks for races.")
    if options.device == "cuda" and not _has_gpu():
        raise UserError("--device cuda: no CUDA device was found; without --device the program runs on the emulator.")
    return execution.Execution(
        order="forward" if options.order == "all" else options.order,
        seed=options.seed,
        races="yes" if options.races else "no" if options.no_races else "auto",
        gpu=gpus.find(options.gpu).key,
        arch=options.arch or "",
        numbers=options.nan,
        precision=options.precision,
        quiet=options.quiet,
        stop=options.stop_at_first,
        device=options.device,
    )


def _has_gpu() -> bool:
    try:
        return not ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        return False


def _say(text: str, tool: str = "gpuless") -> None:
    print(f"{tool}: {text}", file=sys.stderr)


def run(words: Sequence[str], tool: str = "gpuless") -> int:
    options, nvcc, files, rest = _split("run", words, tool)
    try:
        with reports.asked(options) as asked:
            return _run(options, nvcc, files, rest, asked, tool)
    except UserError as problem:
        if options.json:
            from gpuless.program import building

            found: dict[str, Any] = {"kind": problem.kind or "error", "text": str(problem)}
            if errors := building.errors_in(str(problem)):
                found["place"] = errors[0]["place"]
            print(json.dumps(_document(tool, 2, "refused", [found], command=[*files, *rest]), indent=1))
        raise


def _run(
    options: argparse.Namespace, nvcc: list[str], files: list[str], rest: list[str], asked: reports.Reports, tool: str
) -> int:
    from pathlib import Path

    from gpuless.program import building, execution

    how = asked.execution(_how(options))
    command = rest
    if files:
        say = (lambda text: _say(text, tool)) if sys.stderr.isatty() else (lambda _: None)
        gpu = building.NATIVE if options.device == "cuda" else how.gpu
        built = building.program([*map(Path, files)], building.Options(more=tuple(nvcc), gpu=gpu, arch=how.arch), say)
        command = [str(built), *rest]
    used, ended = how, execution.run(command, how, keep=options.json)
    if options.order == "all" and not ended.code:
        for used in execution.orders(how)[1:]:
            ended = execution.run(command, used, keep=True)
            if ended.code:
                if not options.json:
                    print(ended.errors, file=sys.stderr, end="")
                    _say(f"with --order {used.order} --seed {used.seed} the program ends with {ended.code}.", tool)
                break
        else:
            _say("the same exit code under eight orders.", tool)
    code, findings = asked.judged(ended.code, ended.findings(), ended.records)
    if options.json:
        races = {"yes": ["--races"], "no": ["--no-races"], "auto": []}[used.races]
        again = [tool, "run", *nvcc, "--order", used.order, "--seed", str(used.seed), *races, *files]
        repeat = shlex.join([*again, *(["--", *rest] if files and rest else rest)])
        ran: dict[str, Any] = {"command": [*files, *rest], "output": ended.output}
        ran |= {"how": {"order": used.order, "seed": used.seed, "races": used.races}, "fidelity": ended.fidelity}
        if options.precision:
            ran["precision"] = ended.precision
        told = [{**one, "repeat": repeat} for one in findings]
        verdict = "failed" if code else "ok"
        print(json.dumps(_document(tool, code, verdict, told, ended.kernels, ended.notes, **ran), indent=1))
    elif code > 128 and not ended.faults:
        _say(findings[-1]["text"] + ".", tool)
    asked.write([*files, *rest], code, findings, ended.kernels)
    return code


def _document(
    tool: str, code: int, verdict: str, findings: Sequence[Any], results: Sequence[Any] = (), notes: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A run as one JSON document."""
    head = {"schema": f"{tool}/1", "verb": "run", "verdict": verdict, "exit": code}
    return {**head, "findings": [*findings], "results": [*results], "notes": [*notes], **more}


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


def count(words: Sequence[str]) -> int:
    from gpuless.doors import difference

    return difference.count(words)


def diff(words: Sequence[str]) -> int:
    from gpuless.doors import difference

    return difference.run(words)


VERBS = {"run": run, "count": count, "diff": diff, "nvcc": nvcc, "toolkit": toolkit_folder, "lsp": lsp}


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
