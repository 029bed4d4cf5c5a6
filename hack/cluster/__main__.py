"""The embedded Kubernetes cluster: a real node on this machine, in namespaces of its own.

It needs root, Go and, on the first run, some minutes to build Kubernetes from source. State
lies in .cluster of this clone, or where SPECSCHEDULE_CLUSTER_STATE says; each state folder is
a cluster of its own, so two clones never meet.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import audit
import host
import lifecycle
import programs
from namespaces import Cluster

_HERE = Path(__file__).resolve()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("build", help="only build the programs; prints kubectl and helm")
    commands.add_parser("up", help="bring the cluster up; a healthy one is left alone")
    commands.add_parser("down", help="end it and remove everything of it")
    commands.add_parser("status", help="print the health of every component; 0 when all are well")
    commands.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig")
    load = commands.add_parser("load-image", help="give the node OCI or Docker image archives")
    load.add_argument("archives", type=Path, nargs="+", metavar="ARCHIVE")
    gpus = commands.add_parser("gpus", help="pretend that the node has this many nvidia.com/gpu")
    gpus.add_argument("count", type=int)
    log = commands.add_parser("audit", help="print the writes that the API server answered")
    log.add_argument("--since", default="", metavar="RFC3339", help="the earliest moment")
    log.add_argument("--reads", action="store_true", help="print users' reads as well")
    execute = commands.add_parser("exec", help="run a command inside the cluster's namespaces")
    execute.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser.parse_args()


def _state() -> Path:
    state = os.environ.get("SPECSCHEDULE_CLUSTER_STATE") or str(_HERE.parents[2] / ".cluster")
    folder = Path(state).resolve()
    if folder.is_relative_to("/run"):
        raise host.Failure(f"the state folder {folder} must not lie below /run")
    return folder


def _main() -> int:
    arguments = _arguments()
    here = Cluster(_state())
    match arguments.command:
        case "build":
            programs.build_all()
            for program in ("kubectl", "helm"):
                print(programs.path(program))
        case "up":
            lifecycle.up(here)
        case "down":
            lifecycle.down(here)
        case "status":
            problems, addresses = lifecycle.status(here)
            for name, problem in problems.items():
                print(f"{name:<24} {problem or 'ok'}")
            print(f"{'API server':<24} https://{addresses.node}:6443")
            print(f"{'networks':<24} pods {addresses.pods}, Services {addresses.services}")
            print(f"{'state':<24} {here.state}")
            return 1 if any(problems.values()) else 0
        case "kubeconfig":
            lifecycle.running(here)
            print(here.kubeconfig)
        case "load-image":
            for archive in arguments.archives:
                lifecycle.load_image(here, archive)
        case "gpus":
            lifecycle.set_gpus(here, arguments.count)
        case "audit":
            lifecycle.running(here)
            for event in audit.events(here.state / "audit.log", arguments.since, arguments.reads):
                print(json.dumps(event))
        case "exec":
            argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
            if not argv:
                raise host.Failure(
                    "exec needs a command, such as `exec -- ctr -n k8s.io images ls`"
                )
            os.environ["PATH"] = f"{here.state / 'bin'}:{os.environ['PATH']}"
            command = lifecycle.running(here).command(*argv)
            os.execvp(command[0], command)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(_main())
    except host.Failure as failure:
        sys.exit(f"hack/cluster: {failure}")
    except KeyboardInterrupt:
        sys.exit("hack/cluster: interrupted")
