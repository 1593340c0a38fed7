"""The course: chapters of exercises (a kernel to fill, to mend, to predict or to write), and where a learner stands.

grading.py judges a file on the machine, symptoms.py has the sentences, web.py the page; this module has the content.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gpuless.base import files
from rung import __version__
from rung.errors import RungError
from rung.operation import Values

FOLDER = Path(__file__).parent / "exercises"
OWN = "RUNG_EXERCISES"  # a folder of one's own with an exercises.toml, in place of the course
RECORD = ".rung-learn.json"  # in the folder with the learner's files
BLANK = re.compile(r"BLANK_\d")
IDEA = re.compile(r'^(idea += *|"")"[^"]*("|""")', re.MULTILINE)  # what a file's first lines say of it
MARGIN = 0.95  # of the reference's traffic or time: what counts as better
TRAFFIC = "sectors of 32 bytes in global memory, plus passes over the banks of shared memory"
SAME = 1.03  # predicted times that differ by less are the same
KINDS = {"fill": "fill the blanks", "bug": "find the bug", "predict": "predict the counts", "write": "write the kernel"}


@dataclass(frozen=True)
class Exercise:
    name: str
    number: int
    chapter: str
    operation: str
    task: str
    hints: tuple[str, ...]
    solution: Mapping[str, str]  # by blank
    story: tuple[str, ...]  # the rungs behind it
    folder: Path
    shape: str  # at which counts are taken
    called: str = ""  # in the list; else its name
    kind: str = "fill"
    why: str = ""  # the solution, explained
    skill: str = ""  # what a learner can do then: "You can now ..."
    goal: str = ""  # an expression over counters
    aim: str = ""  # the same in words
    blocks: str = ""  # how many are enough, where that is asked
    timed: str = ""  # sizes at which the time is predicted
    within: float = 1.0  # the goal: of the time that is predicted for the solution
    dtype: str = "f32"
    par: int = 0  # memory traffic of the solution: sectors and passes over the banks
    best: int = 0  # the traffic that the third star asks for, where the solution's can be beaten
    uses: Mapping[str, str] = field(default_factory=dict)  # opcodes that must be executed, and what is said if not
    notes: tuple[str, ...] = ()  # the solution line by line: "part of a line: what it does"
    slips: tuple[Mapping[str, str], ...] = ()  # typical mistakes by blank, which must not be solved
    of: str = ""  # the exercise whose solution has the bug put in
    swap: tuple[tuple[str, str], ...] = ()  # the bug: what stands there, and what is put in its place
    sizes: tuple[str, ...] = ()  # that are tried, where a compilation takes too long for all of them
    predict: Mapping[str, str] = field(default_factory=dict)  # figures by the names of the answers

    @property
    def title(self) -> str:
        return self.called or self.name.replace("_", " ").capitalize()

    @property
    def file(self) -> str:
        """The learner's file."""
        return f"{self.number:02}_{self.name}{self.suffix}"

    @cached_property
    def suffix(self) -> str:
        """.py of Triton's exercises, .cu of the others."""
        return ".py" if (self.folder / f"{self.of or self.name}.py").is_file() else ".cu"

    @property
    def comment(self) -> str:
        """What a comment begins with."""
        return "#" if self.suffix == ".py" else "//"

    @cached_property
    def source(self) -> str:
        """What the learner begins with."""
        if not self.of:
            return (self.folder / f"{self.name}{self.suffix}").read_text(encoding="utf-8")
        text = IDEA.sub(r'\1"A kernel with a bug.\2', by_name(self.of, self.folder).solved)
        for old, new in self.swap:
            text = text.replace(old, new, 1)
        return text

    @property
    def solved(self) -> str:
        """The kernel with its blanks filled, or without its bug."""
        if self.of:
            return by_name(self.of, self.folder).solved
        return self.filled(self.solution)

    @property
    def bug_lines(self) -> frozenset[int]:
        """Of a hunt: the lines that differ from the solution's."""
        lines = self.source.splitlines()
        changed = difflib.SequenceMatcher(None, self.solved.splitlines(), lines, autojunk=False).get_opcodes()
        return frozenset(
            n + 1 for how, _, _, begin, end in changed if how != "equal" for n in range(begin, max(end, begin + 1))
            if not IDEA.match(lines[min(n, len(lines) - 1)])
        )  # fmt: skip

    @property
    def worked(self) -> tuple[tuple[str, str], ...]:
        """The worked solution: each line of code with what is said of it."""
        found, notes = [], self.notes or (by_name(self.of, self.folder).notes if self.of else ())
        for line in self.solved.splitlines():
            note = next((n.partition(" => ")[2] for n in notes if n.partition(" => ")[0] in line), "")
            found.append((line, note))
        return tuple(found)

    def filled(self, answers: Mapping[str, str]) -> str:
        """The kernel with these in place of its blanks."""
        return BLANK.sub(lambda blank: answers.get(blank[0], blank[0]), self.source)

    @property
    def dims(self) -> Values:
        """The sizes at which the goal is counted."""
        return sizes_of(self.shape)


def sizes_of(shape: str) -> Values:
    return {name: int(value) for name, _, value in (part.partition("=") for part in shape.split(","))}


def targets_of(exercise: Exercise) -> list[str]:
    """What a right kernel must reach as well, in words."""
    at, timed = (shape.replace(",", ", ").replace("=", " = ") for shape in (exercise.shape, exercise.timed))
    found = [f"{exercise.aim or exercise.goal}, at {at}"] if exercise.goal else []
    if timed:
        found.append(f"a predicted time of at most {exercise.within:g} times the reference's, at {timed}")
    return found


def stars_of(exercise: Exercise) -> tuple[str, str, str]:
    """What each star is for."""
    if exercise.kind == "predict":
        third = "right at the first run, and the solution was not read"
        return "the prediction is right", "at most one prediction was wrong", third
    more = " and the target is met" if exercise.goal else " and no block is needless" if exercise.blocks else ""
    first = f"the result is right{more}"
    second = f"memory traffic of at most {exercise.par:,}, as the reference solution has ({TRAFFIC})"
    if exercise.kind == "bug":
        here = f"(`{exercise.comment} here` at the end of each; on the page, click their numbers)"
        third = f"you find it before you fix it: your first run has marks on the one or two lines to blame {here}"
        return first, second, third
    if exercise.timed:
        return (first, f"predicted time within {SAME:g} of the reference's",
                f"at most {MARGIN:g} of the reference's predicted time")  # fmt: skip
    third = f"memory traffic of at most {exercise.best:,}, less than the reference's"
    return first, second, third if exercise.best else "neither a hint nor the solution was read"


def next_star(exercise: Exercise, stars: int) -> str:
    """What the next star of a solved exercise is for, if it can still be won."""
    lost = exercise.kind == "predict" or (stars == 2 and not exercise.timed and not exercise.best)
    return "" if stars == 3 or lost else stars_of(exercise)[stars]


@dataclass(frozen=True)
class Chapter:
    title: str
    page: str
    exercises: tuple[Exercise, ...]
    folder: Path

    @property
    def plain(self) -> str:
        """The same for a terminal, which has no drawings."""
        return re.sub(r"(?m)^\{draw .*\}$", "(a drawing: `rung learn --web`)", self.text).strip()

    @property
    def text(self) -> str:
        """What, why and a picture, in Markdown."""
        path = self.folder / "chapters" / f"{self.page}.md"
        return path.read_text(encoding="utf-8") if self.page and path.is_file() else ""


@cache
def chapters(folder: Path = FOLDER) -> tuple[Chapter, ...]:
    path = folder / "exercises.toml"
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise RungError(f"{path} has no exercises: {problem}.") from None
    found: list[Chapter] = []
    number = 0
    for about in table.pop("chapters"):
        exercises = []
        for name in about["exercises"]:
            number += 1
            exercises.append(_exercise(name, number, about["title"], dict(table[name]), folder))
        found.append(Chapter(about["title"], about.get("page", ""), tuple(exercises), folder))
    return tuple(found)


def _exercise(name: str, number: int, chapter: str, facts: dict[str, Any], folder: Path) -> Exercise:
    for key in ("hints", "story", "notes", "slips", "sizes"):
        facts[key] = tuple(facts.get(key, ()))
    facts["swap"] = tuple((old, new) for old, new in facts.get("swap", ()))
    facts.setdefault("solution", {})
    try:
        return Exercise(name=name, number=number, chapter=chapter, folder=folder, **facts)
    except TypeError as problem:
        raise RungError(f"{folder / 'exercises.toml'}: {name}: {problem}.") from None


def exercises(folder: Path = FOLDER) -> tuple[Exercise, ...]:
    return tuple(e for chapter in chapters(folder) for e in chapter.exercises)


def chapter_of(exercise: Exercise) -> Chapter:
    return next(chapter for chapter in chapters(exercise.folder) if exercise in chapter.exercises)


def by_name(name: str, folder: Path = FOLDER) -> Exercise:
    for exercise in exercises(folder):
        if exercise.name == name:
            return exercise
    raise RungError(f"there is no exercise {name!r} in {folder}.")


def find(which: str, solved: Mapping[str, int] | None = None, folder: Path = FOLDER) -> Exercise:
    """The exercise of a number or a name; `next` is the first that is not solved."""
    every = exercises(folder)
    if which == "next":
        return next((e for e in every if e.name not in (solved or {})), every[-1])
    if which.isdecimal() and 1 <= int(which) <= len(every):
        return every[int(which) - 1]
    if found := next((e for e in every if e.name == which), None):
        return found
    raise RungError(f"there is no exercise {which}; there are 1 to {len(every)}, and `next`.")


def digest(exercise: Exercise, text: str) -> str:
    """What a verdict on a text depends on."""
    return hashlib.sha256("\0".join((text, __version__, repr(exercise))).encode()).hexdigest()[:16]


@dataclass
class Progress:
    """Beside the learner's files: stars of solved exercises, hints that were read, the last verdicts, how many runs
    have told something, bugs whose lines were marked first, and the least predicted microseconds."""

    path: Path
    solved: dict[str, int]
    hints: dict[str, int]
    graded: dict[str, dict[str, Any]]
    tries: dict[str, int] = field(default_factory=dict)
    found: dict[str, bool] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> Progress:
        path = folder / RECORD
        facts = files.read_json(path, "remove it") if path.is_file() else {}
        if not isinstance(facts, dict):
            raise RungError(f"{path} is not a record of exercises; remove it.")
        return Progress(
            path, *(facts.get(name, {}) for name in ("solved", "hints", "graded", "tries", "found", "best"))
        )

    def take_hint(self, exercise: Exercise) -> tuple[str, ...]:
        """The hints so far, and the next one."""
        self.hints[exercise.name] = min(self.hints.get(exercise.name, 0) + 1, len(exercise.hints))
        self.write()
        return exercise.hints[: self.hints[exercise.name]]

    def show_solution(self, exercise: Exercise) -> None:
        """Whoever reads it first has had every hint, and a try."""
        if exercise.name not in self.solved:
            self.hints[exercise.name] = max(1, len(exercise.hints))
            self.tries[exercise.name] = max(1, self.tries.get(exercise.name, 0))
            self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        facts = {name: value for name, value in vars(self).items() if name != "path"}
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(facts, allow_nan=False), encoding="utf-8")
        beside.replace(self.path)
