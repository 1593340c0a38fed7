"""GPT-2 on a GPU: weights stacked for the decode ladder, prefill, steps launched ahead of the host, tokens."""
