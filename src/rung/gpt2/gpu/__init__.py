"""GPT-2 on a GPU: weights stacked for the decode ladder, prompts, steps ahead of the host, tokens as they come."""
