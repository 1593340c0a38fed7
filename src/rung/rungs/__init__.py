"""What a rung is: header, expressions and arguments; CUDA, Python and library rungs behind one call."""
