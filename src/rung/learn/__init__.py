"""Twenty-four exercises: kernels with blanks, hints that open one after the other, and where a learner stands.

The grader is `rung check`, and `rung count` where a goal for counters decides; this module only knows the exercises.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rung import files, lines
from rung.errors import RungError

FOLDER = Path(__file__).parent / "exercises"
PER_CHAPTER = 4
BLANK = re.compile(r"BLANK_\d")


@dataclass(frozen=True)
class Exercise:
    name: str  # 03_coalesced
    chapter: str
    operation: str
    task: str
    hints: tuple[str, ...]
    solution: Mapping[str, str]  # by blank
    mistakes: tuple[tuple[Mapping[str, str], str], ...]  # what learners write, and what to say of it
    story: tuple[str, ...]  # the rungs behind it
    goal: str = ""  # an expression over counters
    shape: str = ""  # at which the goal is counted
    dtype: str = "f32"

    @property
    def number(self) -> int:
        return int(self.name[:2])

    @property
    def source(self) -> str:
        return (FOLDER / f"{self.name}.cu").read_text(encoding="utf-8")

    @property
    def solved(self) -> str:
        """The kernel with its blanks filled."""
        return BLANK.sub(lambda blank: self.solution[blank[0]], self.source)

    def answers(self, text: str) -> dict[str, str] | None:
        """What a learner's file has in place of each blank; None if the rest of the file was changed as well."""
        parts = BLANK.split(self.source.strip())
        blanks = BLANK.findall(self.source)
        found = re.fullmatch("(.*?)".join(_loosely(part) for part in parts), text.strip(), re.DOTALL)
        return {b: " ".join(a.split()) for b, a in zip(blanks, found.groups(), strict=True)} if found else None

    def mistake(self, text: str) -> str:
        """The sentence for a mistake that learners make, if this file has it."""
        answers = self.answers(text)
        if answers is None:
            return ""
        written = {blank: _bare(answer) for blank, answer in answers.items()}
        return next((s for fill, s in self.mistakes if all(written[b] == _bare(a) for b, a in fill.items())), "")


def _loosely(part: str) -> str:
    """The text of the exercise, with any whitespace where it has some."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", part))


def _bare(code: str) -> str:
    return re.sub(r"\s", "", code)


@cache
def exercises() -> tuple[Exercise, ...]:
    table: dict[str, Any] = tomllib.loads((FOLDER / "exercises.toml").read_text(encoding="utf-8"))
    chapters = table.pop("chapters")
    return tuple(
        Exercise(
            name=name,
            chapter=chapters[index // PER_CHAPTER],
            mistakes=tuple(({b: m[b] for b in m if b != "says"}, m["says"]) for m in facts.pop("mistakes", ())),
            hints=tuple(facts.pop("hints")),
            story=tuple(facts.pop("story")),
            **facts,
        )
        for index, (name, facts) in enumerate(table.items())
    )


def find(number: int) -> Exercise:
    every = exercises()
    if not 1 <= number <= len(every):
        raise RungError(f"there is no exercise {number}; there are 1 to {len(every)}.")
    return every[number - 1]


@dataclass
class Progress:
    """Which exercises are solved, and how many hints were read, in the user's file."""

    path: Path
    solved: set[str]
    hints: dict[str, int]

    @staticmethod
    def read() -> Progress:
        path = lines.default_path().with_name("learn.json")
        facts = files.read_json(path, "remove it") if path.is_file() else {}
        if not isinstance(facts, dict):
            raise RungError(f"{path} is not a record of exercises; remove it.")
        return Progress(path, set(facts.get("solved", ())), dict(facts.get("hints", {})))

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"solved": sorted(self.solved), "hints": self.hints}), encoding="utf-8")
