"""`rung eval`: tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rung.errors import RungError


def eval_(
    tasks: Annotated[list[str], typer.Argument(help="Tasks as the harness names them, or files that describe one.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="inner, gpt2, a hub id or a folder.")
    ] = "inner",
    limit: Annotated[int | None, typer.Option(help="So many examples of each task.")] = None,
    shots: Annotated[int | None, typer.Option(help="Worked examples before each question; as the task says.")] = None,
    include: Annotated[Path | None, typer.Option(help="A folder with further tasks (.yaml).")] = None,
    json_: Annotated[bool, typer.Option("--json", help="All results as one JSON document.")] = False,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, int8; on a GPU float16 as well.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda or emulator.")] = "cpu",
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit of the model on the hub.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what was downloaded before.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads; by default as many as there are.")] = None,
) -> None:
    """Accuracy and perplexity on tasks of lm-evaluation-harness (the extra `eval`).

    rung eval lambada_openai --model gpt2 --device cuda
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise RungError("rung eval needs lm-evaluation-harness: pip install 'rung[eval]'.") from None
    from rung.cli import console
    from rung.gpt2.harness import HarnessModel
    from rung.gpt2.load import load

    chosen = load(model, device=device, dtype=dtype, revision=revision, offline=offline, threads=threads)
    manager = TaskManager(include_path=str(include) if include else None)
    missing = [t for t in tasks if not t.endswith(".yaml") and not manager.match_tasks([t])]
    if missing:
        raise RungError(f"there is no task {missing[0]!r}; `--include FOLDER` adds tasks of your own.")
    found: Any = lm_eval.simple_evaluate(
        model=HarnessModel(chosen), tasks=tasks, num_fewshot=shots, limit=limit, task_manager=manager, bootstrap_iters=0
    )
    if json_:
        print(json.dumps({"results": found["results"], "n-samples": found["n-samples"]}, indent=2, default=str))
        return
    rows = [
        (task, name.removesuffix(",none"), f"{value:.4f}")
        for task, figures in found["results"].items()
        for name, value in figures.items()
        if isinstance(value, float)
    ]
    console.table(("task", "metric", "value"), rows, right=("value",))
