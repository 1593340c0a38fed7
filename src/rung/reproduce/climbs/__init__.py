"""The whole model, step by step."""
