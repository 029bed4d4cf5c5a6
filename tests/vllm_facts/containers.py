"""Containers that run vLLM, and the speculative configs that tests give them."""

import json
from pathlib import Path

GOLDENS = Path(__file__).parents[1] / "goldens" / "vllm-0.32.0"


ARGUMENTS = json.loads((GOLDENS / "arguments.json").read_text())


STATIC = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 5}


CARD = {**STATIC, "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 16, 1]]}


OLD, NEW = json.dumps(STATIC), json.dumps(CARD, separators=(",", ":"))


TABLE = "[[1,2,5],[3,16,1]]"


def container(**fields):
    return {"name": "server", **fields}


def vllm(*args):
    return container(command=["vllm", "serve", "org/model"], args=list(args))


def script(text, shell="sh"):
    return container(command=[shell, "-c", text])
