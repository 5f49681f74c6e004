"""The processes that a check starts."""

import asyncio
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from servers import answers, free_ports
from shipped import replace_addresses

GRACE_SECONDS = 6.0


class Process:
    """One program, which can be stopped, killed, paused and restarted. The kernel kills it when this process ends."""

    def __init__(self, name: str, command: list, work: Path):
        self.name, self.command, self.work = name, command, work
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

    def restart(self, command: list | None = None) -> None:
        """Kills the program and starts it again, optionally with another command."""
        self.kill()
        self.start(command)

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


# Switches off the Collector's metrics about itself, which would listen on a fixed port.
NO_OWN_METRICS = """
  telemetry:
    metrics:
      level: none
"""


class Environment:
    """The processes of a check, each with ports of its own on this machine, and their files in one folder."""

    def __init__(self, gateway: Path, work: Path, ports: list[str]):
        self.gateway, self.work = gateway, work
        self.config_file = work / "gateway.yaml"
        self.port = dict(zip(ports, free_ports(len(ports))))
        self.processes: dict[str, Process] = {}

    def url(self, name: str) -> str:
        """The URL of the process with this name."""
        return f"http://{self.at(name)}"

    def at(self, name: str) -> str:
        """The address, host and port, of the process with this name."""
        return f"127.0.0.1:{self.port[name]}"

    def add(self, name: str, command: list) -> None:
        """Starts a process."""
        self.processes[name] = Process(name, command, self.work)
        self.processes[name].start()

    async def add_gateway(self) -> None:
        """Starts the gateway, and waits until it is ready."""
        self.add("gateway", [self.gateway, "serve", "--config", self.config_file, "--log-format", "json"])
        await self.processes["gateway"].ready(f"{self.url('admin')}/readyz")

    def end(self) -> None:
        """Stops all processes, in reverse order."""
        for process in [*reversed(self.processes.values())]:
            process.stop()

    def sim(self, name: str, *options: str) -> list:
        """The command of a simulated backend."""
        return [self.gateway, "sim", "--backends", "1", "--listen", self.at(name), *options]

    def collector(self, program: Path, text: str, addresses: dict[str, str]) -> list:
        """The command of an OpenTelemetry Collector. `text` is its shipped configuration file. `addresses` are those
        with which the addresses of other components in it are replaced."""
        file = self.work / "collector.yaml"
        file.write_text(replace_addresses(text, {
            "0.0.0.0:4317": self.at("collector_grpc"),
            "0.0.0.0:4318": self.at("collector_http"),
            "0.0.0.0:8889": self.at("collector_metrics"),
            **addresses,
        }) + NO_OWN_METRICS)
        return [program, "--config", file]

    def admin(self, path: str) -> None:
        """Calls an endpoint of the admin listener that changes state. The listener accepts changes only with this
        content type, which web pages of other origins cannot send."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url("admin") + path, method="POST", headers=headers)
        urllib.request.urlopen(request, timeout=10).close()
