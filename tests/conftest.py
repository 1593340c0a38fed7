"""Which tests are collected: those of the server need its extra, which a machine that only has a GPU may lack."""

import importlib.util

needed = ("uvicorn", "starlette", "openai")
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in needed) else ["test_serve*.py"]
