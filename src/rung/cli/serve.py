"""`rung serve`: OpenAI's completions over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuless.base import files
from gpuless.base.files import shown
from rung.cli import options
from rung.errors import RungError, with_extra

KEY = 1 << 12  # bytes of a key's file


def serve(
    model: options.Model = "inner",
    device: options.ModelDevice = "auto",
    dtype: options.ModelDtype = "auto",
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is all addresses.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 chooses a free one.", min=0, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name for clients (default: --model).")] = None,
    slots: Annotated[int | None, typer.Option(help="Texts at a time (default: depends on memory).", min=1)] = None,
    gpus: Annotated[int | None, typer.Option(help="One engine on each of this many GPUs.", min=1)] = None,
    draft: options.Draft = None,
    cache: options.Cache = None,
    context: options.Longest = None,
    threads: options.Threads = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file with the key that clients must send.")] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="Let pages of this origin call the server (repeatable).")
    ] = None,
    max_body: Annotated[int, typer.Option(help="Largest request, in bytes.", min=1)] = 4 << 20,
    max_queue: Annotated[
        int, typer.Option(help="Texts that may wait; further ones are refused with 429.", min=0)
    ] = 1024,
    timeout: Annotated[float, typer.Option(help="Time limit of a request, in seconds.", min=0.1)] = 600.0,
    grace: Annotated[float, typer.Option(help="Seconds for running requests after Ctrl-C or SIGTERM.", min=0)] = 30.0,
    allow_priority: Annotated[bool, typer.Option(help="Let clients set a request's priority.")] = False,
    workers: Annotated[int, typer.Option(help="Engines, each a process (with --gpus: on each GPU).", min=1)] = 1,
    revision: options.Revision = None,
    offline: options.Offline = False,
    ray: options.Ray = None,
) -> None:
    """Serve a model over HTTP as OpenAI's completions; a page to try it is at /.

    rung serve

    rung serve --model gpt2 --device cuda --port 8080

    curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "Once upon a time"}'
    """
    try:
        from rung.serve.app import Limits
        from rung.serve.run import serve as run
    except ModuleNotFoundError as error:
        raise RungError(f"the server needs {error.name}; install it: {with_extra('serve')}.") from None
    from rung.models.batching.worker_pool import Setup

    for option, text in [("--name", name), *(("--cors", origin) for origin in cors or [])]:
        if text is not None and not (text and text.isprintable()):
            raise RungError(f"{option} {shown(text)} cannot be sent in HTTP; give printable characters.")
    device = options.device_of(gpus, device, ray)
    how = {
        "model": model, "device": device, "dtype": dtype, "threads": threads, "revision": revision, "offline": offline,
        "draft": draft, "cache": cache, "context": context,
    }  # fmt: skip
    behind: dict[str, Any] = {
        "name": name, "host": host, "port": port,
        "limits": Limits(max_body, max_queue, timeout, grace=grace, priority=allow_priority),
        "key": _key(api_key_file), "origins": cors or [],
    }  # fmt: skip
    if ray is not None:
        from rung.serve.run import serve_over_ray

        serve_over_ray(Setup(how, slots, warm=True), ray, **behind)
        return
    placed = [None] if gpus is None else range(gpus)
    run([Setup(how, slots, gpu, warm=True) for gpu in placed for _ in range(workers)], **behind)


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        key = files.read_bytes(file, KEY).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not UTF-8"
        raise RungError(f"{file} cannot be read ({problem}); put the key there, in one line.") from None
    if not key or "\n" in key:
        raise RungError(f"{file} holds no key; put one there, in one line.")
    return key
