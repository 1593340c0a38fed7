"""Lets numpy do it."""

import numpy as np

DTYPES = ["f32"]


def run(a, b, out):
    np.add(a.numpy(), b.numpy(), out=out.numpy())
