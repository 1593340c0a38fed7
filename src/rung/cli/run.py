"""`rung run`: any CUDA program, on the emulator."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rung import progress
from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from gpuless.program.running import Ended, Execution

_RACES = {"auto": [], "yes": ["--races"], "no": ["--no-races"]}


def run(
    words: Annotated[
        list[str],
        typer.Argument(metavar="FILE... [-- ARGUMENT...]", help="The program's files (.cu, .cpp), then its arguments."),
    ],
    include: Annotated[list[str] | None, typer.Option("-I", help="A folder of headers (repeatable).")] = None,
    define: Annotated[list[str] | None, typer.Option("-D", help="A macro, NAME or NAME=VALUE (repeatable).")] = None,
    standard: Annotated[str, typer.Option("-std", "--std", help="The language: c++14, c++17 or c++20.")] = "c++17",
    library: Annotated[list[str] | None, typer.Option("-l", help="A host library to link (repeatable).")] = None,
    compiler: Annotated[
        list[str] | None, typer.Option("-Xcompiler", help="An option of g++, such as -fopenmp (repeatable).")
    ] = None,
    device: Annotated[
        str, typer.Option(help="emulator, or cuda: the same program on this machine's GPU.")
    ] = "emulator",
    order: Annotated[
        str,
        typer.Option(help="Order of threads, blocks and streams: forward, reverse, shuffled, or all (eight of them)."),
    ] = "forward",
    seed: options.Seed = 0,
    races: Annotated[
        bool | None,
        typer.Option("--races/--no-races", help="Look for races always, or never (default: where the work allows)."),
    ] = None,
    seen_gpu: Annotated[
        str, typer.Option("--gpu", help="The GPU that the program sees: h100, a100, t4, ... (docs/programs.md).")
    ] = "h100",
    count: Annotated[
        bool, typer.Option("--count", help="Behind the output, what each kernel asks of memory (as `rung count`).")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document (docs/json.md) instead of the output.")
    ] = False,
) -> None:
    """Compile a CUDA program with its host code, run it without a GPU, and report faults and races of its kernels.

    With --device cuda it runs on the GPU: g++ compiles the host's part, NVRTC the kernels, and nvcc is not needed.

    Output and exit code are the program's. A fault of a kernel ends with 101, a race with 102, misused memory (a double
    free, a copy out of bounds) with 103, and a program that does not compile with 2.

    Examples: rung run saxpy.cu · rung run main.cu kernels.cu -I include -- --size 1000 · rung run scan.cu --order all
    """
    from gpuless import machine
    from gpuless.facts import gpus
    from gpuless.program import executable, gpu_runtime, running

    files, arguments = running.split(words)
    if not files:
        raise RungError(f"{words[0]} is not a source: name .cu or .cpp files first.")
    if order not in (*running.ORDERS, "all"):
        raise RungError(f"--order {order} is not known: take {', '.join(running.ORDERS)} or all.")
    seen_gpu = gpus.find(seen_gpu).key
    if device not in ("emulator", "cuda"):
        raise RungError(f"--device {device} is not known: take emulator or cuda.")
    on_gpu = device == "cuda"
    if on_gpu and (order == "all" or races):
        raise RungError("--order all and --races need the emulator, which looks for races.")
    of_host = tuple(word for words in compiler or () for word in words.split(","))
    linked = [*of_host, *(f"-l{name}" for name in library or ())]
    if count:
        from rung.cli.count import of_program

        if on_gpu or order != "forward" or races:
            raise RungError("--count has one order and no race check, and needs no GPU.")
        of_program(words, include or (), define or (), standard, linked, seen_gpu, json=as_json)
        return
    checked: Literal["auto", "yes", "no"] = "auto" if races is None else "yes" if races else "no"
    how = running.Execution(
        "forward" if order == "all" else order,
        seed,
        checked,
        seen_gpu,
        quiet,
        "cuda" if on_gpu else "emulator",
    )
    arch = gpu_runtime.architecture() if on_gpu else machine.ARCH
    built = executable.Options(tuple(include or ()), tuple(define or ()), standard, more=of_host, arch=arch)
    with running.built(files, built, linked, progress.doing) as program:
        used = how
        ended = running.run(program, arguments, how, keep=as_json)
        if order == "all" and not ended.code:
            for other in running.orders(how)[1:]:
                ended, used = running.run(program, arguments, other, keep=True), other
                if ended.code:
                    again = f"--order {other.order} --seed {other.seed}"
                    if not as_json:
                        print(ended.errors, file=sys.stderr, end="")
                        print(f"rung: with {again} the program ends with {ended.code}.", file=sys.stderr)
                    break
            else:
                print("rung: the same exit code under eight orders.", file=sys.stderr)
    if as_json:
        settings = ("-I", include), ("-D", define), ("-l", library), ("--std=", [standard]), ("-Xcompiler=", compiler)
        repeat = ["run", *files, *(name + word for name, words in settings for word in words or ())]
        repeat += ["--order", used.order, "--seed", used.seed, *_RACES[checked]]
        repeat += ["--", *arguments] if arguments else []
        console.print_json(_document(ended, [*map(str, files), *arguments], used, repeat))
    elif ended.code >= 128 and ended.report.get("findings"):
        print(f"rung: {ended.report['findings'][-1]['text']}.", file=sys.stderr)
    sys.exit(ended.code)


def _document(ended: Ended, command: list[str], how: Execution, repeat: list[object]) -> dict[str, Any]:
    from rung.show import document

    found = ended.report.get("findings", [])
    if ended.code and not found:
        found = [{"kind": "exit", "text": f"the program ends with exit code {ended.code}"}]
    return document.document(
        "run", ended.code, ended.report.get("results", []), [document.finding(**one, repeat=repeat) for one in found],
        ended.report.get("notes", []), command=command, output=ended.output,
        how={"order": how.order, "seed": how.seed, "races": how.races},
    )  # fmt: skip
