"""The loader: a process that libcuda.so.1 starts to turn images into module files and cubins.

It reads requests from standard input, a line each of words in JSON: `["module", GPU, IMAGE, OUTPUT]`,
`["kernel", GPU, CUBIN, NAME, OUTPUT]` for one of a large cubin, or `["link", GPU, OUTPUT, OPTIONS, KIND, FILE, ...]`.
Its answer is a line: the driver's error (0 for none) and, in JSON, what was wrong.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path

from gpuless.base.errors import UserError
from gpuless.driver import images, modules


def loaded(gpu: int, image: Path, output: Path) -> None:
    """Writes an image's module file, whole or not at all, and its cubin beside it, which counts refer to."""
    cubin = images.cubin_of(image.read_bytes(), gpu)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".") as folder:
        code = Path(folder) / "code.cubin"
        code.write_bytes(cubin)
        content = modules.module_of(code)
        code.replace(f"{output}.cubin")
    _write(output, content)


def _write(output: Path, content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".") as folder:
        made = Path(folder) / "made"
        made.write_bytes(content)
        made.replace(output)


def link(gpu: int, output: Path, options: list[str], *pieces: str) -> None:
    """Writes the cubin of several pieces: kinds and files by turns."""
    data = [(kind, Path(file).read_bytes()) for kind, file in zip(pieces[::2], pieces[1::2], strict=True)]
    output.write_bytes(images.linked(data, gpu, options))


def answer(line: str) -> tuple[int, str]:
    """Serves one request."""
    try:
        verb, gpu, *words = json.loads(line)
        if verb == "link":
            link(int(gpu), Path(words[0]), words[1], *words[2:])
        elif verb == "kernel":
            _write(Path(words[2]), modules.kernel_of(Path(words[0]), words[1]))
        else:
            loaded(int(gpu), Path(words[0]), Path(words[1]))
        return 0, ""
    except images.NotLoaded as problem:
        return problem.code, str(problem)
    except UserError as problem:
        return images.INVALID_IMAGE, str(problem)
    except Exception:
        return 999, traceback.format_exc()


def main() -> None:
    for line in sys.stdin:
        code, text = answer(line)
        print(code, json.dumps(text), flush=True)


if __name__ == "__main__":
    main()
