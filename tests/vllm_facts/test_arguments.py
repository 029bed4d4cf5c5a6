"""Server arguments in every form that people write, read and edited exactly, or refused by name."""

import json

import pytest

from specschedule.core.target import ServerFacts, Unreadable
from specschedule.vllm_facts.arguments import (
    ArgumentEdit,
    edited_container,
    read_container,
    with_speculative,
)
from specschedule.vllm_facts.flags import json_object, scan
from specschedule.vllm_facts.launch import launch_of
from tests.vllm_facts.containers import CARD, NEW, OLD, STATIC, TABLE, container, script, vllm

# For each form: the container, the list after setting the card, and after taking it away.
FORMS = {
    "two list items": (
        vllm("--port", "9000", "--speculative-config", OLD, "-tp", "2"),
        ["--port", "9000", "--speculative-config", NEW, "-tp", "2"],
        ["--port", "9000", "-tp", "2"],
    ),
    "one item with an equals sign": (
        vllm(f"--speculative-config={OLD}", "-tp=2"),
        [f"--speculative-config={NEW}", "-tp=2"],
        ["-tp=2"],
    ),
    "underscores for dashes": (
        vllm("--speculative_config", OLD),
        ["--speculative_config", NEW],
        [],
    ),
    "the short flag": (vllm("-sc", OLD), ["-sc", NEW], []),
    "dotted, two items a key": (
        vllm(
            "--speculative-config.method",
            "eagle3",
            "--speculative-config.model",
            "drafter",
            "--speculative-config.num_speculative_tokens",
            "5",
            "--port",
            "9000",
        ),
        [
            "--speculative-config.method",
            "eagle3",
            "--speculative-config.model",
            "drafter",
            "--speculative-config.num_speculative_tokens",
            "5",
            "--speculative-config.num_speculative_tokens_per_batch_size",
            TABLE,
            "--port",
            "9000",
        ],
        ["--port", "9000"],
    ),
    "dotted, one item a key": (
        vllm(
            "--speculative-config.method=eagle3",
            "--speculative-config.model=drafter",
            "--speculative-config.num_speculative_tokens=5",
        ),
        [
            "--speculative-config.method=eagle3",
            "--speculative-config.model=drafter",
            "--speculative-config.num_speculative_tokens=5",
            f"--speculative-config.num_speculative_tokens_per_batch_size={TABLE}",
        ],
        [],
    ),
    "flags of its parts become the one argument": (
        vllm("--spec-method", "eagle3", "--spec-model", "drafter", "--spec-tokens=5", "-tp", "2"),
        ["--speculative-config", NEW, "-tp", "2"],
        ["-tp", "2"],
    ),
    "given twice, the last one counts": (
        vllm("--speculative-config", '{"method":"ngram"}', "--speculative-config", OLD),
        ["--speculative-config", NEW],
        [],
    ),
    "dotted forms replace a whole one": (
        vllm(
            "--speculative-config",
            '{"method":"ngram"}',
            "--speculative-config.method=eagle3",
            "--speculative-config.model=drafter",
            "--speculative-config.num_speculative_tokens=5",
        ),
        ["--speculative-config", NEW],
        [],
    ),
    "the entrypoint of vLLM's image": (
        container(
            image="vllm/vllm-openai:v0.32.0", args=["--model", "m", "--speculative-config", OLD]
        ),
        ["--model", "m", "--speculative-config", NEW],
        ["--model", "m"],
    ),
    "everything in the command": (
        container(command=["vllm", "serve", "m", "--speculative-config", OLD]),
        ["vllm", "serve", "m", "--speculative-config", NEW],
        ["vllm", "serve", "m"],
    ),
    "python -m": (
        container(
            command=["/usr/bin/python3", "-u", "-m", "vllm.entrypoints.openai.api_server"],
            args=["--model", "m", "--speculative-config", OLD],
        ),
        ["--model", "m", "--speculative-config", NEW],
        ["--model", "m"],
    ),
    "behind a wrapper": (
        container(command=["tini", "--", "vllm", "serve", "m", "--speculative-config", OLD]),
        ["tini", "--", "vllm", "serve", "m", "--speculative-config", NEW],
        ["tini", "--", "vllm", "serve", "m"],
    ),
    "the simulated engine": (
        container(
            image="registry.example/specschedule:dev",
            args=["sim", "--world", "demo", "--speculative-config", OLD],
        ),
        ["sim", "--world", "demo", "--speculative-config", NEW],
        ["sim", "--world", "demo"],
    ),
    "a Kubernetes variable": (
        {**vllm("--speculative-config", "$(SPEC)"), "env": [{"name": "SPEC", "value": OLD}]},
        ["--speculative-config", NEW],
        [],
    ),
    "a shell script over several lines": (
        script(f"set -e\nexec vllm serve m \\\n  --speculative-config '{OLD}' \\\n  --port 9000\n"),
        [
            "sh",
            "-c",
            f"set -e\nexec vllm serve m \\\n  --speculative-config '{NEW}' \\\n  --port 9000\n",
        ],
        ["sh", "-c", "set -e\nexec vllm serve m \\\n  --port 9000\n"],
    ),
    "a shell script with double quotes": (
        script(
            'vllm serve m --speculative-config="' + OLD.replace('"', '\\"') + '" 2>&1 | tee /log',
            "/bin/bash",
        ),
        ["/bin/bash", "-c", f"vllm serve m --speculative-config='{NEW}' 2>&1 | tee /log"],
        ["/bin/bash", "-c", "vllm serve m 2>&1 | tee /log"],
    ),
    "a shell script with what runs around the server": (
        script(
            "cleanup() { kill $!; }\ntrap cleanup TERM\npip install lmcache && cd /m\n"
            f"vllm serve m --speculative-config '{OLD}' & wait"
        ),
        [
            "sh",
            "-c",
            "cleanup() { kill $!; }\ntrap cleanup TERM\npip install lmcache && cd /m\n"
            f"vllm serve m --speculative-config '{NEW}' & wait",
        ],
        [
            "sh",
            "-c",
            "cleanup() { kill $!; }\ntrap cleanup TERM\npip install lmcache && cd /m\n"
            "vllm serve m & wait",
        ],
    ),
    "a shell script that uses other variables": (
        {
            **script(f'vllm serve "$MODEL" --speculative-config \'{OLD}\' --api-key "$KEY"'),
            "env": [{"name": "MODEL", "value": "m"}],
        },
        ["sh", "-c", f'vllm serve "$MODEL" --speculative-config \'{NEW}\' --api-key "$KEY"'],
        ["sh", "-c", 'vllm serve "$MODEL" --api-key "$KEY"'],
    ),
}


@pytest.mark.parametrize(("given_", "with_card", "without"), FORMS.values(), ids=FORMS.keys())
def test_each_form_is_read_and_edited_exactly(given_, with_card, without):
    facts = read_container(given_)
    assert isinstance(facts, ServerFacts), facts
    assert facts.speculative == STATIC
    for wanted, expected in ((CARD, with_card), (None, without)):
        edit = with_speculative(given_, wanted)
        assert isinstance(edit, ArgumentEdit), edit
        assert edit.new == expected
        assert edit.old == given_[edit.field]
        assert (facts.arguments, facts.arguments_field) == (edit.old, edit.field)
        again = read_container(edited_container(given_, edit))
        assert again.speculative == wanted
        ignored = {"speculative": None, "arguments": [], "arguments_field": "args"}
        assert again.model_copy(update=ignored) == facts.model_copy(update=ignored)


def test_the_config_that_is_there_already_changes_no_byte():
    for given_, _, _ in FORMS.values():
        edit = with_speculative(given_, STATIC)
        assert read_container(edited_container(given_, edit)).speculative == STATIC
    spaced = vllm("--speculative-config", json.dumps(STATIC, indent=1))
    assert with_speculative(spaced, STATIC).new == spaced["args"]


ADDED = {
    "args are there": (
        vllm("--port", "9000"),
        "args",
        ["--port", "9000", "--speculative-config", NEW],
    ),
    "only a command is there": (
        container(command=["vllm", "serve", "m"]),
        "command",
        ["vllm", "serve", "m", "--speculative-config", NEW],
    ),
    "neither is there": (
        container(image="vllm/vllm-openai:v0.32.0"),
        "args",
        ["--speculative-config", NEW],
    ),
    "a script with something behind": (
        script("vllm serve m --port 9000 > /log; echo gone"),
        "command",
        ["sh", "-c", f"vllm serve m --port 9000 --speculative-config '{NEW}' > /log; echo gone"],
    ),
}


@pytest.mark.parametrize(("given_", "field", "expected"), ADDED.values(), ids=ADDED.keys())
def test_a_server_without_speculation_gets_the_argument_at_the_end(given_, field, expected):
    assert read_container(given_).speculative is None
    edit = with_speculative(given_, CARD)
    assert (edit.field, edit.new) == (field, expected)


COMPILED = {
    "no compilation config": (
        [],
        ["--compilation-config", '{"cudagraph_mode":"PIECEWISE"}'],
        {"cudagraph_mode": "PIECEWISE"},
    ),
    "a whole one is written again, as the last counts": (
        ["--compilation-config", '{"level":3,"cudagraph_mode":"FULL"}'],
        ["--compilation-config", '{"level":3,"cudagraph_mode":"PIECEWISE"}'],
        {"level": 3, "cudagraph_mode": "PIECEWISE"},
    ),
    "dotted ones get one more, as they would replace a whole one": (
        ["--compilation-config.level", "3"],
        ["--compilation-config.cudagraph_mode=PIECEWISE"],
        {"level": 3, "cudagraph_mode": "PIECEWISE"},
    ),
    "in short form": (
        ["-cc.level=3"],
        ["-cc.cudagraph_mode=PIECEWISE"],
        {"level": 3, "cudagraph_mode": "PIECEWISE"},
    ),
}


@pytest.mark.parametrize(("own", "added", "merged"), COMPILED.values(), ids=COMPILED.keys())
def test_a_graph_mode_is_added_and_the_rest_of_the_compilation_config_kept(own, added, merged):
    edit = with_speculative(vllm("--port", "9000", *own), CARD, graph_mode="PIECEWISE")
    assert edit.new == ["--port", "9000", *own, "--speculative-config", NEW, *added]
    again = launch_of(edited_container(vllm(), edit))
    assert json_object(scan(again.tokens), "--compilation-config") == merged
    edit = with_speculative(script("vllm serve m"), None, graph_mode="PIECEWISE")
    written = """--compilation-config '{"cudagraph_mode":"PIECEWISE"}'"""
    assert edit.new == ["sh", "-c", f"vllm serve m {written}"]


def test_kubernetes_puts_nothing_into_what_is_written():
    odd = {**STATIC, "model": "a$(PORT)$$b"}
    edit = with_speculative(vllm(), odd)
    assert "a$$(PORT)$$$$b" in edit.new[-1]
    assert read_container(edited_container(vllm(), edit)).speculative == odd


REFUSED = {
    "an entry script": (
        container(command=["/entrypoint.sh"], args=["vllm", "serve"]),
        "EntryScript",
        "/entrypoint.sh",
    ),
    "a shell script in the image": (
        container(command=["bash", "/start.sh"]),
        "EntryScript",
        "/start.sh",
    ),
    "a Python program": (container(command=["python3", "serve.py"]), "EntryScript", "python3"),
    "a script that starts something else": (script("exec /start.sh"), "EntryScript", "script"),
    "two servers in one script": (
        script("vllm serve a || vllm serve b"),
        "SeveralServers",
        "2 times",
    ),
    "a function in the program's place": (
        script('vllm() { command vllm "$@" -dp 2; }\nvllm serve m'),
        "UnsupportedShell",
        "defines a function vllm",
    ),
    "a function in the program's place, the other way": (
        script("function vllm {\n echo; }\nvllm serve m"),
        "UnsupportedShell",
        "defines a function vllm",
    ),
    "an alias in the program's place": (
        script("alias vllm='vllm -dp 2'\nvllm serve m"),
        "UnsupportedShell",
        "an alias vllm",
    ),
    "a function without a name": (
        script("if function\nvllm serve m"),
        "UnsupportedShell",
        "behind if",
    ),
    "another vLLM than the image's": (
        script("pip install --quiet 'vllm==0.20.0' && vllm serve m"),
        "UnsupportedShell",
        "installs vllm==0.20.0",
    ),
    "a server that only starts sometimes": (
        script('if [ -n "$A" ]; then vllm serve m; else sleep 9; fi'),
        "UnsupportedShell",
        "behind if",
    ),
    "a server of one case": (
        script("case $MODE in serve) vllm serve m;; *) sleep 9;; esac"),
        "UnsupportedShell",
        "behind case",
    ),
    "a server in a function": (
        script("start() { vllm serve m; }\nstart"),
        "UnsupportedShell",
        "behind function",
    ),
    "a server that stands in for another": (
        script("fast-server || vllm serve m"),
        "UnsupportedShell",
        "behind ||",
    ),
    "an image that is not known": (
        container(image="example/llm:1", args=["--model", "m"]),
        "UnknownEntrypoint",
        "example/llm:1",
    ),
    "no arguments and an image that is not known": (
        container(image="example/llm:1"),
        "UnknownEntrypoint",
        "example/llm:1",
    ),
    "extra quotes": (vllm("--speculative-config", f"'{OLD}'"), "UnsupportedArgumentForm", "quotes"),
    "escaped quotes": (
        vllm("--speculative-config", OLD.replace('"', '\\"')),
        "UnsupportedArgumentForm",
        "layer",
    ),
    "a JSON string of JSON": (
        vllm("--speculative-config", json.dumps(OLD)),
        "UnsupportedArgumentForm",
        "layer",
    ),
    "no JSON object": (
        vllm("--speculative-config", "[1]"),
        "UnsupportedArgumentForm",
        "not a JSON object",
    ),
    "no value": (vllm("--speculative-config"), "UnsupportedArgumentForm", "no value"),
    "an abbreviation": (vllm("--speculative", OLD), "UnsupportedArgumentForm", "abbreviation"),
    "an abbreviation of a flag that decides": (
        vllm("--max-num-se", "512"),
        "UnsupportedArgumentForm",
        "--max-num-se is an abbreviation: write --max-num-seqs",
    ),
    "an abbreviation with its value": (
        vllm("--data-parallel-siz=2"),
        "UnsupportedArgumentForm",
        "write --data-parallel-size",
    ),
    "an abbreviation with underscores": (
        vllm("--kv_transfer_conf", '{"kv_role":"kv_producer"}'),
        "UnsupportedArgumentForm",
        "write --kv-transfer-config",
    ),
    "an abbreviation in the dotted form": (
        vllm("--kv-transfer-conf.kv_role", "kv_producer"),
        "UnsupportedArgumentForm",
        "write --kv-transfer-config",
    ),
    "an abbreviation of a switch": (
        vllm("--enforce-eag"),
        "UnsupportedArgumentForm",
        "write --enforce-eager",
    ),
    "an abbreviation that switches off": (
        vllm("--no-async-sched"),
        "UnsupportedArgumentForm",
        "write --no-async-scheduling",
    ),
    "an abbreviated short flag": (
        vllm("-t", "2"),
        "UnsupportedArgumentForm",
        "write --tensor-parallel-size",
    ),
    "a short flag with its value": (
        vllm("-dp2"),
        "UnsupportedArgumentForm",
        "write --data-parallel-size 2",
    ),
    "a flag in capitals": (
        vllm("--Data-Parallel-Size", "2"),
        "UnsupportedArgumentForm",
        "vLLM has no --Data-Parallel-Size",
    ),
    "flag and value in one item": (
        vllm(f"--speculative-config {OLD}"),
        "UnsupportedArgumentForm",
        "write two",
    ),
    "the same key twice": (
        vllm("--spec-method", "ngram", "--speculative-config", OLD),
        "UnsupportedArgumentForm",
        "method",
    ),
    "a number that is none": (vllm("--max-num-seqs", "many"), "UnsupportedArgumentForm", "'many'"),
    "a variable from a Secret that may hold arguments": (
        {
            **vllm("$(MORE)"),
            "env": [{"name": "MORE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        },
        "UnsupportedArgumentForm",
        "$(MORE)",
    ),
    "a variable that decides something": (
        {
            **vllm("--data-parallel-size", "$(DP)"),
            "env": [{"name": "DP", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        },
        "UnsupportedArgumentForm",
        "--data-parallel-size",
    ),
    "a flag without value does not hide a variable": (
        {
            **vllm("--enforce-eager", "$(MORE)"),
            "env": [{"name": "MORE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        },
        "UnsupportedArgumentForm",
        "$(MORE)",
    ),
    "shell words that may be many": (script("vllm serve m $EXTRA"), "UnresolvedVariable", "$EXTRA"),
    "positional parameters": (script('vllm serve "$@"'), "UnresolvedVariable", "$@"),
    "a variable that the script sets": (
        {
            **script("A=--data-parallel-size=2; vllm serve m $A"),
            "env": [{"name": "A", "value": "x"}],
        },
        "UnresolvedVariable",
        "$A",
    ),
    "a here-document": (script("vllm serve m <<EOF\nx\nEOF"), "UnsupportedShell", "here-document"),
    "an open quote": (script("vllm serve 'm"), "UnsupportedShell", "quote"),
    "a --config file that is not at hand": (
        vllm("--config", "/etc/vllm.yaml"),
        "UnsupportedArgumentForm",
        "/etc/vllm.yaml",
    ),
    "SGLang": (
        container(image="lmsysorg/sglang:v1", command=["python3", "-m", "sglang.launch_server"]),
        "EngineNotSupported",
        "SGLang",
    ),
    "Text Generation Inference": (
        container(image="ghcr.example/text-generation-inference:3"),
        "EngineNotSupported",
        "Text Generation",
    ),
    "llama.cpp": (
        container(command=["/app/llama-server", "-m", "x"]),
        "EngineNotSupported",
        "llama.cpp",
    ),
    "TensorRT-LLM": (
        container(command=["trtllm-serve", "m"]),
        "EngineNotSupported",
        "TensorRT-LLM",
    ),
}


@pytest.mark.parametrize(("given_", "reason", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_read_or_edited_exactly_is_refused_by_name(given_, reason, said):
    for answer in (read_container(given_), with_speculative(given_, CARD)):
        if isinstance(answer, ArgumentEdit):
            continue  # a value that only reading needs, such as a --config file
        assert isinstance(answer, Unreadable)
        assert answer.reason == reason
        assert said in answer.message
        assert "container server" in answer.message
    assert isinstance(read_container(given_), Unreadable)


def test_arguments_in_both_lists_are_refused_for_an_edit_that_needs_both():
    split = container(
        command=["vllm", "serve", "m", "--speculative-config.method", "ngram"],
        args=["--speculative-config.num_speculative_tokens", "3"],
    )
    assert read_container(split).speculative == {"method": "ngram", "num_speculative_tokens": 3}
    assert with_speculative(split, None).reason == "SplitArguments"
