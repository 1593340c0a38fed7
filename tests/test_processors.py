"""Processors and memory of a container, in both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuless.base import processors


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".", 1)).write_text(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(processors, "CGROUP", tmp_path)
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda pid: set(range(8)))
    return tmp_path


@pytest.mark.parametrize(
    ("quota", "count"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)]
)
def test_threads_follow_a_quota(root: Path, quota: str, count: int) -> None:
    group(root, cpu__max=quota)
    assert processors.processors() == count


def test_threads_follow_a_quota_of_version_1(root: Path) -> None:
    group(root / "cpu", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    lines = processors._lines

    def read(file: Path) -> list[str]:
        return ["3:cpu:/"] if file == Path("/proc/self/cgroup") else lines(file)

    processors._lines = read
    try:
        assert processors.processors() == 3
    finally:
        processors._lines = lines


def test_memory_is_what_can_be_had_within_a_containers_limit(root: Path) -> None:
    free = processors.available_memory()
    assert free > processors._free_pages() // 2
    group(root, memory__max="1000000", memory__current="700000", memory__stat="anon 1\ninactive_file 200000\n")
    assert processors.available_memory() == min(free, 500_000)
    group(root, memory__max="max")
    assert processors.available_memory() > 500_000
