"""Times prepared calls on a GPU.

Cold: the inputs rotate over more memory than the caches hold. Calls are timed as CUDA graphs of enough calls that the
graph's own launch, Python and gaps between launches are negligible. Warm: one set of inputs, replayed. Competitors
take turns, sample by sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from rung.cuda.driver import occupy_stream
from rung.errors import first_line
from rung.results import statistics

SHORT = 20e-6  # a shorter call is timed as one of at least CALLS in a graph
CALLS = 20
FULL = 400e-6  # minimum duration of a sample, since it includes the graph's own launch
LONG = 20e-3  # a longer call is timed alone
LOADING = 2.0  # a first call may take as long where its library is loaded meanwhile
HEAD_START, MOST_HEAD_START = 200e-6, 5e-3  # seconds by which the GPU is delayed while work is launched
CLOCK = 3e9  # no GPU has more cycles per second
MIN_SAMPLES = 10
MAX_SETS = 256
MAX_CALLS = 400


def sets_needed(bytes_of_a_set: int) -> int:
    """How many sets of operands are needed to flush every cache: max(256 MB, 4 x L2)."""
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    footprint = max(256 << 20, 4 * l2)
    return max(2, min(MAX_SETS, math.ceil(footprint / max(1, bytes_of_a_set)) + 1))


def rounds(sets: int, estimate: float) -> list[list[int]]:
    """The sets of operands of each graph, in turn, for calls of about `estimate` seconds."""
    calls = math.ceil(FULL / max(estimate, 1e-7))
    calls = min(max(calls, CALLS if estimate < SHORT else 1), MAX_CALLS)
    count = math.ceil(sets / calls)
    return [[(i * calls + j) % sets for j in range(calls)] for i in range(count)]


@dataclass
class Contestant:
    """One competitor: a call for each set of operands, and its measurements."""

    name: str
    calls: list[Callable[[], None]]
    copy_back: Callable[[], None] = lambda: None  # copies the first call's result to where it is compared
    notes: list[str] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)  # seconds per call
    warm: list[float] = field(default_factory=list)
    _units: list[tuple[Callable[[], None], int]] = field(default_factory=list)  # (replay, calls in it)
    _first: list[Callable[[], None]] = field(default_factory=list)  # replays that contain the first call
    replayed: int = 1  # how often `replay` contains the first call
    _warm: tuple[Callable[[], None], int] | None = None
    _next: int = 0
    _head_start: float = HEAD_START

    def get_ready(self) -> None:
        """Warm up, estimate, and record the graphs."""
        estimate = _estimate(self.calls[0])
        try:
            # The warm graph first: a result that a call retains (a library's) then belongs to the cold graph.
            repeat = CALLS if estimate < 1e-3 else 1
            warm = _graph([self.calls[0]] * repeat)
            self._warm = (warm, repeat)
            if repeat > 1:  # several short launches from Python take long; in a graph they do not
                warm()
                estimate = seconds(warm) / repeat
            self.replayed = 0
            for turn in rounds(len(self.calls), estimate):
                replay = _graph([self.calls[i] for i in turn])
                self._units.append((replay, len(turn)))
                if 0 in turn:
                    self._first.append(replay)
                self.replayed += turn.count(0)
        except RuntimeError as error:
            torch.cuda.synchronize()
            reason = first_line(error, 90)
            self.notes.append(f"not capturable ({reason}), so launches are counted")
            self._units, self._first = [(call, 1) for call in self.calls], self.calls[:1]
            self.replayed = 1
            self._warm = (self.calls[0], 1)
        for replay, _ in self._units[:2]:
            replay()
        torch.cuda.synchronize()

    def sample(self) -> None:
        """One cold sample, on the next set of operands."""
        replay, count = self._units[self._next % len(self._units)]
        self._next += 1
        self.cold.append(self._seconds(replay) / count)

    def sample_warm(self) -> None:
        """One warm sample: the same operands again and again."""
        assert self._warm is not None
        replay, count = self._warm
        self.warm.append(self._seconds(replay) / count)

    def _seconds(self, replay: Callable[[], None]) -> float:
        took, self._head_start = replayed(replay, self._head_start)
        return took

    def replay(self) -> None:
        """Run the timed graphs of the first operands once more, so that their outputs can be compared. A library's
        result is where the call's last capture put it, so all graphs with that call are run.
        """
        for replay in self._first:
            replay()
        self.copy_back()


def race(contestants: list[Contestant], *, cap: float = 0.6, warm: bool = True) -> None:
    """Take cold samples in turns until the standard error of each mean is half a percent, or its time is up."""
    spent = dict.fromkeys(range(len(contestants)), 0.0)
    running = set(spent)
    while running:
        for index in sorted(running):
            one = contestants[index]
            start = time.perf_counter()
            one.sample()
            spent[index] += time.perf_counter() - start
            enough = len(one.cold) >= MIN_SAMPLES and (statistics.settled(one.cold) or spent[index] > cap)
            if enough or (spent[index] > 5 * cap and len(one.cold) >= 3):
                running.discard(index)
    for one in contestants:
        if len(one.cold) < MIN_SAMPLES:
            one.notes.append(f"{len(one.cold)} samples only: a call takes {one.cold[-1]:.2g} s")
    if not warm:
        return
    for _ in range(MIN_SAMPLES):
        for one in contestants:
            if statistics.summarise(one.cold).median < 0.05:
                one.sample_warm()


def _estimate(call: Callable[[], None]) -> float:
    """Seconds per call, after at least 3 calls and 25 ms of warming up; a long call is timed once or twice."""
    first = seconds(call)
    if LONG < first < LOADING:
        first = seconds(call)
    if first > LONG:
        return first
    start = time.perf_counter()
    for index in range(1000):
        call()
        if index >= 2:
            torch.cuda.synchronize()
            if time.perf_counter() - start > 0.025:
                break
    # A single call is dominated by its launch; many in a row show the GPU's own time.
    took = seconds(lambda: _repeat(call, 5)) / 5
    return took if took > 2e-4 else seconds(lambda: _repeat(call, CALLS)) / CALLS


def _repeat(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


def seconds(work: Callable[[], object]) -> float:
    """The GPU's time for `work`, run once between two events."""
    return _timed(work, HEAD_START)[0]


def replayed(replay: Callable[[], object], head_start: float) -> tuple[float, float]:
    """The same for repeatable work, and the delay that it needed, which is longer on a slow host."""
    while True:
        took, launching = _timed(replay, head_start)
        # Work that takes longer to launch than the longest delay waits for the GPU anyway.
        if launching < max(head_start, took / 200) or launching > MOST_HEAD_START:
            return took, head_start
        head_start = min(2 * launching, MOST_HEAD_START)


def _timed(work: Callable[[], object], head_start: float) -> tuple[float, float]:
    """Seconds on the GPU, and on the host until all was launched.

    The stream is kept busy meanwhile: otherwise the first event passes before the work begins, and a slow host's time
    would be included.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    occupy_stream(int(head_start * CLOCK))
    begin = time.perf_counter()
    start.record()
    work()
    end.record()
    launching = time.perf_counter() - begin
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3, launching


def _graph(calls: list[Callable[[], None]]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for call in calls:
            call()
    replay: Callable[[], None] = graph.replay
    return replay
