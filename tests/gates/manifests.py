"""Manifests as a user writes them, right by default."""

import json
from typing import Any

STATIC = {"method": "eagle3", "model": "d", "num_speculative_tokens": 4}
ROWS = [[1, 2, 5], [3, 16, 1]]


def specschedule(schedule: object = ROWS, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecSchedule",
        "metadata": {"name": "chat", "namespace": "llm"},
        "spec": {
            "target": {"name": "chat"},
            "slo": {"ttft": "500ms"},
            "candidates": [{"name": "card", "schedule": schedule}],
            "load": {"points": [1, 8]},
            "bar": {"improve": [{"by": "15%"}]},
            **spec,
        },
    }


def deployment(
    *args: str,
    speculative: dict[str, Any] | None = STATIC,
    image: str = "vllm/vllm-openai:v0.32.0",
    gpu: bool = True,
    **container: Any,
) -> dict[str, Any]:
    """A serving Deployment; ``args`` come after the speculative config, fields replace others."""
    carried = ["--speculative-config", json.dumps(speculative)] if speculative else []
    server = {
        "name": "server",
        "image": image,
        "args": ["--model", "m", "--max-num-seqs", "16", *carried, *args],
        **({"resources": {"limits": {"nvidia.com/gpu": 1}}} if gpu else {}),
        **container,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": "llm"},
        "spec": {
            "replicas": 2,
            "template": {
                "metadata": {"labels": {"app": "chat"}},
                "spec": {"containers": [server]},
            },
        },
    }
