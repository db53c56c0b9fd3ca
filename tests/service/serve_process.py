"""A real `symphony serve`, as a process that can be killed."""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import sys
from pathlib import Path

from symphony.service.client import RemoteCluster, connect
from tests.compiling import environment_of_commands


class Serve:
    """One run of the command; `state` is what it shares with the next."""

    def __init__(self, state: Path, *options: str, descriptors: int = 0) -> None:
        """`descriptors`: as many files as it may have open, if not as many as we."""
        command = [sys.executable, "-c", "from symphony.cli import main; main()", "serve", "--json", "--port", "0"]
        if descriptors:
            command = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command]
        self.log = state.parent / "serve.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--state", str(state), *options],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**environment_of_commands(), "PYTHONUNBUFFERED": "1"},
            )
        atexit.register(self.process.kill)  # a test that fails leaves none behind
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("}"):
                break
        assert said.rstrip().endswith("}"), self.log.read_text()
        self.told = json.loads(said)

    def connect(self) -> RemoteCluster:
        """As whoever serves."""
        return connect(self.told["url"], token=Path(self.told["token_file"]).read_text().strip())

    def kill(self) -> None:
        """As nobody should."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As one should; the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, how: int) -> int:
        self.process.send_signal(how)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
