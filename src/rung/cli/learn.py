"""`rung learn` and `rung hint`: exercises, graded by `rung check` and `rung count`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.learn import Exercise

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
    from rung.learn import BLANK, Progress, find

    progress = Progress.read()
    if number is None:
        _list(progress.solved, json)
        return
    exercise = find(number)
    path = folder / f"{exercise.name}.cu"
    out = sys.stderr if json else sys.stdout
    print(f"{exercise.number}. {exercise.chapter}: {exercise.task}\n", file=out)
    blanks, says = list(exercise.solution), ""
    if not path.exists():
        path.write_text(exercise.source, encoding="utf-8")
        print(f"{path} is the kernel. Fill its blanks ({', '.join(blanks)}),", file=out)
        print(f"and run `rung learn {number}` again. `rung hint {number}` gives a hint.", file=out)
        state = "begun"
    else:
        text = path.read_text(encoding="utf-8")
        blanks = sorted(set(BLANK.findall(text)))
        says = f"{' and '.join(blanks)}: not filled yet." if blanks else exercise.mistake(text)
        state = "blank" if blanks else _graded(exercise, path, out)
    if state == "solved":
        progress.solved.add(exercise.name)
        progress.write()
        story = ", ".join(f"`rung show {name} --diff`" for name in exercise.story)
        print(f"\nSolved. {says}{' ' * bool(says)}The rungs behind it: {story}.", file=out)
    elif state != "begun":
        print(f"\nNot yet. {says or f'`rung hint {number}` gives a hint.'}", file=out)
    if json:
        console.print_json({"number": number, "file": str(path), "state": state, "blanks": blanks, "says": says})
    if state not in ("begun", "solved"):
        raise typer.Exit(1)


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


def _graded(exercise: Exercise, path: Path, out: TextIO) -> str:
    """"solved", "wrong" or "slow". What the goal is about is counted while the check runs."""
    goal = ("count", exercise.operation, str(path), "--shape", exercise.shape, "--goal", exercise.goal)
    counting = _start(goal, subprocess.PIPE) if exercise.goal else None
    words = ("check", exercise.operation, str(path), "--dtype", exercise.dtype)
    print(_shown(words), file=out, flush=True)
    try:
        right = _ended(_start(words, 2 if out is sys.stderr else None), words)
        if not right or counting is None:
            return "solved" if right else "wrong"
        counted = counting.communicate()[0]
        print(f"{_shown(goal)}\n{counted}", end="", file=out, flush=True)
        return "solved" if _ended(counting, goal) else "slow"
    finally:
        if counting is not None:
            counting.kill()
            counting.wait()


def _shown(words: Sequence[str]) -> str:
    return f"$ rung {shlex.join(words)}"


def _start(words: Sequence[str], stdout: int | None) -> subprocess.Popen[str]:
    """A verb in a process of its own; when its output is read, its errors are read with it."""
    both = subprocess.STDOUT if stdout == subprocess.PIPE else None
    return subprocess.Popen([sys.executable, "-m", "rung", *words], stdout=stdout, stderr=both, text=True)


def _ended(process: subprocess.Popen[str], words: Sequence[str]) -> bool:
    """Whether it ended with 0. Mistakes in the file end with 2, and are shown."""
    code = process.wait()
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
