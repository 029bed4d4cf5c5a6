"""Answers what vLLM's own code makes of schedules: JSON lines in, JSON lines out.

Run by vLLM's own Python. In: {"rows": ..., "max_num_seqs": N, "max_tokens": K}. Out: {"table":
[K at batch size 1, 2, ...]} or {"refusal": text}, in the same order. Both of vLLM's stages are
asked: the type that its configuration declares for the rows, then the function that the
scheduler builds its table with.
"""

import json
import sys

from pydantic import TypeAdapter, ValidationError
from vllm.config.speculative import SpeculativeConfig
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

_FIELD = SpeculativeConfig.__dataclass_fields__["num_speculative_tokens_per_batch_size"]
_ROWS: TypeAdapter[object] = TypeAdapter(_FIELD.type)


def answer(case: dict[str, object]) -> dict[str, object]:
    """Return the engine's table or its refusal."""
    try:
        rows = _ROWS.validate_python(case["rows"])
        table = build_dynamic_sd_schedule_lookup(rows, case["max_num_seqs"], case["max_tokens"])
    except ValidationError as refused:
        return {"refusal": refused.errors()[0]["msg"]}
    except ValueError as refused:
        return {"refusal": str(refused)}
    return {"table": table[1:]}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
