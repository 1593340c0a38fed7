"""`rung learn`: the course, graded on the machine."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.learn import Exercise, Progress


def learn(
    which: Annotated[
        str | None, typer.Argument(metavar="[EXERCISE]", help="Its number, its name, or `next`: to begin or to grade.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the exercises' files are, with stars and hints.")] = Path(),
    everything: Annotated[bool, typer.Option("--all", help="When it is solved, also the long checks.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Grade the file again at each save, until ^C.")] = False,
    web: Annotated[bool, typer.Option("--web", help="The course as a page in a browser, served here.")] = False,
    port: Annotated[int, typer.Option(help="With --web.")] = 8765,
    hint: Annotated[bool, typer.Option("--hint", help="Show the next hint.")] = False,
    solution: Annotated[bool, typer.Option("--solution", help="Show the worked solution, line by line.")] = False,
    chapter: Annotated[bool, typer.Option("--chapter", help="Show the exercise's chapter: what it is about.")] = False,
    of_class: Annotated[
        Path | None, typer.Option("--class", help="Grade a class: a folder with a folder of files for each learner.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A folder with other exercises (exercises.toml).")
    ] = None,
    json: options.Json = False,
) -> None:
    """The course: exercises in chapters. The list, or one of them, which is written here and then graded.

    Exit code 0: solved, or just begun; 1: not yet.

    Examples: rung learn · rung learn 3 · rung learn next --watch · rung learn 3 --hint · rung learn --web
    """
    from rung.learn import FOLDER, Progress, chapter_of, find

    place, progress = source or FOLDER, Progress.read(folder)
    if web:
        from rung.learn import web as page

        page.serve(folder, place, port)
        return
    if of_class:
        _class(of_class, place, json)
        return
    if which is None:
        _list(progress.solved, place, json)
        return
    exercise = find(which, progress.solved, place)
    if hint:
        for index, text in enumerate(seen := progress.take_hint(exercise), 1):
            _say(f"{index}. {text}", sys.stdout, "   ")
        if len(seen) == len(exercise.hints):
            print("That was the last hint.")
        return
    if chapter:
        _say(chapter_of(exercise).plain, sys.stdout)
        return
    if solution:
        progress.show_solution(exercise)
        print("\n".join(f"{line}  // {note}" if note else line for line, note in exercise.worked))
        _say(f"\n{exercise.why}", sys.stdout)
        return
    path = folder / exercise.file
    out = sys.stderr if json else sys.stdout
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(exercise.source, encoding="utf-8")
        _introduce(exercise, path, out)
        facts: dict[str, Any] = {"state": "begun", "says": "", "symptoms": [], "blanks": sorted(exercise.solution)}
    else:
        facts = _grade(exercise, path, progress, out)
        if everything and facts["state"] == "solved" and not _passes_long_check(exercise, path, out):
            facts["state"] = "wrong"
    if watch:
        _again_at_each_save(exercise, path, progress, out)
    if json:
        console.print_json({"number": exercise.number, "name": exercise.name, "file": str(path), **facts})
    if facts["state"] not in ("begun", "solved"):
        raise typer.Exit(1)


def _introduce(exercise: Exercise, path: Path, out: TextIO) -> None:
    from rung.learn import chapter_of, stars_of, targets_of

    _say(f"{exercise.number}. {exercise.title} ({exercise.chapter})\n\n{exercise.task}\n", out)
    for target in targets_of(exercise):
        _say(f"Target: {target}.", out)
    for count, what in enumerate(stars_of(exercise), 1):
        _say(f"{'★' * count:<3} {what}", out, "    ")
    _say(f"\nThe kernel is in {path}. Edit it, then run `rung learn {exercise.number}` again.", out)
    if chapter_of(exercise).text:
        _say(f"`rung learn {exercise.number} --chapter` shows the theory of this chapter.", out)
    _say(f"`rung learn {exercise.number} --hint` gives a hint; `rung learn --web` shows pictures.", out)


def _say(text: str, out: TextIO, indent: str = "") -> None:
    """Prints paragraphs; on a terminal its lines end between words. Lists are indented, code is left as it is."""
    wide = console.width() if out is sys.stdout else 0
    for line in text.splitlines():
        further = "  " if line.startswith("- ") else indent
        fits = not wide or len(line) <= wide or line.startswith("    ")
        print(line if fits else textwrap.fill(line, wide, subsequent_indent=further, break_on_hyphens=False), file=out)


def _grade(exercise: Exercise, path: Path, progress: Progress, out: TextIO) -> dict[str, Any]:
    """The verdict as JSON has it, printed and kept; that of an unchanged file is printed again."""
    from rung.learn.grading import verdict_on

    facts = verdict_on(exercise, path, progress)
    if facts["cases"]:
        sizes = f"{facts['cases']} size{'s' if facts['cases'] > 1 else ''}"
        how = "but not at all of them:" if facts["state"] == "wrong" else "without a race or fault."
        print(f"Right at {sizes}, {how}", file=out)
    if facts["goal"] and facts["state"] == "solved" and not exercise.timed:
        print(f"Counted: {facts['goal']}", file=out)
    for symptom in facts["symptoms"]:
        _say(symptom["says"], out)
        if "map" in symptom["facts"]:
            _show_wrong(symptom["facts"], out)
    if facts["state"] == "solved":
        _celebrate(exercise, facts, progress, out)
    else:
        print(f"\nNot yet. `rung learn {exercise.number} --hint` gives a hint.", file=out)
    return facts


def _show_wrong(facts: dict[str, Any], out: TextIO) -> None:
    """The first wrong elements, and which are wrong."""
    from rung.explain.diagnosis import Diagnosis

    # JSON has no NaN: there it is text; what was never written is null.
    pairs = [p | {n: float(p[n]) for n in ("expected", "got") if p[n] is not None} for p in facts["pairs"]]
    for line in Diagnosis.from_json({**facts, "pairs": pairs, "sentences": ()}).lines()[1:]:
        print(line, file=out)


def _celebrate(exercise: Exercise, facts: dict[str, Any], progress: Progress, out: TextIO) -> None:
    from rung.learn import chapter_of, exercises, next_star

    stars, best = facts["stars"], progress.solved.get(exercise.name, 0)
    more = f" This run; your best: {'★' * best}{'☆' * (3 - best)}" if best > stars else ""
    _say(f"\n{'★' * stars}{'☆' * (3 - stars)} Solved.{more}", out)
    if exercise.skill:
        _say(f"You can now {exercise.skill}.", out)
    if facts["work"] and exercise.par:
        said = f"Your kernel: memory traffic {facts['work']:,} (reference: {exercise.par:,})"
        if t := facts["times"]:  # predicted microseconds
            said += f"; predicted on an {t['gpu']} at {t['at']}: {t['mine']:.3g} us "
            said += f"(reference: {t['reference']:.3g} us, your best: {t['best']:.3g} us)"
        _say(f"{said}.", out)
    if meant := next_star(exercise, facts["stars"]):
        _say(f"Next star: {meant}.", out)
    if exercise.why:
        _say(f"About the reference: {exercise.why}", out)
    _say(f"`rung learn {exercise.number} --solution` shows the reference line by line.", out)
    if exercise.story:
        _say(f"See also {', '.join(f'`rung show {name} --diff`' for name in exercise.story)}.", out)
    chapter = chapter_of(exercise)
    done = sum(e.name in progress.solved for e in chapter.exercises)
    later = (e for e in exercises(exercise.folder) if e.number > exercise.number and e.name not in progress.solved)
    further = "".join(f" Next: `rung learn {e.number}` ({e.title})." for e in [*later][:1])
    _say(f"{chapter.title}: {done} of {len(chapter.exercises)} solved.{further}", out)


def _passes_long_check(exercise: Exercise, path: Path, out: TextIO) -> bool:
    """The long check: every case, seed and order, and the compiler for a GPU."""
    from rung.learn import operations

    if not operations.shipped(exercise.operation):
        return True
    words = [sys.executable, "-m", "rung", "check", exercise.operation, str(path), "--dtype", exercise.dtype]
    done = subprocess.run(words, stdout=out.fileno() if out is sys.stderr else None, check=False)
    return done.returncode == 0


def _again_at_each_save(exercise: Exercise, path: Path, progress: Progress, out: TextIO) -> None:
    """Until ^C. What is imported stays, so that a verdict takes a fraction of a second."""
    saved = path.stat().st_mtime_ns
    try:
        while True:
            if path.is_file() and (now := path.stat().st_mtime_ns) != saved:
                saved = now
                print(f"\n{path.name}:", file=out)
                _grade(exercise, path, progress, out)
            time.sleep(0.1)
    except KeyboardInterrupt:
        return


def _class(folder: Path, source: Path, json: bool) -> None:
    """What each learner of a class has solved."""
    from rung.learn import Progress, exercises
    from rung.learn.grading import grade

    if not folder.is_dir():
        raise RungError(f"there is no folder {folder}; each folder in it is a learner's.")
    rows = []
    for learner in sorted(p for p in folder.iterdir() if p.is_dir()):
        for exercise in exercises(source):
            if (path := learner / exercise.file).is_file():
                verdict = grade(exercise, path, Progress.read(learner))
                rows.append(
                    {"learner": learner.name, "exercise": exercise.number, "name": exercise.name, **verdict.as_json()}
                )
    if json:
        console.print_json(rows)
        return
    names = list(dict.fromkeys(row["learner"] for row in rows))
    numbers = sorted({row["exercise"] for row in rows})
    mark = {(r["learner"], r["exercise"]): "★" * r["stars"] or r["state"] for r in rows}
    shown = [(name, *(mark.get((name, number), "") for number in numbers)) for name in names]
    console.table(("learner", *map(str, numbers)), shown)


def _list(solved: dict[str, int], source: Path, json: bool) -> None:
    from rung.learn import exercises, find

    every = exercises(source)
    if json:
        console.print_json(
            [
                {"number": e.number, "name": e.name, "chapter": e.chapter, "kind": e.kind, "task": e.task}
                | {"solved": e.name in solved, "stars": solved.get(e.name, 0)}
                for e in every
            ]
        )
        return
    shown = [(e.number, e.chapter, e.kind, e.title, "★" * solved.get(e.name, 0)) for e in every]
    console.table(("exercise", "chapter", "kind", "about", "stars"), shown, right=("exercise",))
    done = sum(e.name in solved for e in every)
    next_step = (
        f"next: `rung learn {find('next', solved, source).number}`, or `rung learn --web`"
        if done < len(every)
        else "that was the whole course; `rung learn --web` has your certificate"
    )
    print(f"\n{done} of {len(every)} solved; {next_step}.")
