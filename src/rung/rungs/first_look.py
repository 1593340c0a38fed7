"""Whether both compilers accept a file, side by side and before anything runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rung.cuda import nvrtc
from rung.dtypes import Dtype
from rung.emulator import toolchain, translation
from rung.errors import CompileError, RungError
from rung.operation import Values
from rung.rungs.cuda import CudaRung


def require_compiled(rung: CudaRung, values: Values, dtype: Dtype, archs: tuple[str, ...]) -> None:
    """A CompileError with what the emulator's compiler and NVRTC refuse. A missing compiler, and code that the emulator
    does not model, are told by the check itself."""
    if rung.emulate:
        return
    build = rung.build(values, dtype)

    def told(arch: str) -> str:
        try:
            if arch:
                nvrtc.compile_cubin(build.with_lines, arch)  # with lines, since a right kernel's are counted
            elif toolchain.available() is None:
                translation.translate(build)
        except CompileError as error:
            return str(error)
        except RungError:
            return ""
        return ""

    with ThreadPoolExecutor(len(archs) + 1) as pool:
        errors = [text for text in pool.map(partial(told), ("", *archs)) if text]
    if errors:
        raise CompileError("\n".join(errors))
