"""Runs Triton kernels on the machine: each launch executes the code that Triton compiles for an sm_90."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from gpuless import cubins, session
from rung.cuda import triton_driver
from rung.errors import CompileError, RungError, TooLarge

MULTIPROCESSORS = 4
# Folders whose frames are never the caller of a kernel.
_ROOMS = [Path(__file__).parents[1] / room for room in ("cuda", "rungs", "check")]
_HERE = tuple(str(folder) for folder in (*_ROOMS, Path(session.__file__).parent))


@contextmanager
def enabled(multiprocessors: int = MULTIPROCESSORS) -> Iterator[None]:
    """Inside, Triton's launches run on the machine, and programs see a GPU with so many multiprocessors."""
    from rung.cuda import pretended  # imports torch, which the course does without

    if pretended.within():
        yield
        return
    capability = int(re.sub(r"\D", "", session.current().settings.arch))
    with pretended.gpu(_launch, multiprocessors=multiprocessors, capability=capability), explained():
        yield


@contextmanager
def explained() -> Iterator[None]:
    """Inside, what Triton's compiler refuses is an error of rung's, with its place."""
    try:
        yield
    except RungError:
        raise
    except Exception as problem:
        if told := _of_the_compiler(problem):
            raise (TooLarge if type(problem).__name__ == "OutOfResources" else CompileError)(told) from problem
        raise


@contextmanager
def compiling(admits: Callable[[object], bool]) -> Iterator[None]:
    """Inside, Triton compiles only what this admits; launches of the rest do nothing."""
    knobs = getattr(sys.modules.get("triton"), "knobs", None)
    if knobs is None:
        yield
        return
    with mock.patch.object(knobs.runtime, "jit_cache_hook", lambda *, key, fn, **_: not admits((fn.name, str(key)))):
        yield


def _of_the_compiler(problem: BaseException) -> str:
    """What Triton's compiler refuses, and where; empty for an error of other code."""
    import triton

    package = str(Path(triton.__file__).parent)
    frames = traceback.extract_tb(problem.__traceback__)
    others = "allocator" in str(problem) or str(problem).startswith("Triton Error")  # those of a GPU's driver
    if others or not any(frame.filename.startswith(package) for frame in frames):
        return ""
    chain = [problem]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    line = next((place for one in reversed(chain) if (place := _line(one, package))), "")
    text = [words for part in str(chain[-1]).splitlines() if (words := part.strip(" ^"))]
    caller = next((f for f in reversed(frames) if not f.filename.startswith((package, *_HERE))), None)
    where = line or (f"{Path(caller.filename).name}, line {caller.lineno}" if caller else "")
    arch = triton.runtime.driver.active.get_current_target().arch
    return f"{where}: does not compile for sm_{arch}: {text[-1] if text else type(problem).__name__}"


def _line(problem: BaseException, package: str) -> str:
    """The user's file and the line of an error of Triton's compiler, which counts lines from the kernel's `def`."""
    from triton.runtime import jit

    known = getattr(jit, "_triton_jit_function_registry", {})  # Triton 3.6 has none
    source, node = getattr(problem, "src", ""), getattr(problem, "node", object())
    for function in known.values():
        if source and hasattr(node, "lineno") and function.src == source:
            decorators = "".join(function.raw_src).partition("def ")[0].count("\n")
            file = Path(function.fn.__code__.co_filename)
            if file.is_relative_to(package):  # its own functions, which the kernel calls
                return ""
            return f"{file.name}, line {function.starting_line_number + decorators + node.lineno - 1}"
    return ""


def _launch(kernel: triton_driver.Kernel) -> None:
    loaded = cubins.loaded(kernel.cubin, kernel.file)
    loaded.launch(kernel.name, kernel.config, kernel.parameters, tiles=True)
