"""`rung mcp`: check, run, inspect and count as tools of the Model Context Protocol, for programs that write kernels."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from rung.errors import RungError, with_extra

SECONDS = 600  # of one call
_INSTRUCTIONS = """rung judges CUDA and Triton kernels and runs CUDA programs without a GPU. Call `operations` for the
operations and the names of their operands, `show` for a working kernel to start from, `check` for a verdict on a file,
`run` for a whole program with its own main. Mend the first finding first: it has the place, the values of the failing
case, and a command that repeats it."""

File = Annotated[str, "Path of a .cu or .py file."]
Operation = Annotated[str, "An operation such as softmax, or a rung of its ladder such as softmax/3."]
Files = Annotated[list[str], "Paths of the program's .cu and .cpp files."]


def mcp() -> None:
    """Serve check, run, inspect and count as tools over standard input and output (Model Context Protocol).

    It needs the extra `mcp`. A client starts `rung mcp` itself: {"command": "rung", "args": ["mcp"]}.
    """
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        raise RungError(f"rung mcp needs the Model Context Protocol's SDK: {with_extra('mcp')}.") from None
    server = MCPServer("rung", instructions=_INSTRUCTIONS)
    for tool in (check, run, inspect, count, operations, show):
        server.add_tool(tool)
    server.run("stdio")


async def check(
    operation: Operation, file: File | None = None, dtype: str | None = None, case: str | None = None, seed: int = 0,
    quick: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Is a kernel right? Every case against a float64 reference, with bounds; `quick` takes the first case."""
    asked = {"dtype": dtype, "case": case, "seed": seed, "quick": quick, "no-libraries": True}
    return await _document("check", operation, file, **asked)


async def run(
    files: Files, arguments: list[str] | None = None, order: str = "forward", seed: int = 0
) -> dict[str, Any]:
    """Compile and run a CUDA program with its own main, without a GPU; its output, and faults and races of its kernels.
    `order` is forward, reverse, shuffled or all."""
    words = [*files, *(["--", *arguments] if arguments else [])]
    return await _document("run", *words, order=order, seed=seed)


async def inspect(operation: Operation, file: File | None = None, arch: str | None = None) -> dict[str, Any]:
    """Registers, shared memory, spills and occupancy of a kernel, for an architecture such as sm_90."""
    return await _document("inspect", operation, file, arch=arch)


async def count(operation: Operation, file: File | None = None, shape: str | None = None) -> dict[str, Any]:
    """What a kernel asks of memory, by line: requests, sectors, bank conflicts. `shape` is as in B=4,T=64,C=768."""
    return await _document("count", operation, file, shape=shape)


async def operations(operation: str | None = None) -> str:
    """The operations; or the rungs of one, and the names that a kernel's parameters may have."""
    return (await _output("list", operation))[1]


async def show(rung: Annotated[str, "A rung of a ladder, such as softmax/1."]) -> str:
    """A rung's idea and source: a working kernel to start from."""
    return (await _output("show", rung))[1]


async def _document(verb: str, *words: str | None, **options: str | int | bool | None) -> dict[str, Any]:
    chosen = [(name, value) for name, value in options.items() if value is not None and value is not False]
    given = [f"--{name}" if value is True else f"--{name}={value}" for name, value in chosen]
    if option := next((word for word in words[:1] if word and word.startswith("-")), None):
        raise RungError(f"{option!r} is an option, and no file or operation.")
    code, text = await _output(verb, "--json", *given, *words)
    found: dict[str, Any] = json.loads(text)
    if found.get("exit") != code:  # whoever wrote the document was not the verb
        raise RungError(f"rung {verb} ended with exit code {code}, and its document says {found.get('exit')}.")
    return found


async def _output(*words: str | None) -> tuple[int, str]:
    """The exit code of the verb, and what it prints, in a process of its own."""
    import anyio

    with anyio.move_on_after(SECONDS):
        command = [sys.executable, "-m", "rung", *(word for word in words if word is not None)]
        done = await anyio.run_process(command, check=False)
        if not done.stdout:
            raise RungError(done.stderr.decode(errors="replace").strip())
        return done.returncode, done.stdout.decode(errors="replace")
    raise RungError(f"rung {words[0]} has not ended within {SECONDS} seconds.")
