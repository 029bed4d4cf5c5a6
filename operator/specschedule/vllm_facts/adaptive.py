"""Where vLLM's adaptive verification (``enable_adaptive_verification``) works.

Read in vLLM 0.28 to 0.33 (``config/speculative.py``, ``v1/worker/gpu/spec_decode/``).
"""

from specschedule.core.versions import numbers

WITHOUT_MODEL_RUNNER_V2 = frozenset(
    {"custom_class", "medusa", "mlp_speculator", "ngram", "ngram_gpu", "suffix"}
)
"""Methods without a drafter model on model runner V2; the setting does nothing for them."""


def supports_adaptive_verification(method: str, version: str) -> bool:
    """Say whether a speculative method can verify adaptively in a version of vLLM.

    It came with 0.28 for DSpark, and with 0.30 for every drafter model on model runner V2.
    """
    found = numbers(version)
    if method.lower() in WITHOUT_MODEL_RUNNER_V2 or found < (0, 28):
        return False
    return found >= (0, 30) or method.lower() == "dspark"
