"""Survival of a real llama-server: its demonstration's callers, memory.max alone and edgeguardd with its bridge.

Must not: build or fetch anything; there has to be a server and a model. Upstream: parts. Downstream: tests.llama.
"""

import asyncio
import os

from tests.bench.probes import Found, Tell, kernel
from tests.bench.report import Table
from tests.llama.__main__ import ROWS, RUNS, figures, parser, play


def found() -> tuple[str, str] | None:
    """Server and model in the directory that LLAMA_DIR names, or where `make demo-llama` builds them."""
    directory = os.environ.get("LLAMA_DIR", ".build/llama")
    paths = os.path.abspath(f"{directory}/llama-server"), os.path.abspath(f"{directory}/model.gguf")
    return paths if all(os.path.isfile(path) for path in paths) else None


def run(options: list[str], tell: Tell) -> Found:
    """Server, model, and further options of the demonstration."""
    program, model, *more = options
    tell(f"llama: {', '.join(RUNS)}")
    results = asyncio.run(play(parser().parse_args(["--program", program, "--model", model, *more])))
    rows = [[each.name, *figures(each)] for each in results]
    notes = [f"On {kernel()}. " + "; ".join(f"{name}: {about}" for name, about in RUNS.items()) + "."]
    return Found([Table("A real llama-server", ["guard", *ROWS], rows, notes)])
