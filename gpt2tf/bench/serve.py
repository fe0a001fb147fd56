"""The other side of `peers`: an engine in a process of its own, which does what the lines of stdin ask for.

Run by its path, with any Python: nothing of this project is imported, so that no module of it or of TensorFlow comes
between those of the engine. Arguments: a script with a dict ENGINES, and a name in it. The engine is called with the
current folder, where the model is. A line is ["method", *arguments]; the answer is {"seconds": 1.5}, what the call
took, or {"cannot": "why"}.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import time


def main(script: str, name: str) -> None:
    answers = open(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the libraries print goes to stderr, and not between the answers
    engine = functools.lru_cache(None)(lambda: runpy.run_path(script)["ENGINES"][name](os.getcwd()))
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(answer(engine, method, arguments)), file=answers, flush=True)


def answer(engine, method: str, arguments: list) -> dict:
    """Call a method of engine(): what to say of it."""
    try:
        call = getattr(engine(), method)
        start = time.perf_counter()
        call(*arguments)
        return {"seconds": time.perf_counter() - start}
    except (ImportError, NotImplementedError) as error:
        return {"cannot": str(error)}
    except Exception as error:
        return {"cannot": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main(*sys.argv[1:])
