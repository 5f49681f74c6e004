"""The processes of one staged fault: three backends, the gateway with load, and, where the fault needs it, an
OpenTelemetry Collector."""

import asyncio
import json
import os
import ssl
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import certificates
from load import Load
from processes import Environment
from relay import Relay
from shipped import Shipped

PORTS = "listen admin gpu0 gpu1 gpu2 relay collector_grpc collector_http collector_metrics closed".split()
BACKENDS = ("gpu0", "gpu1", "gpu2")
WARM_SECONDS = 60.0
"""Time in seconds between the start of the load and the fault."""
START_SECONDS = 5
"""Maximum time in seconds between the start of the backends and the start of the load."""


@dataclass(frozen=True)
class Tools:
    """The programs."""

    gateway: Path
    collector: Path | None
    real: Path | None
    """The folder with serve.sh and stop.sh of a real vLLM."""


@dataclass
class Options:
    """The settings of a testbed that a fault can change."""

    sim: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    """Further flags of the last simulated backend. `{warm}` is the time until the fault in seconds."""
    config: dict = field(default_factory=dict)
    real: list[str] | None = None
    """Flags of one real vLLM, which replaces the three simulated backends."""
    collector: bool = False
    tls: bool = False
    relay: bool = False
    """Whether a relay is in front of the last backend."""


class Testbed(Environment):
    """All processes of one fault. They run until `end`."""

    def __init__(self, tools: Tools, work: Path, options: Options):
        super().__init__(tools.gateway, work, PORTS)
        self.tools, self.options = tools, options
        work.mkdir(parents=True)
        tls = unchecked_tls() if options.tls else None
        self.load = Load(("127.0.0.1", self.port["listen"]), tls=tls)
        self.relay = Relay(self.port[BACKENDS[-1]])

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the backends."""
        return BACKENDS[:1] if self.options.real is not None else BACKENDS

    def in_front_of(self, name: str) -> str:
        """Returns the name, for `at`, of the process to which the gateway connects for this backend: its relay, or itself."""
        return "relay" if self.options.relay and name == BACKENDS[-1] else name

    @property
    def model(self) -> str:
        """The served model."""
        return "tiny" if self.options.real is not None else "sim-model"

    async def start(self) -> None:
        """Starts all processes."""
        if self.options.real is not None:
            await asyncio.to_thread(self.real, "serve.sh", *self.options.real)
        else:
            for name in BACKENDS:
                last = self.options.last if name == BACKENDS[-1] else []
                self.add(name, self.backend(name, *(flag.format(warm=round(WARM_SECONDS) + START_SECONDS) for flag in last)))
                await self.processes[name].ready(f"{self.url(name)}/health")
        if self.options.tls:
            certificates.write(self.work, *certificates.VALID)
        if self.options.relay:
            await self.relay.start(self.port["relay"])
        if self.options.collector:
            self.add("collector", self._collector())
        self.write_config(self.config())
        await self.add_gateway()

    def end(self) -> None:
        """Stops all processes, in reverse order."""
        super().end()
        if self.options.real is not None:
            self.real("stop.sh")

    def backend(self, name: str, *options: str) -> list:
        """The command of a simulated backend."""
        return self.sim(name, *self.options.sim, *options)

    def real(self, script: str, *flags: str) -> None:
        """Starts or stops the real vLLM."""
        command = [str(self.tools.real / script), str(self.port["gpu0"]), *flags]
        environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
        with (self.work / f"{script}.log").open("ab") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, env=environment)

    def config(self) -> dict:
        """The configuration of the gateway."""
        config = {
            "listen": self.at("listen"),
            "admin": self.at("admin"),
            "backends": [{"url": self.url(self.in_front_of(name)), "name": name} for name in self.backends],
        }
        if self.options.collector:
            config["tracing"] = {"endpoint": self.url("collector_grpc"), "ratio": 1.0}
        if self.options.tls:
            config["tls"] = {"cert": str(self.work / "cert.pem"), "key": str(self.work / "key.pem")}
        return config | self.options.config

    def write_config(self, config: dict) -> None:
        """Writes the configuration file. JSON is valid YAML."""
        self.config_file.write_text(json.dumps(config, indent=1))

    def _collector(self) -> list:
        shipped = Shipped(self.tools.gateway, self.config_file, 1.0, {})
        self.write_config(self.config())
        addresses = {"jaeger:4317": self.at("closed")}
        return self.collector(self.tools.collector, shipped.text("collector"), addresses)


def unchecked_tls() -> ssl.SSLContext:
    """TLS without a check of the certificate."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls
