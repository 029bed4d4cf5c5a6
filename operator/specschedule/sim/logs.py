"""Log lines in vLLM's forms: text with a process prefix, or JSON."""

import json
from collections.abc import Callable
from datetime import datetime

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}


class EngineLog:
    """Writes what vLLM's processes would log.

    Args:
        write: Takes one line with its newline.
        level: Lowest level that is written.
        as_json: JSON lines instead of text.
        now: The time of a line.
        pid: Process id shown for the API server; the engine core's is one more.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        level: str,
        as_json: bool,
        now: Callable[[], datetime],
        pid: int,
    ) -> None:
        self._write, self._now, self._as_json = write, now, as_json
        self._level = LEVELS.get(level, LEVELS["INFO"])
        self._pids = {"APIServer": pid, "EngineCore": pid + 1, "Worker": pid + 2}

    def line(self, process: str, level: str, file: str, message: str) -> None:
        """Write a message of a process: APIServer, EngineCore or Worker."""
        if LEVELS[level] < self._level:
            return
        pid, time = self._pids[process], self._now()
        for text in message.split("\n"):
            if self._as_json:
                record = {
                    "asctime": time.strftime("%Y-%m-%d %H:%M:%S,%f")[:-3],
                    "levelname": level,
                    "name": f"vllm.{file.split('.')[0]}",
                    "processName": process,
                    "process": pid,
                    "message": text,
                }
                self._write(json.dumps(record) + "\n")
            else:
                stamp = time.strftime("%m-%d %H:%M:%S")
                self._write(f"({process} pid={pid}) {level} {stamp} [{file}] {text}\n")

    def web_server(self, message: str) -> None:
        """Write a line of the web server, whose text form has no process prefix."""
        if not self._as_json:
            self._write(f"INFO:     {message}\n")

    def printed(self, text: str) -> None:
        """Write a line that no logger writes."""
        self._write(f"{text}\n")

    def raw(self, process: str, text: str) -> None:
        """Write lines that no logger formats, such as a traceback, under a process prefix."""
        for line in text.split("\n"):
            self._write(f"({process} pid={self._pids[process]}) {line}\n")
