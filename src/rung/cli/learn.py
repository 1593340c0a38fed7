"""`rung learn` and `rung hint`: exercises, graded by `rung check` and `rung count`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

Number = Annotated[int, typer.Argument(metavar="NUMBER", help="The exercise, from 1 to 24.")]


def learn(
    number: Annotated[int | None, typer.Argument(metavar="[NUMBER]", help="The exercise to begin or to grade.")] = None,
    folder: Annotated[Path, typer.Option(help="Where the exercise's file is written.")] = Path(),
    json: options.Json = False,
) -> None:
    """Exercises in six chapters: the list, or one of them, which is written here and graded when its blanks are filled.

    Exit code 0: solved, or just begun; 1: not yet right.

    Examples: rung learn · rung learn 3 · rung hint 3
    """
    from rung.learn import Progress, find

    progress = Progress.read()
    if number is None:
        _list(progress.solved, json)
        return
    exercise = find(number)
    path = folder / f"{exercise.name}.cu"
    print(f"{exercise.number}. {exercise.chapter}: {exercise.task}\n")
    if not path.exists():
        path.write_text(exercise.source, encoding="utf-8")
        print(f"{path} is the kernel. Fill its blanks ({', '.join(exercise.solution)}),")
        print(f"and run `rung learn {number}` again. `rung hint {number}` gives a hint.")
        return
    command = ["check", exercise.operation, str(path), "--dtype", exercise.dtype]
    right = _rung(*command)
    if right and exercise.goal:
        right = _rung("count", exercise.operation, str(path), "--shape", exercise.shape, "--goal", exercise.goal)
    if not right:
        sentence = exercise.mistake(path.read_text(encoding="utf-8"))
        print(f"\nNot yet. {sentence or f'`rung hint {number}` gives a hint.'}")
        raise typer.Exit(1)
    progress.solved.add(exercise.name)
    progress.write()
    story = ", ".join(f"`rung show {name} --diff`" for name in exercise.story)
    print(f"\nSolved. The rungs behind it: {story}.")


def hint(number: Number) -> None:
    """The next hint for an exercise; there are three.

    Example: rung hint 3
    """
    from rung.learn import Progress, find

    exercise, progress = find(number), Progress.read()
    seen = min(progress.hints.get(exercise.name, 0) + 1, len(exercise.hints))
    for index, text in enumerate(exercise.hints[:seen], 1):
        print(f"{index}. {text}")
    if seen == len(exercise.hints):
        print(f"That was the last hint. {'The goal: ' + exercise.goal if exercise.goal else ''}".rstrip())
    progress.hints[exercise.name] = seen
    progress.write()


def _rung(*words: str) -> bool:
    """A verb in a process of its own; whether it ended with 0. Mistakes in the file end with 2, and are shown."""
    print("$ rung " + " ".join(words), flush=True)
    code = subprocess.run([sys.executable, "-m", "rung", *words], check=False).returncode
    if code not in (0, 1, 2, 3):
        raise RungError(f"`rung {words[0]}` ended with code {code}.")
    return code == 0


def _list(solved: set[str], json: bool) -> None:
    from rung.learn import exercises

    every = exercises()
    if json:
        rows = [
            {"number": e.number, "name": e.name, "chapter": e.chapter, "task": e.task, "solved": e.name in solved}
            for e in every
        ]
        console.print_json(rows)
        return
    shown = [(e.number, e.chapter, e.name[3:].replace("_", " "), "solved" if e.name in solved else "") for e in every]
    console.table(("exercise", "chapter", "about", "state"), shown, right=("exercise",))
    following = next((e for e in every if e.name not in solved), None)
    next_step = f"next: `rung learn {following.number}`" if following else "all of them"
    print(f"\n{sum(e.name in solved for e in every)} of {len(every)} solved; {next_step}.")
