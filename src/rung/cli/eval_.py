"""`rung eval`: tasks of lm-evaluation-harness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuless.base import files
from rung.cli import options
from rung.errors import RungError, first_line, with_extra

DESCRIPTION = 1 << 20  # bytes of a task's file at most


def eval_(
    tasks: Annotated[list[str], typer.Argument(help="Tasks as the harness names them, or files that describe one.")],
    model: options.Model = "inner",
    limit: Annotated[int | None, typer.Option(help="At most this many examples of each task.", min=1)] = None,
    shots: Annotated[
        int | None, typer.Option(help="Worked examples before each question (default: as the task says).", min=0)
    ] = None,
    include: Annotated[Path | None, typer.Option(help="A folder with further tasks (.yaml).")] = None,
    json: options.Json = False,
    dtype: options.ModelDtype = "auto",
    device: options.ModelDevice = "auto",
    revision: options.Revision = None,
    offline: options.Offline = False,
    threads: options.Threads = None,
) -> None:
    """Accuracy and perplexity on tasks of lm-evaluation-harness (the extra `eval`).

    rung eval lambada_openai --model gpt2 --device cuda
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise RungError(f"rung eval needs lm-evaluation-harness: {with_extra('eval')}.") from None
    for described in (task for task in tasks if task.endswith(".yaml")):
        try:
            files.read_bytes(Path(described), DESCRIPTION)
        except OSError as error:
            raise RungError(f"{described} cannot be read ({error.strerror}); name a task.") from None
    if include is not None and not include.is_dir():
        raise RungError(f"{include} is no folder; --include takes a folder of tasks.")
    from rung.cli import console
    from rung.exchange.harness import HarnessModel
    from rung.models.load import load

    chosen = load(model, device=device, dtype=dtype, revision=revision, offline=offline, threads=threads)
    manager = TaskManager(include_path=str(include) if include else None, include_defaults=False)
    if missing := [t for t in tasks if not t.endswith(".yaml") and not manager.match_tasks([t])]:
        manager = TaskManager(include_path=str(include) if include else None)  # reading all its task files takes 10 s
        missing = [t for t in missing if not manager.match_tasks([t])]
    if missing:
        raise RungError(f"there is no task {missing[0]!r}; `--include FOLDER` adds tasks of your own.")
    try:
        found: Any = lm_eval.simple_evaluate(
            model=HarnessModel(chosen), tasks=tasks, num_fewshot=shots, limit=limit, task_manager=manager,
            bootstrap_iters=0,
        )  # fmt: skip
    except (RungError, OSError):
        raise
    except Exception as error:  # a task may be anything
        raise RungError(f"the harness cannot evaluate this: {type(error).__name__}, {first_line(error)}") from None
    if json:
        console.print_json({"results": found["results"], "n-samples": found["n-samples"]})
        return
    rows = [
        (task, name.removesuffix(",none"), f"{value:.4f}")
        for task, figures in found["results"].items()
        for name, value in figures.items()
        if isinstance(value, float)
    ]
    console.table(("task", "metric", "value"), rows, right=("value",))
