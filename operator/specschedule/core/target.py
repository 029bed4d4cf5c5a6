"""What is seen of a serving workload: its vLLM server, and how far its rollout is.

Apart from ``observed``, as commands that read a manifest need nothing else and start faster.
"""

from typing import Any, Literal

from specschedule.core.values import Value

LARGEST_DEFAULT = 1024
"""The largest ``max_num_seqs`` that vLLM 0.32 chooses itself: 256, but this on GPUs of 70 GB and
more that are no A100 (``engine/arg_utils.py``)."""


class ServerFacts(Value):
    """A vLLM server as its container's arguments describe it."""

    container: str
    """Name of the container."""
    engine: str = "vllm"
    """Engine, such as vllm or sglang."""
    model: str | None = None
    """Model served."""
    port: int = 8000
    """Port of the OpenAI API."""
    tls: str | None = None
    """What shows that this port speaks TLS, such as --ssl-certfile; None when nothing does."""
    max_num_seqs: int = 256
    """Largest batch size."""
    max_num_seqs_given: bool = False
    """Whether the arguments say so, or it is vLLM's default."""
    max_model_len: int | None = None
    """Longest context."""
    max_num_batched_tokens: int | None = None
    """Token budget of a step, where given."""
    data_parallel_size: int = 1
    """Data parallel ranks."""
    tensor_parallel_size: int = 1
    """Tensor parallel ranks."""
    pipeline_parallel_size: int = 1
    """Pipeline parallel ranks."""
    enable_dbo: bool = False
    """Whether batches are split to overlap (dual batch overlap)."""
    enforce_eager: bool = False
    """Whether graphs and compilation are off."""
    scheduler_class: str | None = None
    """--scheduler-cls, where given."""
    worker_extension: str | None = None
    """--worker-extension-cls, where given."""
    image: str | None = None
    """Image reference of the container."""
    gpus: int = 0
    """GPUs that its pod asks for."""
    gpus_untold: str | None = None
    """Why a pod that asks for no GPU may get one all the same; None where nothing speaks for it."""
    async_scheduling: bool | None = None
    """--async-scheduling, where given."""
    enable_lora: bool = False
    """Whether adapters can be served."""
    adapters: list[str] | None = None
    """Adapters that a serving pod lists now; None where none could be asked."""
    graph_mode: str | None = None
    """cudagraph_mode that the arguments ask for."""
    optimization_level: int | None = 2
    """Optimization level, which stands for a cudagraph_mode where none is asked for; None where it
    is none that is known."""
    attention_backend: str | None = None
    """Attention backend that the arguments pin."""
    quantization: str | None = None
    """--quantization, where given."""
    log_level: str | None = None
    """Log level that the arguments ask for."""
    log_config_file: str | None = None
    """File of Python's logging configuration that the arguments name."""
    configure_logging: bool = True
    """False where the arguments keep vLLM from setting up its logging."""
    kv_role: str | None = None
    """kv_role of a KV transfer config: a prefill/decode split."""
    kv_connectors: list[str] = []
    """KV connectors of a KV transfer config, those inside a MultiConnector in its place."""
    kv_events_to: str | None = None
    """Where it sends its KV cache events, when it goes there itself; None when it is asked."""
    sidecars: dict[str, list[str]] = {}
    """Names of the variables of the pod's other containers, by container."""
    sidecar_sources: list[str] = []
    """Where these have more variables from that were not read, as in ``unread_sources``."""
    speculative: dict[str, Any] | None = None
    """The speculative config, as one merged object; None when the server does not speculate."""
    refused: list[str] = []
    """What of the speculative config vLLM 0.32 refuses to start with."""
    environment: dict[str, str] = {}
    """Environment variables of the server whose values are known."""
    unread: list[str] = []
    """Environment variables of the server whose values are not known."""
    unread_sources: list[str] = []
    """Where more variables come from that were not read, such as 'envFrom Secret tokens'."""
    arguments: list[str] = []
    """The list (args or command) that holds the speculative argument, byte for byte."""
    arguments_field: Literal["args", "command"] = "args"
    """Which list of the container that is."""
    notes: list[str] = []
    """What could not be read with certainty."""

    def unknown(self, *names: str) -> str | None:
        """Say why the value of one of some variables is not known, and what helps; None if all are.

        Args:
            names: Names of variables.
        """
        unread = [name for name in names if name in self.unread]
        unsaid = [name for name in names if name not in self.environment]
        if unread:
            why = f"variable {', '.join(unread)} comes from elsewhere and was not read"
        elif unsaid and self.unread_sources:
            why = f"{', '.join(self.unread_sources)} was not read and may set {', '.join(unsaid)}"
        else:
            return None
        return (
            f"container {self.container}: {why}; write the value in env, or give preflight its "
            "ConfigMap (--config-map)"
        )

    @property
    def largest_batch(self) -> int:
        """Largest batch size that is possible: as given, else by the largest of the defaults."""
        given = self.max_num_seqs_given
        return self.max_num_seqs if given else max(self.max_num_seqs, LARGEST_DEFAULT)


class Unreadable(Value):
    """The server arguments cannot be read or edited exactly."""

    reason: str
    """CamelCase constant, such as NoVllmContainer or UnsupportedArgumentForm."""
    message: str
    """Object, field and remedy."""


class RolloutFacts(Value):
    """How far the serving Deployment's rollout is."""

    complete: bool
    """Every replica runs the present template and is available."""
    message: str
    """Such as '1 of 2 replicas updated'."""
    failing: str | None = None
    """Why new pods do not become ready, quoted from their state; None while nothing is wrong."""


class TargetFacts(Value):
    """The serving workload."""

    resource_version: str
    """For preconditions."""
    generation: int
    """metadata.generation."""
    template_hash: str
    """Hash of the pod template with the speculative argument left out."""
    server: ServerFacts | Unreadable
    """Its vLLM server."""
    owner: str | None = None
    """Controlling owner, such as 'InferenceService/chat'; None when it owns itself."""
    replicas: int = 1
    """spec.replicas."""
    rollout: RolloutFacts
    """Rollout of the present template."""
    image_ids: list[str] | None = None
    """Digests of the images that its pods run now; None where no pod is there to ask."""
    gpus: int = 0
    """GPUs that one pod asks for."""
    accelerator: str | None = None
    """Resource by which it asks for them, such as nvidia.com/gpu; None without."""
    can_roll: str | None = None
    """Why a rollout can never finish (one replica, maxUnavailable 0 and no free GPU); else None."""
    roll_unchecked: str | None = None
    """What a rollout needs that was not looked at; None when nothing is."""
    boot_seconds: float | None = None
    """Container start to Ready of its own pods, when known."""
    pods: list[str] = []
    """Names of its pods."""
    drafter_block: int | None = None
    """Block size in the drafter's files, where they could be read; None elsewhere."""
