"""Puts another tensor's memory behind the output."""

DTYPES = ["f32"]


def run(a, b, out):
    out.set_((a + b).contiguous())
