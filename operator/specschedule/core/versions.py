"""Versions of vLLM: where they are written, how they compare, which can be tuned."""

import re

from specschedule.core.gate import Gate, fails, passes, unknown

Version = tuple[int, ...]
"""Numbers of a version, such as (0, 32, 0)."""


_OWN_IMAGE = re.compile(r"(?:^|/)vllm/vllm-(?:openai|tpu)(?:-[a-z0-9]+)*$")
"""Repositories of vLLM's own releases, behind a mirror's host too: the tag is vLLM's version."""

_NAMED = re.compile(r"(?:^|[^a-z])vllm[-_.]?v?(\d+\.\d+\.\d+)", re.IGNORECASE)
_BARE = re.compile(r"v?(\d+\.\d+\.\d+)")


def version_of_image(image: str | None) -> str | None:
    """Return vLLM's version in an image's tag; None where the tag may count something else.

    A number counts behind the word vllm (``rocm/vllm:rocm6.4.1_vllm_0.33.0``), and at the start of
    the tag of vLLM's own images (``vllm/vllm-openai:v0.32.0-x86_64``). Other images count their
    own releases, or those of what they add.
    """
    repository, _, tag = (image or "").split("@")[0].rpartition(":")
    found = _NAMED.search(tag)
    if found is None and _OWN_IMAGE.search(repository):
        found = _BARE.match(tag)
    return found.group(1) if found else None


def numbers(version: str) -> Version:
    """Return the numbers of a version for comparison; its suffix does not count."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def is_release(version: str) -> bool:
    """Say whether a version counts vLLM's releases.

    A build from sources without the releases' tags counts from nothing: ``dev``,
    ``0.1.dev1+g0123abc``, ``0.0.0+unknown``. vLLM's own first releases, 0.1, are taken for such.
    """
    return numbers(version) >= (0, 2)


NEWEST_READ = (0, 33)
"""The newest release whose source was read; 0.32 is also what tests run."""


def version_gate(version: str) -> Gate:
    """Say whether a version of vLLM can be tuned."""
    if not is_release(version):
        return unknown(
            "engineVersion",
            "SourceBuild",
            f"vLLM {version} is a build from sources that does not say which release it is of, so "
            "whether it follows schedules is not known; build it with vLLM's tags fetched, or name "
            "the release in preflight --engine-version",
        )
    if numbers(version) < (0, 24):
        return fails(
            "engineVersion",
            "VersionTooOld",
            f"vLLM {version} has no schedules; they came with 0.24.0, and from 0.32.0 drafting "
            "follows them; upgrade to 0.32.0 or newer",
        )
    if numbers(version) < (0, 32):
        return fails(
            "engineVersion",
            "VersionTooOld",
            f"vLLM {version} drafts at full length whatever the schedule says (its default model "
            "runner ignores K), so measuring it would teach a wrong answer; upgrade to 0.32.0 or "
            "newer",
        )
    if numbers(version)[:2] > NEWEST_READ:
        newest = ".".join(map(str, NEWEST_READ))
        return passes(
            "engineVersion",
            f"vLLM {version} is newer than {newest}, the newest that was read: that it follows "
            "schedules is not tested; the draft counters of the launches decide",
            "NotTested",
        )
    return passes("engineVersion", f"vLLM {version} follows schedules")


WITHOUT_MODEL_RUNNER_V2 = frozenset(
    {"custom_class", "medusa", "mlp_speculator", "ngram", "ngram_gpu", "suffix"}
)
"""Methods without a drafter model on model runner V2: verification cannot adapt to them."""


def adaptive_verification(method: str, version: str) -> bool:
    """Say whether a speculative method can verify adaptively in a version of vLLM.

    It came with 0.28 for DSpark, and with 0.30 for every drafter model on model runner V2. Read
    in vLLM 0.28 to 0.33 (``config/speculative.py``, ``v1/worker/gpu/spec_decode/``).
    """
    found = numbers(version)
    if not method or method.lower() in WITHOUT_MODEL_RUNNER_V2 or found < (0, 28):
        return False
    return found >= (0, 30) or method.lower() == "dspark"
