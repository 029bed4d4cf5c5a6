"""``python -m hack.demo up|down``: shows the main job, or removes all that it made."""

import argparse
import subprocess
import sys
import time
from typing import Any

from hack.demo import stage as stages
from hack.demo.scenarios import SIM, Scenario, Shown
from hack.demo.stage import MONITORING, ROOT, SYSTEM, Stage, StageError, Steps
from specschedule.cli.watch import follow


def main() -> int:
    """Run the command; exit 0 when every scenario came out as it must."""
    parser = argparse.ArgumentParser(prog="hack.demo", description=__doc__)
    parser.add_argument("command", choices=["up", "down"])
    parser.add_argument("--engine", choices=["sim", "vllm"], default="sim")
    parser.add_argument("--cluster", choices=["embedded", "current"], default="embedded")
    given = parser.parse_args()
    if given.command == "down":
        return down(given.cluster)
    if given.engine == "vllm":
        from hack.demo import vllm

        return vllm.show(given.cluster)
    return show_all(given.cluster)


def show_all(cluster: str) -> int:
    """Show the simulated scenarios one after the other."""
    steps = Steps(3 + len(SIM))
    stage = prepare(steps, cluster)
    shown = []
    for scenario in SIM:
        steps.start(f"scenario {scenario.name}: {scenario.title}")
        shown.append(show(stage, scenario))
        steps.done()
    return say_goodbye(stage, shown)


def prepare(steps: Steps, cluster: str) -> Stage:
    """Get a cluster, the image in it, the chart and Prometheus; remove an earlier demo's objects.

    Objects of an interrupted demo are deleted first, its own only.
    """
    steps.start("cluster and images (the first time builds Kubernetes from source: minutes)")
    stage = stages.embedded() if cluster == "embedded" else stages.current()
    steps.done()
    steps.start("Prometheus and the operator's chart")
    stage.kubectl(
        "delete", "namespace", "-l", "specschedule.dev/demo", "--ignore-not-found", "--wait"
    )
    stage.install_prometheus()
    stage.install_chart()
    steps.done()
    steps.start("operator and Prometheus ready")
    stage.await_ready()
    steps.done()
    return stage


def show(stage: Stage, scenario: Scenario) -> Shown:
    """Deploy, apply, follow to the outcome."""
    namespace, name = scenario.namespace, "chat"
    stage.apply(
        "serving-sim.yaml",
        namespace=namespace,
        name=name,
        world=scenario.world,
        speculative=scenario.incumbent,
    )
    stage.await_deployment(namespace, name, 120)
    return ask(stage, scenario, name)


def ask(stage: Stage, scenario: Scenario, name: str) -> Shown:
    """Apply the SpecSchedule of a scenario whose target serves, and follow it to its outcome."""
    namespace = scenario.namespace
    before = stage.arguments(namespace, name)
    stage.apply(
        "schedule.yaml",
        namespace=namespace,
        name=name,
        candidates=scenario.candidates,
        slo=scenario.slo,
        load=scenario.load,
        bar=scenario.bar,
        experiment=scenario.experiment,
    )

    def status() -> dict[str, Any]:
        found = stage.get("specschedule", name, "-n", namespace)
        if not found:
            raise StageError(f"specschedule {namespace}/{name} is gone: somebody deleted it")
        told: dict[str, Any] = found.get("status", {})
        return told

    say_plan(status)
    outcome = follow(status, timeout=scenario.timeout_s)
    return Shown(
        scenario=scenario,
        outcome=outcome,
        status=status(),
        arguments_before=before,
        arguments_after=stage.arguments(namespace, name),
    )


def say_plan(status: Any, patience_s: float = 60.0) -> None:
    """Print the plan and its cost as soon as the operator has worked it out."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        seen = status()
        plan = seen.get("plan")
        if plan or seen.get("outcome"):
            break
        time.sleep(0.5)
    else:
        raise StageError(f"no plan after {patience_s:.0f} s: is the operator running?")
    if not plan:
        return
    print(
        f"  plan: {plan['launches']} launches; {plan['minutes']:.0f} min and "
        f"{plan['gpuHours']:.2f} GPU-hours if every answer takes all the time that the SLO allows"
    )
    for arm in plan.get("arms", []):
        print(f"    {arm['arm']:<18} {arm['launches']} launches: {arm['buys']}")


def say_goodbye(stage: Stage, shown: list[Shown]) -> int:
    """Say what came out, what to look at and how to remove it; 0 when all came out right."""
    wrong = 0
    print()
    for one in shown:
        right = one.outcome == one.scenario.outcome and serving_is_right(one)
        wrong += not right
        print(
            f"{'as expected' if right else 'NOT AS EXPECTED'}: {one.scenario.name}: {one.outcome}"
        )
        print(f"  {one.status.get('message', '')}")
        if one.status.get("recommendation"):
            print(f"  recommendation: {one.status['recommendation']}")
        print(f"  serving pods run: {' '.join(one.arguments_after[0])}")
    print(f"""
Look at them with
  export KUBECONFIG={stage.kubeconfig}
  alias kubectl={stage.kubectl_path}
  kubectl get specschedules,spectrials -A
  kubectl get specschedule chat -n {shown[0].scenario.namespace} -o yaml
  kubectl get deployment chat -n {shown[0].scenario.namespace} -o yaml
Remove everything with
  make demo-down""")
    return 1 if wrong else 0


def serving_is_right(one: Shown) -> bool:
    """A promoted schedule is in every serving pod's arguments; otherwise nothing changed there."""
    if one.scenario.outcome != "Promoted":
        return one.arguments_before == one.arguments_after
    return all(
        any("num_speculative_tokens_per_batch_size" in word for word in arguments)
        for arguments in one.arguments_after
    )


def down(cluster: str) -> int:
    """Remove all that the demo made."""
    if cluster == "embedded":
        return subprocess.run([sys.executable, str(ROOT / "hack/cluster"), "down"]).returncode
    stage = stages.current()
    stage.kubectl("delete", "namespace", "-l", "specschedule.dev/demo", "--ignore-not-found")
    stage.helm("uninstall", "specschedule", "--namespace", SYSTEM, "--ignore-not-found")
    stage.kubectl("delete", "namespace", SYSTEM, MONITORING, "--ignore-not-found")
    for kind in ("clusterrole", "clusterrolebinding"):
        stage.kubectl("delete", kind, f"{MONITORING}-prometheus", "--ignore-not-found")
    print(
        "the CRDs are kept, as Helm keeps them: kubectl delete crd "
        "specschedules.specschedule.dev spectrials.specschedule.dev"
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StageError as error:
        sys.exit(f"demo: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"demo: {' '.join(map(str, error.cmd[:3]))} failed with {error.returncode}")
    except KeyboardInterrupt:
        sys.exit(
            "demo: interrupted. The cluster and the run in it go on, and a run in mode Auto may "
            "promote; `make demo` starts over, `make demo-down` removes everything"
        )
