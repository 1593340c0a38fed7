"""Is an exercise solved? The first cases with races and bounds, then the counts."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import gpuless
from gpuless import machine, timing
from gpuless.base import disk_cache
from gpuless.base.expressions import evaluate, evaluate_int
from gpuless.counts.counters import Launched
from gpuless.counts.counters_explained import figures, judge_goals, summed
from gpuless.facts import gpus
from gpuless.launch import Build
from gpuless.session import ORDERS
from rung.check.compare import Measured
from rung.dtypes import SUMS, Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import EmulatorFault, RungError
from rung.explain.diagnosis import index_names
from rung.explain.likeness import alternatives
from rung.learn import BLANK, MARGIN, SAME, Exercise, Progress, by_name, digest, operations, sizes_of, symptoms
from rung.learn.running import Ran, Rung, run
from rung.learn.symptoms import Symptom
from rung.operation import Case, Operation, Values
from rung.profile.counted import Counted, Tensor
from rung.rungs.cuda import CudaRung
from rung.rungs.python import PythonRung

State = Literal["blank", "wrong", "slow", "solved"]
MOST_BUILDS = 3  # that the first cases may need: of sizes that are compiled in
MOST_FURTHER = 3  # cases that are looked at for one that tells more
SHIFTED = "of the aim, shifted"  # by one element, as a part of a larger tensor may be
NOTHING = Progress(Path(), {}, {}, {})  # that a learner has done
STEPS = 6_000_000  # instructions of warps, until a launch is stopped
REPEATED = 0.25  # share of the stores that may be made twice, as where two vectors overlap at a row's end
IN_WORDS = {  # figures as sentences name them
    "sectors_per_request": "sectors per load",
    "sectors_per_store": "sectors per store",
    "conflicts_load": "bank conflicts of loads",
    "conflicts_store": "bank conflicts of stores",
    "bytes_per_sector": "bytes used per sector loaded",
    "global_loads": "loads from global memory",
    "shared_loads": "loads from shared memory",
    "shared_size": "bytes of shared memory per block",
    "global_atomics": "atomic operations on global memory",
    "bulk_read_bytes": "bytes moved by the copy engine",
    "groups_under_way": "copy groups in flight",
    "threads_not_predicated": "active lanes per instruction",
}
ANSWER = re.compile(r"constexpr\s+\w+\s+(ANSWER\w*)\s*=\s*([^;]+);")
MARK = re.compile(r"[ \t]*(?://|#)[ \t]*here[ \t]*$", re.MULTILINE)


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
    times: Mapping[str, Any] = field(default_factory=dict)  # predicted: mine, the reference's, the best so far

    @property
    def says(self) -> str:
        return " ".join(s.says for s in self.symptoms)

    @property
    def sizes(self) -> dict[str, int]:
        return {n: v for n, v in self.case.items() if isinstance(v, int)}

    def as_json(self) -> dict[str, Any]:
        shown = [
            {"kind": s.kind, "when": s.when, "says": s.says, "lines": list(s.lines), "facts": finite(s.facts)}
            for s in self.symptoms
        ]
        blanks: list[str] = next((s.facts["blanks"] for s in self.symptoms if s.kind == "blank"), [])
        rest: dict[str, Any] = {name: getattr(self, name) for name in ("goal", "work", "stars", "cases")}
        rest["case"] = {name: value for name, value in self.case.items() if isinstance(value, int | float)}
        rest |= {"blanks": blanks, "times": finite(self.times)}
        return {"state": self.state, "says": self.says, "symptoms": shown, **rest}


def finite(value: Any) -> Any:
    """NaN and infinities are text: standard JSON has no such numbers."""
    if isinstance(value, Mapping):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def verdict_on(exercise: Exercise, path: Path, progress: Progress) -> dict[str, Any]:
    """The verdict as JSON has it, kept; that of an unchanged file is found there."""
    text = path.read_text(encoding="utf-8")
    kept = progress.graded.get(exercise.name, {})
    known = kept.get("digest") == digest(exercise, text)
    facts: dict[str, Any] = kept["verdict"] if known else grade(exercise, path, progress).as_json()
    keep(exercise, text, facts, progress, again=known)
    return facts


def keep(exercise: Exercise, text: str, facts: dict[str, Any], progress: Progress, *, again: bool = False) -> None:
    """Writes a verdict into the learner's record."""
    name, kinds = exercise.name, {s["kind"] for s in facts["symptoms"]}
    progress.graded[name] = {"digest": digest(exercise, text), "verdict": facts}
    if facts["state"] == "solved":
        progress.solved[name] = max(facts["stars"], progress.solved.get(name, 0))
        if mine := facts["times"].get("mine"):
            progress.best[name] = min(mine, progress.best.get(name, math.inf))
    elif "found" in kinds and not progress.tries.get(name):
        progress.found[name] = True
    if facts["state"] in ("wrong", "slow") and not again and not kinds & {"one of two"}:
        progress.tries[name] = progress.tries.get(name, 0) + 1
    progress.write()


def grade(exercise: Exercise, path: Path, progress: Progress | None = None, *, drawn: bool = False) -> Verdict:
    """The verdict on a file. What is seen first is said first: one mistake at a time. `drawn`: a wrong one is run for
    its drawings, too."""
    text = path.read_text(encoding="utf-8")
    if blanks := sorted(set(BLANK.findall(text))):
        says = f"{' and '.join(blanks)}: not filled in yet."
        return Verdict("blank", [Symptom("blank", "wrong", says, (), {"blanks": blanks})])
    if exercise.kind == "predict" and _without_answers(text) != _without_answers(exercise.source):
        says = "Change only the answer: the question is about this kernel. To restore it, press Reset on the page, or "
        says += f"delete {exercise.file} and run `rung learn {exercise.number}`."
        return Verdict("wrong", [Symptom("changed", "wrong", says)])
    trial = _Trial(exercise, path, text, progress or NOTHING)
    if exercise.kind == "bug" and MARK.sub("", text).split() == exercise.source.split():
        return trial.hunt()
    verdict = trial.verdict()
    if drawn and verdict.counted is None:
        with contextlib.suppress(RungError):
            seen = trial.counted()
            verdict.counted, verdict.case = seen.counted, seen.case
    return verdict


def _without_answers(text: str) -> list[str]:
    return ANSWER.sub(lambda one: one[1], text).split()


class _Trial:
    def __init__(self, exercise: Exercise, path: Path, text: str, before: Progress) -> None:
        self.exercise, self.path, self.text, self.before = exercise, path, text, before
        self.dtype: Dtype = dtype_named(exercise.dtype)
        self.of: Operation = operations.operation(exercise.operation)
        self.block: tuple[int, ...] = ()  # of threads; Triton's programs have none that a reader knows of
        self.done = 0
        self.idle: Symptom | None = None
        self.trying: tuple[Case, Values, dict[str, int], int] | None = None

    def hunt(self) -> Verdict:
        """Of a kernel whose bug is still there: are the lines marked? Only then is it said what is wrong."""
        marked = {n for n, line in enumerate(self.text.splitlines(), 1) if MARK.search(line)}
        if not marked:
            says = (
                f"Find the bug before you run: put `{self.exercise.comment} here` at the end of the one or two lines "
                "that are to blame "
                "(on the page, click their numbers). Or fix the kernel right away."
            )
            return Verdict("blank", [Symptom("unmarked", "wrong", says)])
        verdict = self.verdict()
        seen = {line for s in verdict.symptoms for line in s.lines}
        race = any(s.kind == "race" for s in verdict.symptoms)
        if marked <= seen | self.exercise.bug_lines and (
            not race or seen <= marked or marked & self.exercise.bug_lines
        ):
            says = f"Right: {_lines(marked)} {'are' if len(marked) > 1 else 'is'} to blame. Now fix the kernel."
            found = Symptom("found", "wrong", says, tuple(sorted(marked)))
            return replace(verdict, symptoms=[found, *verdict.symptoms], cases=0)
        wrong = marked - seen - self.exercise.bug_lines
        says = f"No: {_lines(wrong)} {'are' if len(wrong) > 1 else 'is'} not to blame." if wrong else (
            f"Right so far: {_lines(marked)} is one of two lines. Which is the other?"
        )  # fmt: skip
        kind = "not here" if wrong else "one of two"
        return Verdict("wrong", [Symptom(kind, "wrong", says, tuple(sorted(wrong or marked)))])

    def verdict(self) -> Verdict:
        values: Values = {}
        try:
            if self.exercise.kind == "predict":  # its kernel is known to be right
                return self.counted()
            rung = self._rung()
            tunings: list[dict[str, int]] = [{}]
            tunings += [{name: choice} for name, choices in rung.tune.items() for choice in choices[1:2]]
            if not (tried := list(self._cases(rung))):
                raise RungError(f"{self.path}: `needs` refuses every size; an exercise is for all of them.")
            for tuning in tunings:
                for number, case in enumerate(tried if not tuning else tried[-2:]):
                    values = self.of.complete(case.values)
                    if found := self._wrong(rung, case, values, tuning, number):
                        return self._most_telling(rung, values, found, tuning, tried[number + 1 :])
            return self.counted()
        except EmulatorFault as fault:
            found = [self._fault(fault, values)]
            if fault.kind == "unfinished":  # too much work may be the same work many times
                with contextlib.suppress(RungError):
                    repeated = (s for s in self.counted().symptoms if s.kind == "repeated")
                    found = [replace(s, when="wrong") for s in repeated] or found
            return Verdict("wrong", found, cases=self.done, case=values)
        except RungError as error:
            return Verdict("wrong", [symptoms.of_error(error, values)], cases=self.done, case=values)

    def _most_telling(
        self, rung: Rung, values: Values, found: list[Symptom], tuning: dict[str, int], rest: list[Case]
    ) -> Verdict:
        """If the numbers have nothing in common, further cases may say more: extreme ones, and the smallest."""
        verdict = Verdict("wrong", found, cases=self.done, case=values)
        if tuning or found[0].kind not in ("values", "inexact"):
            return verdict
        extreme = operations.FURTHER.get(self.of.name, ())
        smallest = sorted(rest, key=lambda c: math.prod(int(c.values[d]) for d in self.of.dims))
        for case in sorted(smallest, key=lambda c: c not in extreme)[:MOST_FURTHER]:
            other = self.of.complete(case.values)
            with contextlib.suppress(RungError):
                more = self._wrong(rung, case, other, tuning, 0)
                if more and more[0].kind not in ("values", "inexact"):
                    return Verdict("wrong", more, cases=self.done, case=other)
        return verdict

    def _wrong_in(self, text: str, *how: Any) -> list[Symptom]:
        """The same of another text."""
        with tempfile.TemporaryDirectory(prefix="rung-learn-") as folder:
            path = Path(folder) / self.path.name
            path.write_text(text, encoding="utf-8")
            other = _Trial(self.exercise, path, text, self.before)
            return other._wrong(other._rung(), *how)

    def _rung(self, path: Path | None = None) -> Rung:
        return (PythonRung if self.exercise.suffix == ".py" else CudaRung)(self.of, path or self.path)

    def _cases(self, rung: Rung) -> Iterator[Case]:
        """Those that the header admits, of few builds; a case that differs from all others comes before that limit."""
        if isinstance(rung, PythonRung):
            for shape in (*self.exercise.sizes, self.exercise.shape):
                values = sizes_of(shape)
                yield Case(shape, values, magnitude=values.pop("magnitude", 1))
            for case in operations.FURTHER.get(self.of.name, ()):  # extreme numbers, at a size that is compiled already
                if case.change:
                    yield replace(case, values={**case.values, **self.exercise.dims})
            return
        builds: set[Build] = set()
        aims = [Case(name, self.exercise.dims) for name in ("of the aim", SHIFTED)]
        for case in (*operations.cases(self.of, self.dtype), *aims):
            values = self.of.complete(case.values)
            if rung.refused_by_needs(values, self.dtype) is not None:
                continue
            build = rung.build(values, self.dtype)
            if build in builds or len(builds) < MOST_BUILDS:
                builds.add(build)
                yield case

    def _wrong(self, rung: Rung, case: Case, values: Values, tuning: dict[str, int], number: int) -> list[Symptom]:
        """What is wrong in this case. Every second case has none of the operands that may be null, and operands that
        begin between multiples of 16 bytes, if the header does not exclude it."""
        self.trying = case, values, tuning, number
        given = operations.inputs(self.of, values, self.dtype, number + 1, case)
        for operand in self.of.operands if number % 2 else ():
            if operand.nullable:
                given.pop(operand.name, None)
        asked = gpuless.Settings(order=ORDERS[number % 3], seed=number, check_races=True, steps=STEPS)
        odd = number % 2 == 1 or case.name == SHIFTED
        may = odd and isinstance(rung, CudaRung) and rung.header.align is None
        shifted = 1 + number // 2 % 2 if may else 0  # a multiple of 8 bytes is none of 16
        ran = self._run(rung, values, given, asked, tuning, shifted=shifted)
        used = {name: array for name, array in given.items() if name in rung.binds}
        with np.errstate(all="ignore"):
            truth = operations.reference(self.of, used, values)
        for name in ran.outputs:
            if found := self._compared(name, ran, truth[name], used, values):
                absent = tuple(o.name for o in self.of.operands if o.nullable and not o.written and o.name not in given)
                without = tuple(n for n in absent if n in rung.binds)
                explained = self._explained(found, ran, values, tuning, without)
                if found.kind == "nan":
                    ran = self._run(rung, values, given, asked, tuning, shifted=shifted, from_zero=True)
                    if not self._compared(name, ran, truth[name], used, values):
                        says = f"If {name} is set to 0 first, the result is right: the kernel adds to what {name} "
                        says += "holds, and a new array holds arbitrary numbers. Store the result with `=`."
                        explained.append(Symptom("added", "wrong", says, (), {"output": name}))
                return explained
        if ran.unwritten:
            return [self._fault(ran.unwritten, values)]
        self.done += 1
        self.idle = self.idle or self._needless_blocks(rung, ran, values, tuning)
        return []

    def _needless_blocks(self, rung: Rung, ran: Ran, values: Values, tuning: dict[str, int]) -> Symptom | None:
        if not self.exercise.blocks:
            return None
        try:
            enough = evaluate_int(self.exercise.blocks, rung.names(values, self.dtype, tuning), "blocks")
        except RungError:  # the header has other names
            return None
        if ran.blocks <= enough:
            return None
        says = f"the result is right, but {ran.blocks:,} blocks are launched, and {enough:,} are enough."
        facts = {"blocks": ran.blocks, "idle": ran.blocks - enough}
        return self._placed(Symptom("idle", "slow", says, (), facts), values | tuning)

    def _compared(self, name: str, ran: Ran, truth: Any, used: Any, values: Values) -> Symptom | None:
        """What is wrong with an output."""
        operand, got, unset = self.of.operand(name), ran.outputs[name], ran.unset[name]
        sums = operand.sums and self.dtype.size == 2
        precision = SUMS if sums else self.dtype
        exact = self.of.exact or operand.dtype.startswith("i")
        bound = self.of.tolerance(values, precision)
        measured = Measured(name, got, np.asarray(truth, np.float64), precision, bound, exact, operand.apart)
        if (deviation := measured.deviation()).ok:
            return None
        inputs = operations.in_float64(self.of, used, values)
        found = measured.diagnosis(
            axes=index_names(operand.shape, got.ndim), unset=unset, inputs=inputs,
            alternatives=alternatives(self.of, values, inputs, name, self.dtype.size),
        )  # fmt: skip
        return symptoms.of_diagnosis(found) if found else symptoms.of_deviation(deviation)

    def _explained(
        self, found: Symptom, ran: Ran, values: Values, tuning: dict[str, int], without: tuple[str, ...]
    ) -> list[Symptom]:
        every = [self._placed(found, values | tuning, without)]
        if ran.unwritten:
            every.append(symptoms.of_fault(ran.unwritten, self.block, self.text))
        if tuning:
            name = next(iter(tuning))
            says = f"With the first value of {name} it is right: a number that depends on {name} is hard-coded."
            every.append(Symptom("tuning", "wrong", says, (), {"tuning": tuning}))
        return every

    def _fault(self, fault: EmulatorFault, values: Values) -> Symptom:
        two = len({tuple(p.get("block", ())) for p in (fault.place, *fault.related)}) > 1
        raced = fault.kind == "race" and fault.related and not two and self.exercise.suffix == ".cu"
        repair = self._repair(fault, *self.trying) if raced and self.trying else symptoms.NO_REPAIR
        return self._placed(symptoms.of_fault(fault, self.block, self.text, repair, self.of.reduction), values)

    def _repair(self, fault: EmulatorFault, case: Case, *how: Any) -> symptoms.Repair:
        """Which barriers end a race: found by experiment, as the case is run again with each."""
        first, second = lines = symptoms.lines_of(fault)
        if not first or (first == second and fault.record["memory"] == "global"):
            return symptoms.NO_REPAIR
        ended, partly = list[symptoms.Repair](), list[symptoms.Repair]()
        within, several = symptoms.within_warp(fault, self.block), math.prod(self.block) > symptoms.WARP
        barriers = ["__syncwarp()"] * within + ["__syncthreads()"] * (several or not within)
        aim: Any = Case("of the aim", self.exercise.dims), self.of.complete(self.exercise.dims), {}, 0
        for barrier, place in itertools.product(barriers, symptoms.REPAIRS):
            repair = symptoms.Repair(place, barrier)
            text = symptoms.with_barriers(self.text, repair, first, second)
            try:
                wrong = self._wrong_in(text, case, *how)
                if several and repair.barrier == barriers[0] != barriers[-1]:  # other warps may wait, too
                    wrong = wrong or self._wrong_in(text, *aim)
                if not wrong:
                    return repair
                ended.append(replace(repair, right=False))
            except EmulatorFault as still:
                gone = still.kind == "barrier" or (still.kind == "race" and lines != symptoms.lines_of(still))
                if gone and barrier == barriers[-1]:
                    partly.append(repair)  # this race is gone, another one is not, or threads miss the barrier
            except RungError:
                continue
        return next(iter(ended + partly), symptoms.NO_REPAIR)

    def _placed(self, found: Symptom, values: Values, without: tuple[str, ...] = ()) -> Symptom:
        """With the sizes and scalars in front."""
        if not values:
            return found
        names = [n for n in values if n in (*self.of.dims, *self.of.scalars) or n.isupper()]
        where = f"At {', '.join(f'{n} = {symptoms.figure(values[n])}' for n in names)}"
        if self.trying and (self.trying[0].change or self.trying[0].magnitude != 1):
            where += f" ({self.trying[0].name})"
        where += f", without {' and '.join(without)}: " if without else ": "
        says = where + found.says[:1].lower() + found.says[1:]
        return replace(found, says=says)

    def _run(
        self,
        rung: Rung,
        values: Values,
        given: Any,
        asked: gpuless.Settings,
        tuning: dict[str, int] | None = None,
        **how: Any,
    ) -> Ran:
        if isinstance(rung, CudaRung):
            self.block = next(iter(rung.launches(values, self.dtype, tuning)))[1].block
        given = {n: a for n, a in given.items() if n in rung.binds}
        return run(rung, values, self.dtype, given, asked, tuning, **how)

    def counted(self) -> Verdict:
        """Of a right kernel: does it do what the exercise is about, each part once, and as fast as it should?"""
        rung, values = self._rung(), self.of.complete(self.exercise.dims)
        given = operations.inputs(self.of, values, self.dtype, 1)
        machine.clear_caches()
        with gpuless.current().traced():
            ran = self._run(rung, values, given, gpuless.Settings(steps=STEPS, counters=True))
        memory = [Tensor(t.name, t.values.shape, t.values.itemsize, t.values.ctypes.data) for t in ran.tensors]
        shape = ",".join(f"{d}={values[d]}" for d in self.of.dims)
        counted = Counted(rung.full_name, self.dtype.name, shape, ran.launched, {}, memory=memory)
        verdict = Verdict("solved", cases=self.done, case=values, counted=counted, work=work(ran.launched))
        verdict.symptoms = self._shortcomings(verdict, ran.launched, memory)
        if verdict.symptoms:
            verdict.state = "slow" if verdict.symptoms[0].when == "slow" else "wrong"
            return verdict
        self._rate(verdict, ran.launched)
        verdict.symptoms += symptoms.of_idle(ran.launched, self.text)
        return verdict

    def _shortcomings(self, verdict: Verdict, launched: list[Launched], memory: list[Tensor]) -> list[Symptom]:
        """Of a right kernel: what keeps it from being the solution."""
        if predictions := self.exercise.predict:
            return self._predicted(predictions, launched)
        if self.idle:
            return [self.idle]
        if repeated := symptoms.of_repeated_stores(launched, memory, self.text, REPEATED):
            return [repeated]
        executed = sum((summed(kernel.executed) for kernel in launched), start=type(summed({}))())
        for opcode, says in self.exercise.uses.items():
            if not any(executed[one] for one in opcode.split("|")):
                return [Symptom("unused", "slow", says, (), {"opcode": opcode})]
        if self.exercise.goal:
            ((_, ok, verdict.goal),) = judge_goals([self.exercise.goal], launched)
            if not ok:
                cost = symptoms.of_cost(launched, verdict.sizes, self.text, "slow")
                return [self._missed(verdict.goal), *([cost] if cost else [])]
        return []

    def _rate(self, verdict: Verdict, launched: list[Launched]) -> None:
        """The stars of a solved exercise, and what is said of its cost."""
        if self.exercise.kind == "predict":
            verdict.stars = max(1, 3 - self.before.tries.get(self.exercise.name, 0))
            return
        self._time(verdict)
        name, par, best, mine = self.exercise.name, self.exercise.par, self.exercise.best, verdict.work
        if self.exercise.timed:
            self._rate_time(verdict)
            return
        second = not par or mine <= par
        third = {"bug": self.before.found.get(name)}.get(
            self.exercise.kind, mine <= best if best else not self.before.hints.get(name)
        ) or mine <= MARGIN * par
        verdict.stars = 1 + second + (second and third)
        facts = {"work": mine, "par": par, "best": best}
        if par and mine <= MARGIN * par:
            says = f"Less memory traffic than the reference: {mine:,} sectors and passes instead of {par:,}."
            verdict.symptoms.append(Symptom("better", "solved", says, (), facts))
        elif not second and (cost := symptoms.of_cost(launched, verdict.sizes, self.text, "solved")):
            says = f"Your kernel takes {mine:,} sectors and passes, the reference {par:,}."
            verdict.symptoms += [Symptom("work", "solved", says, (), facts), cost]

    def _time(self, verdict: Verdict) -> None:
        """Predicted microseconds of this kernel, the reference and the best so far."""
        shape = self.exercise.timed or self.exercise.shape
        mine, theirs = self._predicted_us(self.path, shape), _reference_us(self.exercise.name, self.exercise.folder)
        best = min(mine, self.before.best.get(self.exercise.name, math.inf))
        verdict.times = {"mine": mine, "reference": theirs, "best": best, "gpu": gpus.usual().name, "at": shape}

    def _rate_time(self, verdict: Verdict) -> None:
        """Of a kernel that meets its target: is it predicted to be as fast as the reference?"""
        ours, theirs, most = verdict.times["mine"], verdict.times["reference"], self.exercise.within
        verdict.goal = said = f"predicted {ours:.3g} us on an {verdict.times['gpu']} (reference: {theirs:.3g} us)"
        facts = {"predicted_us": ours, "reference_us": theirs, "gpu": verdict.times["gpu"], "at": self.exercise.timed}
        if ours > most * theirs:
            target = f"the target is at most {most:g} times the reference's"
            says = f"Correct, but slow at {self.exercise.timed}: {said}; {target}."
            verdict.state, verdict.symptoms = "slow", [Symptom("time", "slow", says, (), facts)]
            return
        verdict.stars = 1 + (ours <= SAME * theirs) + (ours <= MARGIN * theirs)
        if verdict.stars != 2:
            than, kind = (
                ("Faster than the reference", "better") if verdict.stars == 3 else ("The reference is faster", "time")
            )
            verdict.symptoms.append(Symptom(kind, "solved", f"{than} at {self.exercise.timed}: {said}.", (), facts))

    def _predicted_us(self, path: Path, shape: str) -> float:
        values = self.of.complete(sizes_of(shape))
        rung = self._rung(path)
        given = operations.inputs(self.of, values, self.dtype, 1)
        given = {name: array for name, array in given.items() if name in rung.binds}
        sets = timing.sets_of(sum(array.nbytes for array in given.values()))
        with gpuless.current().predicted(gpus.USUAL, sets) as launches:
            run(rung, values, self.dtype, given, gpuless.Settings(steps=STEPS))
        return sum(timing.microseconds(gpus.usual(), one) for one in launches)

    def _missed(self, counted: str) -> Symptom:
        aim = self.exercise.aim or self.exercise.goal
        kind = "overlap" if "groups_under_way" in self.exercise.goal else "goal"
        counts = re.sub(r"\b(\w+) = ([\d,.e+]*\d)", lambda m: f"{m[2]} {IN_WORDS.get(m[1], m[1])}", counted)
        counts = re.sub(r"\b\w+: ", "", counts)
        idle = "no copy is in flight when the wait ends: nothing overlaps"
        said = idle if kind == "overlap" else f"counted: {counts}"
        says = f"The result is right. Target missed: {aim}; {said}."
        return Symptom(kind, "slow", says, (), {"goal": self.exercise.goal})

    def _predicted(self, asked: Mapping[str, str], launched: list[Launched]) -> list[Symptom]:
        """The learner's predictions beside the counts."""
        written = dict(ANSWER.findall(self.text))
        found = {**figures(launched[0]), "resident": launched[0].resident}
        every = []
        for name, figure in asked.items():
            truth = found.get(figure, 0.0)
            try:
                said = float(evaluate(constant(written.get(name, "")), {}))
            except RungError:
                every.append(Symptom("unanswered", "wrong", f"{name} is not a number.", (), {"name": name}))
                continue
            if abs(said - truth) > 0.02 * abs(truth):
                every.append(symptoms.of_prediction(name, said, truth, figure, len(asked) > 1))
                if self.before.tries.get(self.exercise.name, 0):
                    every.append(symptoms.of_counts(launched[0], figure, self.text))
        return every


def _lines(numbers: set[int]) -> str:
    return ("line " if len(numbers) == 1 else "lines ") + " and ".join(map(str, sorted(numbers)))


@functools.cache
def _reference_us(name: str, source: Path) -> float:
    """The predicted time of the solution; of an exercise once in a process."""
    exercise = by_name(name, source)
    solved = exercise.solved
    path = disk_cache.folder("learn") / f"{digest(exercise, solved)}{exercise.suffix}"  # code is cached by its path
    if not path.is_file():
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(solved, encoding="utf-8")
        beside.replace(path)
    return _Trial(exercise, path, solved, NOTHING)._predicted_us(path, exercise.timed or exercise.shape)


def work(launched: list[Launched]) -> int:
    """Sectors of global memory, and passes over the banks of shared memory."""
    return sum(c.sectors + c.wavefronts for kernel in launched for c in kernel.accesses.values())


_SIZES = {"char": 1, "bool": 1, "short": 2, "half": 2, "int": 4, "unsigned": 4, "float": 4, "double": 8, "long": 8}


def constant(number: str) -> str:
    """A number's expression in C++, for Python."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|(?<=\d)'(?=\d)", "", number)
    text = re.sub(
        r"\bsizeof\s*\(?\s*(?:unsigned\s+(?=\w+\s*\)))?_*(\w+?)(\d?)\s*\)",
        lambda m: str(_SIZES.get(m[1], 0) * int(m[2] or 1) or m[0]), text,
    )  # fmt: skip
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|[\d.]+(?:[eE][-+]?\d+)?)[uUlLfF]+\b", r"\1", text).strip()
    return text if re.search(r"\d[.eE]|\.\d", re.sub(r"0[xX]\w+", "", text)) else text.replace("/", "//")
