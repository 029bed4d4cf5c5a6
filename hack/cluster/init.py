"""The first process of the cluster's namespaces: mounts, starts what it is told to, and reaps.

It runs as process 1 of its own PID namespace, so killing it ends every process, mount and link
of the cluster at once. Its standard input carries one JSON object a line:

- `{"start": NAME, "argv": [...], "environment": {...}, "log": PATH}` starts a component,
- `{"keep": true}` makes the cluster outlive the process that started it.

If the input ends before that, the starter was killed half-way, and init ends too: nothing of a
half-made cluster stays. The end of a component is written to `STATE/run/NAME.ended`.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

# Folders that Kubernetes' programs write to under fixed names, seen only by this cluster.
_OWN = {
    "/var/lib": ("kubelet", "cni"),
    "/var/log": ("pods", "containers"),
}


def _shadow(folder: str, own: tuple[str, ...], storage: Path) -> None:
    """Lays a view over a host folder: everything in it stays, some entries are our own.

    The entries that are ours would otherwise be created on the host, shared by two clusters.
    """
    staging = Path("/run/shadow")
    staging.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", staging], check=True)
    sources = {entry.name: entry for entry in Path(folder).iterdir() if entry.name not in own}
    for name in own:
        sources[name] = storage / name
        sources[name].mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        if source.is_symlink():
            (staging / name).symlink_to(os.readlink(source))
            continue
        if source.is_dir():
            (staging / name).mkdir()
        else:
            (staging / name).touch()
        subprocess.run(["mount", "--rbind", source, staging / name], check=True)
    subprocess.run(["mount", "--move", staging, folder], check=True)
    staging.rmdir()


def _prepare(state: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"], check=True)
    for folder, own in _OWN.items():
        _shadow(folder, own, state)
    # Containers ask for mount propagation, which needs shared mounts; the namespace is a
    # slave of the host's, so nothing propagates out of it.
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def main() -> None:
    """Prepares the namespaces, says so, then serves its input until told to keep running."""
    state = Path(sys.argv[1])
    os.chdir("/")
    _prepare(state)
    names: dict[int, str] = {}

    def reap(*_: object) -> None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            if name := names.pop(child, None):
                code = os.waitstatus_to_exitcode(status)
                (state / "run" / f"{name}.ended").write_text(f"{code}\n")

    signal.signal(signal.SIGCHLD, reap)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "keep" in order:
            break
        with Path(order["log"]).open("ab") as log:
            # Blocked while starting, so that a component that ends at once has its name by then.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            child = os.posix_spawn(
                order["argv"][0],
                order["argv"],
                order["environment"],
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                ],
                setsid=True,
                setsigmask=[],
            )
            names[child] = order["start"]
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    else:
        sys.exit("the starter ended before the cluster was complete")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
