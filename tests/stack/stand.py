"""The test environment: simulated backends behind relays, the gateway, and the real components.

    load ─► gateway ─► relays ─► backends
            │     │              └ spans ─► Collector, metrics ─► Prometheus
            │     ├ metrics ─► Prometheus ─► Alertmanager ─► webhook
            │     └ scrapes of a GPU exporter and of an engine: pages
            └ spans ─► Collector ─► Jaeger
"""

import json
from dataclasses import dataclass
from pathlib import Path

from load import Load
from pages import Pages
from processes import Environment
from relay import Relay
from shipped import DECISIONS, FLUSHES, NOTIFICATIONS, RULES, SCRAPES, Shipped, shorten
from webhook import Webhook

MODEL, SMALL_MODEL = "sim-model", "small-model"
OBJECTIVE = "ttft < 3s for 99 %"
DECISION_SECONDS = 10.0
"""Minimum time that the collector waits for the spans of a trace. Exporters batch spans for seconds, which this
check does not shorten, and the last span has the sampling attribute."""
PORTS = (
    "listen admin fast0 fast1 small relay0 relay1 relay2 "
    "collector_grpc collector_http collector_metrics jaeger_grpc jaeger jaeger_query_grpc "
    "prometheus alertmanager webhook pages"
).split()


@dataclass(frozen=True)
class Tools:
    """The paths of the programs."""

    folder: Path
    gateway: Path

    def path(self, name: str) -> Path:
        """The path of a component."""
        return self.folder / "bin" / name

    @property
    def has_jaeger(self) -> bool:
        """Whether Jaeger is installed."""
        return self.path("jaeger").exists()


class Stand(Environment):
    """All processes. `divisor` divides the windows of rules. All addresses are on this machine. `gateway_only`:
    Prometheus scrapes no backend, because a file of discovery names them."""

    def __init__(self, tools: Tools, work: Path, divisor: float, gateway_only: bool):
        super().__init__(tools.gateway, work, PORTS)
        self.tools, self.gateway_only = tools, gateway_only
        addresses = {
            "--alertmanager": self.at("alertmanager"),
            "--webhook": self.url("webhook"),
            "--prometheus": self.url("prometheus"),
            "--jaeger": self.url("jaeger"),
        }
        self.shipped = Shipped(tools.gateway, self.config_file, divisor, addresses)
        self.relays = [Relay(self.port[name]) for name in ("fast0", "fast1", "small")]
        self.webhook, self.pages = Webhook(), Pages()
        self.load = Load(("127.0.0.1", self.port["listen"]))

    async def start(self) -> None:
        """Starts all processes, each after the ones that it depends on."""
        self._configure()
        for relay, name in zip(self.relays, ("relay0", "relay1", "relay2")):
            await relay.start(self.port[name])
        await self.webhook.start(self.port["webhook"])
        await self.pages.start(self.port["pages"])
        for name in ("fast0", "fast1", "small"):
            self.add(name, self.backend(name))
        if self.tools.has_jaeger:
            self.add("jaeger", [self.tools.path("jaeger"), "--config", self.work / "jaeger.yaml"])
        self.add("collector", self._collector())
        self.add("alertmanager", self._alertmanager())
        await self.add_gateway()
        if self.tools.has_jaeger:
            await self.processes["jaeger"].ready(f"{self.url('jaeger')}/api/services")
        await self.processes["alertmanager"].ready(f"{self.url('alertmanager')}/-/ready")
        self.add("prometheus", self._prometheus())
        await self.processes["prometheus"].ready(f"{self.url('prometheus')}/-/ready")

    def backend(self, name: str, *options: str) -> list:
        """The command that starts a backend. The cache of the backend `small` holds few requests."""
        model = SMALL_MODEL if name == "small" else MODEL
        sizes = ["--blocks", "160"] if name == "small" and "--blocks" not in options else []
        collector = ["--otlp-traces-endpoint", self.url("collector_grpc")]
        return self.sim(name, "--model", model, *sizes, *collector, *options)

    def _configure(self) -> None:
        """Writes the gateway's configuration and the files that are generated from it."""
        names = {"relay0": "fast-0", "relay1": "fast-1", "relay2": "small"}
        backends = [{"url": self.url(port), "name": name} for port, name in names.items()]
        # This backend gets no requests. Its metrics page has the metrics that the simulated engine lacks.
        backends.append({"url": self.url("pages"), "name": "pages", "weight": 0})
        listed = self.work / "backends.yaml"
        listed.write_text(json.dumps(backends))
        gpus = [{"name": name, "gpus": [index]} for index, name in enumerate(("fast-0", "fast-1"))]
        config = {
            "listen": self.at("listen"),
            "admin": self.at("admin"),
            **({"discovery": [{"file": str(listed)}]} if self.gateway_only else {"backends": backends}),
            "cost": {"gpus": 1, "gpu_hour_price": 2.5},
            "gpu": {"exporters": [{"url": f"{self.url('pages')}/gpus", "backends": gpus}]},
            "tracing": {
                "endpoint": self.url("collector_grpc"),
                "ratio": 0.2,
                "sampling": "all",
                "profiles": ["openinference"],
            },
            "slos": [{"name": "interactive", "objective": OBJECTIVE}],
            "admission": {"queue_capacity": 40, "max_wait": "12s"},
            # The time windows are divided like those of the rules. The webhook server also judges responses.
            "quality": {
                "enabled": True,
                "sample": 0.05,
                "judge": f"{self.url('webhook')}/score",
                "window": "2m",
            },
        }
        # JSON is valid YAML.
        self.config_file.write_text(json.dumps(config))
        write = lambda name, text: (self.work / name).write_text(text)
        write("prometheus.yml", self.shipped.shortened("prometheus", SCRAPES, 1.0))
        for rules in ("recording-rules", "alert-rules"):
            write(f"{rules}.yml", self.shipped.shortened(rules, RULES, 1.0))
        write("alertmanager.yml", self.shipped.shortened("alertmanager", NOTIFICATIONS, 1.0))
        write("jaeger.yaml", self._jaeger())

    def _collector(self) -> list:
        text = self.shipped.shortened("collector", FLUSHES, 1.0)
        text = shorten(text, DECISIONS, self.shipped.divisor, DECISION_SECONDS)
        # The address that the shipped file has for `--jaeger`.
        return self.collector(self.tools.path("otelcol"), text, {"127.0.0.1:4317": self.at("jaeger_grpc")})

    def _prometheus(self) -> list:
        assets = self.tools.folder / "root/usr/share/prometheus/web"
        return [
            self.tools.path("prometheus"),
            f"--config.file={self.work}/prometheus.yml",
            f"--storage.tsdb.path={self.work}/prometheus-data",
            f"--web.listen-address={self.at('prometheus')}",
            f"--web.local-assets={assets}",
            "--enable-feature=exemplar-storage",
        ]

    def _alertmanager(self) -> list:
        return [
            self.tools.path("alertmanager"),
            f"--config.file={self.work}/alertmanager.yml",
            f"--storage.path={self.work}/alertmanager-data",
            f"--web.listen-address={self.at('alertmanager')}",
            "--cluster.listen-address=",
        ]

    def _jaeger(self) -> str:
        """The configuration of Jaeger: storage in memory."""
        grpc = {"endpoint": self.at("jaeger_grpc")}
        exporters = {"jaeger_storage_exporter": {"trace_storage": "memory"}}
        return json.dumps({
            "receivers": {"otlp": {"protocols": {"grpc": grpc}}},
            "exporters": exporters,
            "extensions": {
                "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 100000}}}},
                "jaeger_query": {
                    "enable_tracing": False,
                    "storage": {"traces": "memory"},
                    "http": {"endpoint": self.at("jaeger")},
                    "grpc": {"endpoint": self.at("jaeger_query_grpc")},
                },
            },
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": [*exporters]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        })
