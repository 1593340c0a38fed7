"""A GPU that is not there, for tests of what its compute capability decides."""

from types import SimpleNamespace

import pytest
import torch


def pretend(monkeypatch: pytest.MonkeyPatch, major: int, minor: int) -> None:
    """The GPU at hand is of this compute capability, as far as anybody asks."""
    facts = SimpleNamespace(major=major, minor=minor, multi_processor_count=82)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
