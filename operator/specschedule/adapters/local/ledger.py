"""The run folder: the SpecSchedule with its status, and a SpecTrial per launch, as JSON files.

    schedule.json   the question, the command that serves, and the status
    trials/         one SpecTrial per launch: the ledger
    logs/           what servers and load processes wrote
    records/        what became of every request, where spec.load.records is given
    processes/      what may be alive
    plugins/        what runs inside the engine
    trials.yaml     all SpecTrials, for ``specschedule judge``

A folder holds one run. Everything in it is written whole or not at all.
"""

import fcntl
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from specschedule.adapters.local.files import write
from specschedule.api.v1alpha1 import GROUP
from specschedule.core.launches import rfc3339
from specschedule.core.observed import ScheduleFacts, TrialSpec, TrialStatus
from specschedule.core.spec import Mode, Spec, run_id
from specschedule.ports import Conflict, Key, Refused
from specschedule.wire import manifests, names
from specschedule.wire.patches import without_nulls

NAMESPACE = "local"
COMMAND = f"{GROUP}/command"
"""Annotation of the SpecSchedule in a run folder: the command that serves now, as JSON."""

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class FolderRefused(Exception):
    """The run folder cannot be used for this question; the message says what to do."""


class Ledger:
    """What is kept of a run. Reads are from memory: nobody else writes while it is open."""

    def __init__(self, folder: Path, spec: Spec, command: Sequence[str], *, now: float) -> None:
        """Open a run folder, or begin one.

        Args:
            folder: The folder; made when it is not there.
            spec: The question.
            command: The command that serves now.
            now: Unix seconds.

        Raises:
            FolderRefused: It holds another question, or another process works in it.
        """
        self.folder = folder
        try:
            for each in ("trials", "logs", "processes"):
                (folder / each).mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("a")
        except OSError as error:
            raise FolderRefused(f"--run {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise FolderRefused(
                f"--run {folder}: another process works in it; let it end, or name another folder"
            ) from error
        self._trials: dict[str, dict[str, Any]] = {}
        self._facts: dict[str, tuple[TrialSpec, TrialStatus]] = {}
        try:
            self._schedule = self._opened(spec, command, now)
            self.spec = Spec.model_validate(self._schedule["spec"])
            """The question."""
            for path in sorted((folder / "trials").glob("*.json")):
                self._keep(path.stem, json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise FolderRefused(f"--run {folder}: its files were changed: {error}") from error
        except FolderRefused:
            self.close()
            raise

    def close(self) -> None:
        """Let others work in the folder."""
        self._lock.close()

    @property
    def key(self) -> Key:
        """Name of the SpecSchedule."""
        return Key(NAMESPACE, self._schedule["metadata"]["name"])

    @property
    def uid(self) -> str:
        """UID of the SpecSchedule: a random one, so no two folders share a run id."""
        found: str = self._schedule["metadata"]["uid"]
        return found

    @property
    def status(self) -> Mapping[str, Any]:
        """Status of the SpecSchedule as stored."""
        found: dict[str, Any] = self._schedule["status"]
        return found

    def schedule(self) -> ScheduleFacts:
        """Return the SpecSchedule."""
        metadata = self._schedule["metadata"]
        return ScheduleFacts(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata["generation"],
            created_at=datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
            spec=self.spec,
            again="nothing was launched: the same folder takes the question again",
            status=self._schedule["status"],
        )

    def trials(self) -> dict[str, tuple[TrialSpec, TrialStatus]]:
        """Return plan and record of every launch, by name."""
        return dict(self._facts)

    def report(self, status: Mapping[str, Any]) -> None:
        """Store the status, if it differs from what is stored."""
        plain = without_nulls(status)
        if plain != self._schedule["status"]:
            self._schedule = self._schedule | {"status": plain}
            self._write("schedule.json", self._schedule)

    def create(self, name: str, spec: TrialSpec) -> None:
        """Write the plan of a launch; the same one again changes nothing.

        Raises:
            Refused: Another plan has the name.
        """
        made = manifests.spec_trial(self._schedule, name, spec)
        if name in self._trials:
            if self._trials[name]["spec"] != made["spec"]:
                raise Refused(f"{self.folder}/trials/{name}.json holds another plan: delete it")
            return
        self._store(name, made)

    def record(self, name: str, status: TrialStatus) -> None:
        """Write what became of a launch.

        Raises:
            Conflict: It is over already, with another record.
        """
        trial = self._trials.get(name)
        if trial is None:
            raise Conflict(f"SpecTrial {name} is gone")
        stored, plain = trial.get("status") or {}, status.plain()
        if stored == plain:
            return
        if stored.get("endedAt"):
            raise Conflict(f"SpecTrial {name} is over; its record stays")
        self._store(name, trial | {"status": plain})

    def delete(self, name: str) -> None:
        """Forget a launch."""
        if self._trials.pop(name, None) is not None:
            del self._facts[name]
            (self.folder / f"trials/{name}.json").unlink(missing_ok=True)

    def export(self) -> Path:
        """Write all SpecTrials into one file, as ``kubectl get -o yaml`` would give them."""
        items = sorted(self._trials.values(), key=lambda trial: int(trial["spec"]["launch"]))
        path = self.folder / "trials.yaml"
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        write(path, yaml.dump(listed, Dumper=_DUMPER, sort_keys=False))
        return path

    def _opened(self, spec: Spec, command: Sequence[str], now: float) -> dict[str, Any]:
        """Return the SpecSchedule that is there, if it asks the same; else a new one."""
        path = self.folder / "schedule.json"
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            if found["status"].get("outcome") != "Rejected":
                self._check_same(found, spec, command)
                return found
        made = {
            "apiVersion": names.API_VERSION,
            "kind": "SpecSchedule",
            "metadata": {
                "name": spec.target.name,
                "namespace": NAMESPACE,
                "uid": str(uuid.uuid4()),
                "generation": 1,
                "creationTimestamp": rfc3339(now),
                "annotations": {COMMAND: json.dumps(list(command))},
            },
            # Nothing here is ever written to a serving workload.
            "spec": spec.model_copy(update={"mode": Mode.PROPOSE}).plain(),
            "status": {},
        }
        self._write("schedule.json", made)
        return made

    def _check_same(self, found: Mapping[str, Any], spec: Spec, command: Sequence[str]) -> None:
        stored = Spec.model_validate(found["spec"])
        before = json.loads(found["metadata"]["annotations"][COMMAND])
        what = None
        if run_id("", stored, 0) != run_id("", spec, 0):
            what = "another spec"
        elif before != list(command):
            what = "another command"
        if what is not None:
            raise FolderRefused(
                f"--run {self.folder}: holds a run of {what}, and evidence of the two cannot be "
                "put together; name another folder"
            )

    def _store(self, name: str, trial: dict[str, Any]) -> None:
        self._write(f"trials/{name}.json", trial)
        self._keep(name, trial)

    def _keep(self, name: str, trial: dict[str, Any]) -> None:
        self._trials[name] = trial
        self._facts[name] = (
            TrialSpec.model_validate(trial["spec"]),
            TrialStatus.model_validate(trial.get("status") or {}),
        )

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        write(self.folder / name, json.dumps(value, indent=1) + "\n")
