"""The processes that this check starts."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

from servers import answers

GRACE_SECONDS = 6.0


class Process:
    """One program, which can be stopped, killed, paused and restarted. The kernel kills it when this process ends."""

    def __init__(self, name: str, command: list, work: Path, environment: dict | None = None):
        self.name, self.command, self.work = name, command, work
        self.environment = os.environ | (environment or {})
        self.child: subprocess.Popen | None = None

    @property
    def output(self) -> Path:
        """The file of its standard output."""
        return self.work / f"{self.name}.out"

    @property
    def log(self) -> Path:
        """The file of its standard error."""
        return self.work / f"{self.name}.log"

    def start(self, command: list | None = None) -> None:
        """Starts the program, optionally with another command."""
        with self.output.open("ab") as output, self.log.open("ab") as log:
            self.child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, command or self.command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=self.environment,
                cwd=self.work,
            )

    def stop(self, grace: float = GRACE_SECONDS) -> float:
        """Sends SIGTERM, and SIGKILL after the grace period. Returns the seconds until the end."""
        if self.child is None or self.child.poll() is not None:
            return 0.0
        begin = time.monotonic()
        self.child.send_signal(signal.SIGCONT)
        self.child.terminate()
        try:
            self.child.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
        return time.monotonic() - begin

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.child.kill()
        self.child.wait()

    def pause(self) -> None:
        """Sends SIGSTOP. The sockets stay open."""
        self.child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT."""
        self.child.send_signal(signal.SIGCONT)

    def reload(self) -> None:
        """Sends SIGHUP, on which the gateway reloads its configuration."""
        self.child.send_signal(signal.SIGHUP)

    async def ready(self, url: str, seconds: float = 30.0) -> None:
        """Waits until the URL answers with a 2xx. Raises TimeoutError with the end of the log."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.child.poll() is None:
            if await asyncio.to_thread(answers, url):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{self.name} is not ready: {self.log.read_text()[-1500:]}")
