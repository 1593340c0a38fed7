"""Options that several verbs share, each declared once so that it means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuless.base.files import shown, whole
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.rungs.cuda import CudaRung

# ---- every verb ------------------------------------------------------------------------------------------------------

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")]

# ---- rungs -----------------------------------------------------------------------------------------------------------

File = Annotated[Path | None, typer.Argument(help="Your own kernel (.cu or .py), as a rung of OP.")]
Dtype = Annotated[str | None, typer.Option(help="f32, tf32, f16 or bf16 (default: the rung's first).")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help="Only this number format (repeatable).")]
Shape = Annotated[str | None, typer.Option(help="A shape's name, or B=4,T=64,C=768.")]
Shapes = Annotated[list[str] | None, typer.Option("--shape", help="A shape's name, or B=4,T=64,C=768 (repeatable).")]
Tune = Annotated[list[str] | None, typer.Option(help="A tunable's value, as in --tune BLOCK=128 (repeatable).")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the random numbers.")]
Gpu = Annotated[str | None, typer.Option(help="Only this GPU, by a part of its name.")]
Measured = Annotated[
    list[Path] | None, typer.Argument(help="Results files or folders (default: your store and the published ones).")
]

# ---- a kernel in a cubin ---------------------------------------------------------------------------------------------

Grid = Annotated[str | None, typer.Option(help="Of a .cubin: blocks, 4 or 4,2,1.")]
Block = Annotated[str | None, typer.Option(help="Of a .cubin: threads, 256 or 32,8.")]
Shared = Annotated[int, typer.Option(min=0, help="Of a .cubin: bytes of dynamic shared memory.")]
Cluster = Annotated[str | None, typer.Option(help="Of a .cubin: blocks of a cluster, 2 or 2,1,1.")]
Kernel = Annotated[str | None, typer.Option(help="Which kernel of a .cubin or of a .cu file.")]
Args = Annotated[str, typer.Option(help="Of a .cubin: 'x:f32[16,64] out:f32[64]=unset n:i32=64', in order.")]

# ---- models ----------------------------------------------------------------------------------------------------------

Model = Annotated[
    str,
    typer.Option(
        "--model", "-m",
        help="inner, gpt2[-medium|-large|-xl], an id of the hub (GPT-2, Llama, Qwen, Gemma 3 ...) or of a GGUF file "
        "there (owner/name:Q8_0), a folder, a GGUF file, or a LoRA's folder.",
    ),
]
ModelDevice = Annotated[
    str, typer.Option("--device", help="auto (a GPU if there is one), cpu, cuda, or emulator: kernels without a GPU.")
]
ModelDtype = Annotated[
    str, typer.Option("--dtype", help="auto, float32, bfloat16, int8; on a GPU also tf32 and float16.")
]
Revision = Annotated[str | None, typer.Option(help="A branch, tag or commit of the model on the hub.")]
Window = Annotated[int | None, typer.Option(help="Each token attends to this many tokens, itself included.")]
Cache = Annotated[
    str | None, typer.Option("--cache", help="int8: a GPU keeps keys and values of more than 32 texts in 8 bits.")
]
Global = Annotated[
    int, typer.Option("--global", min=0, help="With a window: all tokens also attend to this many first tokens.")
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="Speculative decoding: tokens are proposed by this smaller model, or from the text so far (ngram)."
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use only models that were downloaded before.")]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads (default: as many as help, at most one per processor).")
]
Gpus = Annotated[int | None, typer.Option(help="Use this many GPUs of this machine.", min=1)]
Ray = Annotated[
    str | None,
    typer.Option(metavar="[ADDRESS]", help="Use a Ray cluster: its address, auto (the one on this machine) or local."),
]


def device_of(gpus: int | None, device: str, ray: str | None = None) -> str:
    """The device selected by --device and --gpus together."""
    if gpus is not None and ray is not None:
        raise RungError("--gpus counts GPUs of this machine and --ray takes those of a cluster; leave one of them out.")
    if gpus is not None and device not in ("auto", "cuda"):
        raise RungError(f"--gpus counts GPUs and --device is {device}; leave one of them out.")
    return device if gpus is None else "cuda"


Longest = Annotated[
    int | None,
    typer.Option("--context", min=1, help="Tokens of a text at most (default: the model's context): less memory."),
]
Stride = Annotated[int | None, typer.Option(help="Tokens from one window to the next (default: half the context).")]
Context = Annotated[int | None, typer.Option(help="Tokens per window (default: the model's context).")]

# ---- how many processes ----------------------------------------------------------------------------------------------

Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes (default: one per core).")]


MOST = 1 << 20  # no tunable of a kernel is larger


def parse_tuning(words: list[str] | None) -> dict[str, int] | None:
    """`["BLOCK=128"]` as a dictionary."""
    tuning = {name: values[0] for name, values in parse_tunings(words, several=False).items()}
    return tuning or None


def parse_tunings(words: list[str] | None, *, several: bool = True) -> dict[str, list[int]]:
    """`["BLOCK=64,128"]` as a dictionary; each tunable once, with one value or several."""
    form, example = ("NUMBER,NUMBER", "64,128") if several else ("NUMBER", "128")
    tunings: dict[str, list[int]] = {}
    for word in words or []:
        name, _, values = word.partition("=")
        texts = values.split(",")
        numbers = [number for text in texts if (number := whole(text.strip())) is not None]
        if not name or len(numbers) < len(texts) or (len(texts) > 1 and not several):
            raise RungError(f"--tune {shown(word)} is not NAME={form}, as in --tune BLOCK={example}.")
        if max(map(abs, numbers)) > MOST:
            raise RungError(f"--tune {shown(word)} is more than any kernel takes; give at most {MOST:,}.")
        if name in tunings:
            raise RungError(f"--tune gives {name} twice; give each tunable once, as in --tune {name}={example}.")
        tunings[name] = numbers
    return tunings


def operation_and_file(operation: str | None, file: Path | None) -> tuple[str | None, Path | None]:
    """OP and FILE; if a file stands alone, its name or its kernels' names tell the operation."""
    alone = operation is not None and file is None and operation.endswith((".cu", ".cuh", ".py"))
    if operation is None or not alone:
        return operation, file
    if not Path(operation).is_file():
        raise RungError(f"there is no file {shown(operation)}.")
    from rung import adopt
    from rung.cli import console
    from rung.operation import folders

    path = Path(operation)
    found = adopt.operation_of(path, list(folders()))
    console.note(f"rung: {path} is taken for {found}; to say otherwise: rung check OP {path}")
    return found, path


def proposed(rung: CudaRung, *, write: bool) -> str:
    """The header that was proposed for a file, as text; `write` puts it there."""
    from rung.rungs import header

    text = header.written(rung.table)
    remarks = "".join(f"\nrung: {doubt}." for doubt in rung.doubts[:1])
    assert rung.path is not None
    if not write:
        return f"rung: {rung.path} has no header; this one is used (--write puts it into the file):\n{text}{remarks}"
    try:
        rung.path.write_text(f"{text}\n{rung.source}", encoding="utf-8")
    except OSError as error:
        raise RungError(f"{rung.path} cannot be written ({error.strerror}).") from None
    return f"rung: this header stands in {rung.path} now:\n{text}{remarks}"
