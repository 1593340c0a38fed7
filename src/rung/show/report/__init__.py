"""The report: every ladder with its measurements, in one self-contained HTML file."""

from rung.show.report.page import build

__all__ = ["build"]
