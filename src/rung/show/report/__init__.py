"""The report: every ladder with its measurements, in one HTML file that needs nothing else."""

from rung.show.report.page import build

__all__ = ["build"]
