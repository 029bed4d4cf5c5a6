"""The facts of a worker: what it tells, under a receipt's names; what it does not, left out."""

import socket
import sys
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

from specschedule.core.evidence import Receipt
from specschedule.engine import selftest, settings
from specschedule.engine.fingerprint import Fingerprint, device_facts, worker_facts
from specschedule.vllm_facts.logs import read_log


class DraftModelProposer:
    pass


class Runner:
    """As the first runner of vLLM lays its facts out."""

    def __init__(self, **facts: object) -> None:
        self.__dict__ |= facts


Runner.__module__ = "vllm.v1.worker.gpu_model_runner"


class SecondRunner(Runner):
    """As the second one does."""


SecondRunner.__module__ = "vllm.v1.worker.gpu.model_runner"


def mode(name):
    return SimpleNamespace(name=name)


def config(graphs="FULL_AND_PIECEWISE"):
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=True),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=4,
            num_speculative_tokens_per_batch_size=[(1, 2, 4), (3, 16, 0)],
            draft_model_config=SimpleNamespace(revision="def", quantization=None),
        ),
        compilation_config=SimpleNamespace(cudagraph_mode=mode(graphs)),
        model_config=SimpleNamespace(enforce_eager=False),
    )


def backend(name):
    return SimpleNamespace(backend=SimpleNamespace(get_name=lambda: name))


class Graph(NamedTuple):
    """A graph's key, as far as it is read."""

    num_tokens: int


def test_the_first_runner_tells_what_its_dispatcher_resolved() -> None:
    dispatcher = SimpleNamespace(
        keys_initialized=True,
        cudagraph_mode=mode("PIECEWISE"),
        cudagraph_keys={
            "PIECEWISE": {Graph(8), Graph(1)},
            "FULL": {Graph(8)},
        },
    )
    runner = Runner(
        cudagraph_dispatcher=dispatcher,
        drafter=DraftModelProposer(),
        attn_groups=[[backend("FLASH_ATTN")], [backend("FLASH_ATTN"), backend("TRITON_ATTN")]],
    )
    facts = worker_facts(SimpleNamespace(model_runner=runner, vllm_config=config()))
    assert facts == {
        "modelRunner": "V1",
        "graphMode": "PIECEWISE",
        "capturedSizes": [1, 8],
        "attentionBackend": "FLASH_ATTN, TRITON_ATTN",
        "drafterRevision": "def",
        "drafterClass": "DraftModelProposer",
        "asyncScheduling": True,
        "schedule": [[1, 2, 4], [3, 16, 0]],
        "numSpeculativeTokens": 4,
        "enforceEager": False,
    }
    assert Receipt.model_validate(facts).captured_sizes == [1, 8]


@pytest.mark.parametrize(
    ("version", "built", "told"),
    [
        ("0a1b2c3", "unknown", "0a1b2c3"),
        (None, "fffffff", "fffffff"),
        (None, "unknown", None),
    ],
)
def test_the_commit_is_told_where_the_build_knows_it(monkeypatch, version, built, told) -> None:
    fake = ModuleType("vllm")
    fake._version = SimpleNamespace(__commit_id__=version)
    fake.envs = SimpleNamespace(VLLM_BUILD_COMMIT=built)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    facts = worker_facts(SimpleNamespace())
    assert facts.get("engineCommit") == told


def test_a_dispatcher_that_never_made_its_keys_does_not_speak_for_the_mode() -> None:
    idle = SimpleNamespace(keys_initialized=False, cudagraph_mode=mode("NONE"), cudagraph_keys={})
    runner = Runner(cudagraph_dispatcher=idle)
    facts = worker_facts(SimpleNamespace(model_runner=runner, vllm_config=config("PIECEWISE")))
    assert facts["graphMode"] == "PIECEWISE"
    assert "capturedSizes" not in facts


def test_the_second_runner_tells_what_its_manager_captured() -> None:
    manager = SimpleNamespace(cudagraph_mode=mode("FULL"), captured_token_counts=lambda: [1, 2, 4])
    runner = SecondRunner(cudagraph_manager=manager, speculator=DraftModelProposer())
    facts = worker_facts(SimpleNamespace(model_runner=runner, vllm_config=config()))
    assert (facts["modelRunner"], facts["graphMode"]) == ("V2", "FULL")
    assert (facts["capturedSizes"], facts["drafterClass"]) == ([1, 2, 4], "DraftModelProposer")


def test_a_worker_without_a_schedule_is_told_from_one_that_does_not_say() -> None:
    plain = config()
    plain.speculative_config.num_speculative_tokens_per_batch_size = None
    assert worker_facts(SimpleNamespace(vllm_config=plain))["schedule"] == []
    del plain.speculative_config.num_speculative_tokens_per_batch_size
    assert "schedule" not in worker_facts(SimpleNamespace(vllm_config=plain))
    plain.speculative_config = None
    assert "schedule" not in worker_facts(SimpleNamespace(vllm_config=plain))


def test_a_worker_of_another_version_tells_less_and_nothing_false() -> None:
    assert worker_facts(SimpleNamespace()) == {}


def test_the_device_is_told_where_there_is_one() -> None:
    properties = SimpleNamespace(name="H200", total_memory=150_000_000_000, major=9, minor=0)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda _: properties,
    )
    torch = SimpleNamespace(__version__="2.11", version=SimpleNamespace(cuda="13.0"), cuda=cuda)
    assert device_facts(torch) == {
        "torchVersion": "2.11",
        "cudaVersion": "13.0",
        "gpu": "H200",
        "gpuMemoryBytes": 150_000_000_000,
        "gpuCapability": "9.0",
    }
    cuda.is_available = lambda: False
    assert device_facts(torch) == {"torchVersion": "2.11"}


class Base:
    """As vLLM's worker takes its place among others."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def compile_or_warm_up_model(self) -> str:
        self.vllm_config = config("PIECEWISE")
        return "warm"


def joined(rank: int):
    """Make a worker as vLLM does: the extension becomes a base of its class, then it is made."""
    worker_class = type("Worker", (Base,), {})
    added = [name for name in dir(Fingerprint) if not name.startswith("__")]
    assert added == ["specschedule_fingerprint"]
    assert not any(hasattr(worker_class, name) for name in added)
    worker_class.__bases__ = (*worker_class.__bases__, Fingerprint)
    return worker_class(rank=rank)


@pytest.fixture
def torch(monkeypatch) -> None:
    cuda = SimpleNamespace(is_available=lambda: False)
    without = SimpleNamespace(__version__="2.11", version=SimpleNamespace(cuda=None), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", without)


@pytest.fixture
def port(monkeypatch, torch) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    monkeypatch.setenv(settings.FINGERPRINT_PORT, str(free))
    return free


def test_the_first_worker_prints_its_facts_once_it_is_warm(torch, monkeypatch, capsys) -> None:
    monkeypatch.setenv(settings.FINGERPRINT_LOG, "1")
    worker = joined(rank=0)
    assert capsys.readouterr().out == ""
    assert worker.compile_or_warm_up_model() == "warm"
    (line,) = capsys.readouterr().out.splitlines()
    told = read_log(line).fingerprint
    assert told is not None
    assert (told.graph_mode, told.torch_version) == ("PIECEWISE", "2.11")
    assert told.schedule == [[1, 2, 4], [3, 16, 0]]


@pytest.mark.parametrize(("rank", "switch"), [(1, "1"), (0, "0"), (0, None), (0, "yes")])
def test_nobody_else_prints_and_nobody_who_is_not_asked_to(
    rank, switch, torch, monkeypatch, capsys
) -> None:
    if switch is not None:
        monkeypatch.setenv(settings.FINGERPRINT_LOG, switch)
    assert joined(rank).compile_or_warm_up_model() == "warm"
    assert capsys.readouterr().out == ""


def test_facts_that_cannot_be_read_do_not_reach_the_engine(monkeypatch, capsys, caplog) -> None:
    monkeypatch.setenv(settings.FINGERPRINT_LOG, "1")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert joined(rank=0).compile_or_warm_up_model() == "warm"
    assert capsys.readouterr().out == ""
    assert f"{settings.FINGERPRINT_LOG} has no effect" in caplog.text


def test_a_worker_that_warms_up_otherwise_starts_all_the_same(monkeypatch) -> None:
    monkeypatch.setenv(settings.FINGERPRINT_LOG, "1")
    monkeypatch.delattr(Base, "compile_or_warm_up_model")
    assert joined(rank=0).rank == 0


def test_the_first_worker_answers_from_its_start_on(port) -> None:
    worker = joined(rank=0)
    assert worker.rank == 0
    page = f"http://127.0.0.1:{port}"
    assert "graphMode" not in selftest.facts(page)
    worker.vllm_config = config()
    assert selftest.facts(page)["graphMode"] == "FULL_AND_PIECEWISE"


def test_other_workers_do_not_compete_for_the_port(port) -> None:
    assert joined(rank=1).specschedule_fingerprint() == {"torchVersion": "2.11"}
    with pytest.raises(OSError, match="refused"):
        selftest.facts(f"http://127.0.0.1:{port}")


def test_a_taken_port_is_said_and_the_worker_starts(port, caplog) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert joined(rank=0).specschedule_fingerprint() == {"torchVersion": "2.11"}
    assert "The fingerprint is not served" in caplog.text
