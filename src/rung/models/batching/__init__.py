"""Continuous batching: texts join and leave one engine while others are being written."""
