"""vLLM's command-line flags as far as this product reads them, and how vLLM reads any flag.

Read in vLLM 0.32.0: ``vllm/utils/argparse_utils.py`` and ``vllm/engine/arg_utils.py``.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specschedule.core.matrix import unknown_method
from specschedule.vllm_facts.plain import read_yaml

SPECULATIVE = "--speculative-config"
COMPILATION = "--compilation-config"
ADDITIONAL = "--additional-config"
SCHEDULER = "--scheduler-cls"
SPECULATIVE_PARTS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
"""Flags that each set one key of the speculative config."""

ALIASES = {
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}

LEVELS = ("0", "1", "2", "3")
DEFAULT_LEVEL = 2
"""Optimization levels of vLLM 0.32."""

READ = {
    SPECULATIVE,
    *SPECULATIVE_PARTS,
    ADDITIONAL,
    SCHEDULER,
    "--attention-backend",
    "--attention-config",
    "--async-scheduling",
    "--compilation-config",
    "--config",
    "--data-parallel-size",
    "--enable-dbo",
    "--enable-lora",
    "--enforce-eager",
    "--kv-events-config",
    "--kv-transfer-config",
    "--log-config-file",
    "--log-level",
    "--logging-config",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--optimization-level",
    "--pipeline-parallel-size",
    "--port",
    "--quantization",
    "--tensor-parallel-size",
    "--ubatch-size",
}
"""Flags whose values decide something here. An unknown value in one of them is refused."""

_NO_VALUE = """
    aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling
    cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb
    data-parallel-multi-port-external-lb dcp-q-replicate disable-cascade-attn
    disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
    disable-hybrid-kv-cache-manager disable-log-stats disable-nccl-for-dp-synchronization
    disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
    enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator enable-dbo
    enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel
    enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune
    enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas
    enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
    enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
    enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend
    enable-offline-docs enable-per-request-metrics enable-prefix-caching enable-prompt-embeds
    enable-prompt-tokens-details enable-request-id-headers enable-return-routed-experts
    enable-scale-out enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode
    enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora
    enable-trace-replay enforce-eager exclude-tools-when-tool-choice-none
    fail-on-environ-validation fully-sharded-loras grpc headless interleave-mm-strings
    jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill language-model-only
    log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize mm-encoder-only
    numa-bind ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids
    scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph
    specialize-active-lora swa-bounded-replay tokens-only trust-remote-code
    trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel use-replayssm
    use-tqdm-on-load
"""
NO_VALUE = frozenset(_NO_VALUE.split())
"""Flags that take no value in vLLM 0.32.0, without their dashes; each has a --no- form."""

_KNOWN_KEYS = """
    attention_backend code_revision disable_eagle_block_drop disable_padded_drafter_batch
    draft_load_config draft_sample_method draft_tensor_parallel_size dspark_draft_topk
    enable_adaptive_verification enforce_eager index_share_for_mtp_iteration kv_cache_dtype
    max_model_len method model moe_backend num_speculative_tokens
    num_speculative_tokens_per_batch_size parallel_drafting prompt_lookup_max prompt_lookup_min
    quantization rejection_sample_method revision suffix_decoding_max_cached_requests
    suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth suffix_decoding_min_token_prob
    synthetic_acceptance_length synthetic_acceptance_rates use_heterogeneous_vocab
    use_local_argmax_reduction
"""
KNOWN_KEYS = frozenset(_KNOWN_KEYS.split())
"""Keys of a speculative config in vLLM 0.32.0 (``vllm/config/speculative.py``)."""

RENAMED_KEYS = {
    "adaptive_verification": "enable_adaptive_verification",
    "speculative_token_schedule": "num_speculative_tokens_per_batch_size",
}
"""Keys that documents and proposals use, and what vLLM 0.32.0 calls them."""

_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class FlagError(ValueError):
    """A flag whose value vLLM would refuse, or which cannot be read here."""


@dataclass(frozen=True)
class Token:
    """One argument: its text, and whether part of the text stands for something unknown."""

    text: str
    unknown: bool = False


@dataclass(frozen=True)
class Flag:
    """One flag with its value.

    ``first`` and ``last`` are the positions of its tokens; ``path`` holds the keys of the dotted
    form (``--speculative-config.method x``), with a last ``+`` where items are appended.
    """

    name: str
    written: str
    value: str | None
    first: int
    last: int
    path: tuple[str, ...] = ()
    unknown: bool = False

    @property
    def joined(self) -> bool:
        """Whether it is written ``--flag=value``."""
        return self.first == self.last and self.value is not None


def scan(tokens: Sequence[Token]) -> list[Flag]:
    """Return the flags of a command line, in order.

    Raises:
        FlagError: A token cannot be told to be a flag or a value, or a flag is abbreviated.
    """
    flags: list[Flag] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.text == "--":
            break
        if not token.text.startswith("-") or _is_number(token.text):
            if token.unknown:
                raise FlagError(f"{token.text} is not known and may hold arguments")
            at += 1
            continue
        flag = _flag(tokens, at)
        flags.append(flag)
        at = flag.last + 1
    return flags


def _flag(tokens: Sequence[Token], at: int) -> Flag:
    token = tokens[at]
    if level := _level(tokens, at):
        return level
    written, equals, value = token.text.partition("=")
    if token.unknown and not equals:
        raise FlagError(f"{token.text} is not known and may hold arguments")
    head, *path = written.split(".")
    if re.search(r"\s", written):
        raise FlagError(f"{token.text!r} holds a flag and its value in one argument: write two")
    name = canonical(head)
    _refuse_abbreviation(name, written)
    if equals:
        return Flag(name, written, value, at, at, tuple(path), token.unknown)
    following = tokens[at + 1] if at + 1 < len(tokens) else None
    takes = path or not takes_no_value(name)
    is_flag = following is None or (
        following.text.startswith("-") and not path and not _is_number(following.text)
    )
    if not takes or is_flag or following is None:
        return Flag(name, written, None, at, at, tuple(path))
    if following.unknown and name in READ:
        raise FlagError(f"the value of {written} is {following.text}, which is not known")
    return Flag(name, written, following.text, at, at + 1, tuple(path), following.unknown)


def _level(tokens: Sequence[Token], at: int) -> Flag | None:
    """Return -O2, -O=2 or -O 2, which vLLM rewrites; None for any other flag."""
    text, following = tokens[at].text, tokens[at + 1].text if at + 1 < len(tokens) else ""
    if not text.startswith("-O") or (text == "-O" and following not in LEVELS):
        return None
    last = at + (text == "-O")
    value = following if text == "-O" else text[2:].removeprefix("=")
    return Flag("--optimization-level", text[:2], value, at, last, (), tokens[last].unknown)


def canonical(name: str) -> str:
    """Return a flag's long name with dashes."""
    if name.startswith("--"):
        return "--" + name[2:].replace("_", "-")
    return ALIASES.get(name, name)


def takes_no_value(name: str) -> bool:
    """Say whether a flag stands alone."""
    return name.removeprefix("--").removeprefix("no-") in NO_VALUE or name in ("-h", "--help")


def _refuse_abbreviation(name: str, written: str) -> None:
    """Refuse what argparse would complete to a flag that decides something here.

    vLLM's parser takes any beginning that only one flag has. Which that is hangs on the version.
    """
    if name in READ or name in ALIASES:
        return
    if name.lower() in READ:
        raise FlagError(f"vLLM has no {written}: write {name.lower()}")
    long = {*READ, *(f"--no-{flag.removeprefix('--')}" for flag in READ if takes_no_value(flag))}
    short = {alias for alias, flag in ALIASES.items() if flag in READ}
    found = next((flag for flag in sorted(long | short) if flag.startswith(name)), None)
    if found is not None and name not in long:
        raise FlagError(f"{written} is an abbreviation: write {ALIASES.get(found, found)}")
    joined = next((alias for alias in sorted(short) if name.startswith(alias)), None)
    if joined is not None:
        value = name.removeprefix(joined)
        raise FlagError(f"vLLM does not read {written}: write {ALIASES[joined]} {value}")


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-\d+|-\d*\.\d+", text) is not None


def config_file_tokens(text: str) -> list[Token]:
    """Return the arguments that vLLM makes of a ``--config`` file.

    Raises:
        FlagError: The file is not a YAML mapping, or holds what JSON cannot say.
    """
    try:
        documents = read_yaml(text)
    except ValueError as error:
        raise FlagError(f"it is not YAML: {error}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise FlagError("it is not a YAML mapping")
    try:
        return _file_tokens(documents[0])
    except (TypeError, ValueError) as error:
        raise FlagError(f"it holds what is no argument: {error}") from error


def _file_tokens(plain: Mapping[Any, Any]) -> list[Token]:
    out: list[Token] = []
    for key, value in plain.items():
        if isinstance(value, bool):
            out.append(Token(f"--{key}" if value else f"--no-{key}"))
        elif isinstance(value, list):
            out += [Token(f"--{key}"), *(Token(str(item)) for item in value)] if value else []
        elif isinstance(value, dict):
            out += [Token(f"--{key}"), Token(json.dumps(value, default=str))]
        else:
            out += [Token(f"--{key}"), Token(str(value))]
    return out


def integer(flag: Flag) -> int:
    """Return a flag's whole number; vLLM also reads 8k (8000), 8K (8192) and 1.5k.

    Raises:
        FlagError: The value is no whole number.
    """
    text = (flag.value or "").strip()
    if match := re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)([kmgt])", text):
        return int(float(match.group(1)) * _SIZES[match.group(2)])
    if match := re.fullmatch(r"(\d{1,18})([KMGT])", text):
        return int(match.group(1)) << (10 * ("KMGT".index(match.group(2)) + 1))
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    raise FlagError(f"{flag.written} is {text!r}, not a whole number")


def positive(flag: Flag) -> int:
    """Return a flag's whole number from 1.

    Raises:
        FlagError: The value is none, and vLLM refuses to start with it.
    """
    number = integer(flag)
    if number < 1:
        raise FlagError(f"{flag.written} is {number}: vLLM wants 1 or more")
    return number


def json_object(flags: Iterable[Flag], name: str) -> dict[str, Any] | None:
    """Return the object that vLLM reads for a JSON flag, from whole and dotted forms together.

    The last whole form counts; dotted forms replace it altogether.

    Raises:
        FlagError: A value is not a JSON object.
    """
    merged: dict[str, Any] | None = None
    dotted: dict[str, dict[str, Any]] = {}
    for flag in flags:
        if flag.name != name:
            continue
        if flag.path:
            root = canonical_head(flag)
            _merge(dotted.setdefault(root, {}), flag)
        else:
            merged = _whole(flag)
    # vLLM appends one JSON argument per dotted name, in order of first use; the last one counts.
    return list(dotted.values())[-1] if dotted else merged


def canonical_head(flag: Flag) -> str:
    """Return the name that dotted forms are gathered under: aliases stay apart in vLLM."""
    head = flag.written.split(".")[0]
    return "--" + head[2:].replace("_", "-") if head.startswith("--") else head


def _whole(flag: Flag) -> dict[str, Any] | None:
    text = flag.value
    if text is None:
        raise FlagError(f"{flag.written} has no value")
    if text in ("", "None"):
        return None
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        extra = ""
        if text[:1] in "'\"\\" or '\\"' in text:
            extra = "; its quotes or backslashes are part of the text: take one layer away"
        raise FlagError(f"{flag.written} {text!r} is not JSON{extra}") from error
    if plain is None:
        return None
    if not isinstance(plain, dict):
        extra = "; its quotes are part of the text: take one layer away"
        raise FlagError(
            f"{flag.written} {text!r} is not a JSON object{extra if isinstance(plain, str) else ''}"
        )
    return plain


def _merge(into: dict[str, Any], flag: Flag) -> None:
    if flag.value is None:
        raise FlagError(f"{flag.written} has no value")
    *path, leaf = flag.path
    value = dotted_value(flag.value)
    if leaf.endswith("+"):
        leaf, value = leaf[:-1], flag.value.split(",")
    if not leaf or not all(path):
        raise FlagError(f"{flag.written} has an empty key")
    for key in path:
        inner = into.get(key)
        into[key] = inner if isinstance(inner, dict) else {}
        into = into[key]
    if isinstance(value, list) and isinstance(into.get(leaf), list):
        into[leaf] = into[leaf] + value
    elif isinstance(value, dict) and isinstance(into.get(leaf), dict):
        into[leaf] = into[leaf] | value
    else:
        into[leaf] = value


def dotted_value(text: str) -> Any:
    """Return what vLLM makes of the value of a dotted form."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return integer(Flag("", "", text, 0, 0))
        except FlagError:
            return text


def write_dotted(value: Any) -> str:
    """Write a value so that ``dotted_value`` gives it back."""
    if isinstance(value, str) and dotted_value(value) == value:
        return value
    return write_json(value)


def write_json(value: Any) -> str:
    """Write compact JSON."""
    return json.dumps(value, separators=(",", ":"))


def speculative_of(flags: Sequence[Flag]) -> dict[str, Any] | None:
    """Return the one speculative config that vLLM makes of all forms together.

    Raises:
        FlagError: The forms contradict each other or cannot be read.
    """
    config = json_object(flags, SPECULATIVE)
    parts: dict[str, Any] = {}
    for flag in flags:
        if key := SPECULATIVE_PARTS.get(flag.name):
            if flag.value is None:
                raise FlagError(f"{flag.written} has no value")
            parts[key] = integer(flag) if flag.name == "--spec-tokens" else flag.value
    for key in parts:
        if config and key in config:
            raise FlagError(f"--{key} and {SPECULATIVE} both set {key}; vLLM refuses that")
    if config is None and not parts:
        return None
    return {str(k).replace("-", "_"): v for k, v in ((config or {}) | parts).items()}


def refused_of(config: dict[str, Any]) -> list[str]:
    """Say what of a speculative config vLLM 0.32 refuses to start with."""
    found = [
        f"key {key} is not one of vLLM 0.32"
        + (f"; it is {RENAMED_KEYS[key]} there" if key in RENAMED_KEYS else "")
        for key in sorted(set(config) - KNOWN_KEYS)
    ]
    method = config.get("method")
    if method is not None and (fault := unknown_method(method)):
        found.append(fault)
    tokens = config.get("num_speculative_tokens")
    try:
        whole = tokens is None or (
            not isinstance(tokens, bool) and 0 < int(tokens) == float(tokens)
        )
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        found.append(f"num_speculative_tokens {write_json(tokens)} is no whole number from 1")
    return found


def speculative_flags(flags: Sequence[Flag]) -> list[Flag]:
    """Return the flags that carry the speculative config, in any form."""
    return [flag for flag in flags if flag.name == SPECULATIVE or flag.name in SPECULATIVE_PARTS]
