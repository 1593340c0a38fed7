"""Is an exercise solved? The first cases with races and bounds, then the counts: in about a second."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import gpuless
from gpuless import machine, timing
from gpuless.base.expressions import evaluate
from gpuless.counts.counters import Launched
from gpuless.counts.counters_explained import figures, judge_goals
from gpuless.facts import gpus
from gpuless.launch import Build
from gpuless.session import ORDERS
from rung import __version__
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import EmulatorFault, RungError
from rung.learn import BLANK, Exercise, Progress, operations, symptoms
from rung.learn.running import Ran, run
from rung.learn.symptoms import Symptom
from rung.operation import Case, Operation, Values
from rung.profile.counted import Counted, Tensor
from rung.rungs.cuda import CudaRung

State = Literal["blank", "wrong", "slow", "solved"]
MOST_BUILDS = 3  # that the first cases may need: of sizes that are compiled in
MOST_FURTHER = 3  # cases that are looked at for one that tells more
SECONDS = 2.0  # without a thread that ends
_SAME = 1.03  # predicted times that differ by less are the same
IN_WORDS = {  # figures as sentences name them
    "sectors_per_request": "sectors per load",
    "sectors_per_store": "sectors per store",
    "conflicts_load": "extra passes of loads (bank conflicts)",
    "conflicts_store": "extra passes of stores (bank conflicts)",
    "bytes_per_sector": "bytes used per sector of loads",
    "global_loads": "loads from global memory",
    "shared_loads": "loads from shared memory",
}
ANSWER = re.compile(r"constexpr\s+\w+\s+(ANSWER\w*)\s*=\s*([^;]+);")


@dataclass
class Verdict:
    """What is said of a learner's file."""

    state: State
    symptoms: list[Symptom] = field(default_factory=list)
    goal: str = ""  # what was counted for it
    work: int = 0  # sectors of global memory, and passes over the banks of shared memory
    stars: int = 0
    cases: int = 0
    case: Values = field(default_factory=dict)  # in which something was wrong
    counted: Counted | None = None

    @property
    def says(self) -> str:
        return " ".join(s.says for s in self.symptoms)

    def as_json(self) -> dict[str, Any]:
        shown = [
            {"kind": s.kind, "when": s.when, "says": s.says, "lines": list(s.lines), "facts": _finite(s.facts)}
            for s in self.symptoms
        ]
        case = {name: value for name, value in self.case.items() if isinstance(value, int)}
        blanks: list[str] = next((s.facts["blanks"] for s in self.symptoms if s.kind == "blank"), [])
        rest = {
            "blanks": blanks,
            "goal": self.goal,
            "work": self.work,
            "stars": self.stars,
            "cases": self.cases,
            "case": case,
        }
        return {"state": self.state, "says": self.says, "symptoms": shown, **rest}


def _finite(facts: Mapping[str, Any]) -> dict[str, Any]:
    """NaN and infinities are null: standard JSON has no such numbers."""
    return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in facts.items()}


def stars_of(exercise: Exercise) -> tuple[str, ...]:
    """What each star is for."""
    if exercise.kind == "predict":
        return ("the counts are predicted", "the kernel counts as the reference does")
    first = "the result is right and the aim is met" if exercise.goal else "the result is right"
    if exercise.timed:
        return (first, "predicted to be as fast as the reference", "predicted to be faster than the reference")
    return (first, "no more sectors and passes than the reference", "fewer sectors and passes than the reference")


def verdict_on(exercise: Exercise, path: Path, progress: Progress) -> dict[str, Any]:
    """The verdict as JSON has it, kept; that of an unchanged file is found there."""
    text = path.read_text(encoding="utf-8")
    kept = progress.graded.get(exercise.name, {})
    known = kept.get("digest") == _digest(exercise, text)
    facts: dict[str, Any] = kept["verdict"] if known else grade(exercise, path).as_json()
    keep(exercise, text, facts, progress)
    return facts


def keep(exercise: Exercise, text: str, facts: dict[str, Any], progress: Progress) -> None:
    """Writes a verdict into the learner's record."""
    progress.graded[exercise.name] = {"digest": _digest(exercise, text), "verdict": facts}
    if facts["state"] == "solved":
        progress.solved[exercise.name] = max(facts["stars"], progress.solved.get(exercise.name, 0))
    progress.write()


def _digest(exercise: Exercise, text: str) -> str:
    return hashlib.sha256("\0".join((text, __version__, repr(exercise))).encode()).hexdigest()[:16]


def grade(exercise: Exercise, path: Path, *, drawn: bool = False) -> Verdict:
    """The verdict on a file. What is seen first is said first: one mistake at a time. `drawn`: a wrong one is run for
    its drawings, too."""
    text = path.read_text(encoding="utf-8")
    if blanks := sorted(set(BLANK.findall(text))):
        says = f"{' and '.join(blanks)}: not filled yet."
        return Verdict("blank", [Symptom("blank", "wrong", says, (), {"blanks": blanks})])
    trial = _Trial(exercise, path, text)
    verdict = trial.verdict()
    if drawn and verdict.counted is None:
        with contextlib.suppress(RungError):
            seen = trial.counted()
            verdict.counted, verdict.case = seen.counted, seen.case
    return verdict


class _Trial:
    def __init__(self, exercise: Exercise, path: Path, text: str) -> None:
        self.exercise, self.path, self.text = exercise, path, text
        self.dtype: Dtype = dtype_named(exercise.dtype)
        self.of: Operation = operations.operation(exercise.operation)
        self.block: tuple[int, int, int] = (1, 1, 1)
        self.done = 0

    def verdict(self) -> Verdict:
        values: Values = {}
        try:
            rung = CudaRung(self.of, self.path)
            tunings: list[dict[str, int]] = [{}]
            tunings += [{name: choice} for name, choices in rung.tune.items() for choice in choices[1:2]]
            if not (tried := list(self._cases(rung))):
                raise RungError(
                    f"{self.path}: `needs` refuses every size that is tried; an exercise is for all of them."
                )
            for tuning in tunings:
                for number, case in enumerate(tried if not tuning else tried[-2:]):
                    values = self.of.complete(case.values)
                    if found := self._wrong(rung, case, values, tuning, number):
                        return self._most_telling(rung, values, found, tuning, tried[number + 1 :])
            return self.counted()
        except EmulatorFault as fault:
            return Verdict("wrong", [self._fault(fault, values)], cases=self.done, case=values)
        except RungError as error:
            return Verdict("wrong", [symptoms.of_error(error)], cases=self.done, case=values)

    def _most_telling(
        self, rung: CudaRung, values: Values, found: list[Symptom], tuning: dict[str, int], rest: list[Case]
    ) -> Verdict:
        """If the numbers have nothing in common, further cases may say more: the smallest ones."""
        verdict = Verdict("wrong", found, cases=self.done, case=values)
        if found[0].kind != "values" or tuning:
            return verdict
        for case in sorted(rest, key=self._size)[:MOST_FURTHER]:
            other = self.of.complete(case.values)
            with contextlib.suppress(RungError):
                if (more := self._wrong(rung, case, other, tuning, 0)) and more[0].kind != "values":
                    return Verdict("wrong", more, cases=self.done, case=other)
        return verdict

    def _size(self, case: Case) -> int:
        return math.prod(int(case.values[d]) for d in self.of.dims)

    def _cases(self, rung: CudaRung) -> Iterator[Case]:
        """Those that the header admits, of few builds."""
        builds: set[Build] = set()
        for case in (*operations.cases(self.of, self.dtype), Case("of the aim", self.exercise.dims)):
            values = self.of.complete(case.values)
            if rung.refused_by_needs(values, self.dtype) is not None:
                continue
            build = rung.build(values, self.dtype)
            if build in builds or len(builds) < MOST_BUILDS:
                builds.add(build)
                yield case

    def _wrong(self, rung: CudaRung, case: Case, values: Values, tuning: dict[str, int], number: int) -> list[Symptom]:
        """What is wrong in this case. Every second case has none of the operands that may be null."""
        given = operations.inputs(self.of, values, self.dtype, number + 1, case.magnitude)
        for operand in self.of.operands if number % 2 else ():
            if operand.nullable:
                given.pop(operand.name, None)
        asked = gpuless.Settings(order=ORDERS[number % 3], seed=number, check_races=True, seconds=SECONDS)
        ran = self._run(rung, values, given, asked, tuning)
        self.done += 1
        used = {name: array.astype(np.float64) for name, array in given.items() if name in rung.binds}
        with np.errstate(all="ignore"):
            truth = operations.REFERENCES[self.of.name](used, values)
        for name, got in ran.outputs.items():
            about = (self.of, values, self.dtype, name, got, ran.unset[name], truth[name], used)
            if found := symptoms.of_values(*about):
                return self._explained(found, ran, values, tuning)
        if ran.unwritten:
            return [self._fault(ran.unwritten, values)]
        return []

    def _explained(self, found: Symptom, ran: Ran, values: Values, tuning: dict[str, int]) -> list[Symptom]:
        every = [self._placed(found, values | tuning)]
        if ran.unwritten:
            every.append(symptoms.of_fault(ran.unwritten, self.block, self.text))
        if tuning:
            name = next(iter(tuning))
            says = f"With the usual {name} it is right: a number that depends on {name} is written out somewhere."
            every.append(Symptom("tuning", "wrong", says, (), {"tuning": tuning}))
        return every

    def _fault(self, fault: EmulatorFault, values: Values) -> Symptom:
        return self._placed(symptoms.of_fault(fault, self.block, self.text), values)

    def _placed(self, found: Symptom, values: Values) -> Symptom:
        """With the sizes in front."""
        names = [n for n in values if n in self.of.dims or n.isupper()]
        where = f"At {', '.join(f'{n} = {values[n]}' for n in names)}: " if names else ""
        says = found.says if not where else where + found.says[:1].lower() + found.says[1:]
        return replace(found, says=says)

    def _run(
        self, rung: CudaRung, values: Values, given: Any, asked: gpuless.Settings, tuning: dict[str, int] | None = None
    ) -> Ran:
        self.block = next(iter(rung.launches(values, self.dtype, tuning)))[1].block
        given = {n: a for n, a in given.items() if n in rung.binds}
        return run(rung, values, self.dtype, given, asked, tuning)

    def counted(self) -> Verdict:
        """Of a right kernel: is it as fast as it should be?"""
        rung, values = CudaRung(self.of, self.path), self.of.complete(self.exercise.dims)
        given = operations.inputs(self.of, values, self.dtype, 1)
        machine.clear_caches()
        with gpuless.current().traced():
            ran = self._run(rung, values, given, gpuless.Settings(seconds=SECONDS, counters=True))
        memory = [Tensor(t.name, t.values.shape, t.values.itemsize, t.values.ctypes.data) for t in ran.tensors]
        shape = ",".join(f"{d}={values[d]}" for d in self.of.dims)
        counted = Counted(rung.full_name, self.dtype.name, shape, ran.launched, {}, memory=memory)
        sizes = {n: int(v) for n, v in values.items() if isinstance(v, int)}
        verdict = Verdict("solved", cases=self.done, case=values, counted=counted, work=work(ran.launched))
        if predictions := self.exercise.predict:
            verdict.symptoms = self._predicted(predictions, ran.launched)
        elif self.exercise.goal:
            ((_, ok, verdict.goal),) = judge_goals([self.exercise.goal], ran.launched)
            if not ok:
                verdict.symptoms = [self._missed(verdict.goal)]
                if cost := symptoms.of_cost(ran.launched, sizes, self.text, "slow"):
                    verdict.symptoms.append(cost)
        if verdict.symptoms:
            verdict.state = "slow" if verdict.symptoms[0].when == "slow" else "wrong"
            return verdict
        if self.exercise.timed:
            return self._timed(verdict)
        par = self.exercise.par
        verdict.stars = 1 + (verdict.work <= par) + (verdict.work < par) if par else 2
        if verdict.stars == 3:
            says = f"Better than the reference: {verdict.work:,} sectors and passes, where it has {par:,}."
            verdict.symptoms.append(Symptom("better", "solved", says, (), {"work": verdict.work, "par": par}))
        elif verdict.stars == 1 and (cost := symptoms.of_cost(ran.launched, sizes, self.text, "solved")):
            says = f"The reference has {par:,} sectors and passes, yours {verdict.work:,}."
            verdict.symptoms += [Symptom("work", "solved", says, (), {"work": verdict.work, "par": par}), cost]
        return verdict

    def _timed(self, verdict: Verdict) -> Verdict:
        """Of a kernel that meets its aim: is it predicted to be as fast as the reference?"""
        ours = self._predicted_us(self.path)
        with tempfile.TemporaryDirectory(prefix="rung-learn-") as folder:
            solved = Path(folder) / self.exercise.file
            solved.write_text(self.exercise.solved, encoding="utf-8")
            theirs = self._predicted_us(solved)
        gpu, most = gpus.usual().name, self.exercise.within
        verdict.goal = f"{ours:.3g} us, and the reference {theirs:.3g} us: predicted for {gpu}, not measured"
        facts = {"predicted_us": ours, "reference_us": theirs, "gpu": gpu, "at": self.exercise.timed}
        if ours > most * theirs:
            most_asked = f"at most {most:g} times is asked"
            says = f"The result is right, but slow at {self.exercise.timed}: {verdict.goal}; {most_asked}."
            verdict.state, verdict.symptoms = "slow", [Symptom("time", "slow", says, (), facts)]
            return verdict
        verdict.stars = 1 + (ours <= _SAME * theirs) + (ours * _SAME < theirs)
        kind = {1: "time", 2: "", 3: "better"}[verdict.stars]
        if kind:
            than = "Faster than the reference" if kind == "better" else "The reference is faster"
            says = f"{than} at {self.exercise.timed}: {verdict.goal}."
            verdict.symptoms.append(Symptom(kind, "solved", says, (), facts))
        return verdict

    def _predicted_us(self, path: Path) -> float:
        rung, values = CudaRung(self.of, path), self.of.complete(self.exercise.timed_dims)
        given = operations.inputs(self.of, values, self.dtype, 1)
        given = {name: array for name, array in given.items() if name in rung.binds}
        sets = timing.sets_of(sum(array.nbytes for array in given.values()))
        with gpuless.current().predicted(gpus.USUAL, sets) as launches:
            run(rung, values, self.dtype, given, gpuless.Settings(seconds=SECONDS))
        return sum(timing.microseconds(gpus.usual(), one) for one in launches)

    def _missed(self, counted: str) -> Symptom:
        aim = self.exercise.aim or self.exercise.goal
        kind = "overlap" if "groups_under_way" in self.exercise.goal else "goal"
        counts = re.sub(r"\b\w+(?= = )", lambda name: IN_WORDS.get(name[0], name[0]), counted)
        idle = "Nothing is under way when the wait ends: nothing overlaps"
        said = idle if kind == "overlap" else f"Counted: {counts}"
        says = f"The result is right, but the aim is missed ({aim}). {said}."
        return Symptom(kind, "slow", says, (), {"goal": self.exercise.goal})

    def _predicted(self, asked: Mapping[str, str], launched: list[Launched]) -> list[Symptom]:
        """The learner's predictions beside the counts."""
        written = dict(ANSWER.findall(self.text))
        found = {**figures(launched[0]), "resident": launched[0].resident}
        every = []
        for name, figure in asked.items():
            truth = found.get(figure, 0.0)
            try:
                said = float(evaluate(_python(written.get(name, "")), {}))
            except RungError:
                every.append(Symptom("unanswered", "wrong", f"{name} is no number.", (), {"name": name}))
                continue
            if abs(said - truth) > 0.02 * abs(truth):
                says = f"{name}: {said:g} is too {'few' if said < truth else 'many'}."
                facts = {"name": name, "predicted": said, "counted": truth}
                every.append(Symptom("prediction", "wrong", says, (), facts))
        return every


def work(launched: list[Launched]) -> int:
    """Sectors of global memory, and passes over the banks of shared memory."""
    return sum(c.sectors + c.wavefronts for kernel in launched for c in kernel.accesses.values())


def _python(number: str) -> str:
    """A number's expression in C++, for Python."""
    text = number.strip().rstrip("fF")
    return text if "." in text else text.replace("/", "//")
