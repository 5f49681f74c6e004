"""With a real vLLM: its span is a child of the gateway's attempt, in one trace in Jaeger."""

import asyncio
import json
import os
from pathlib import Path

import traces
from load import Load
from processes import Process
from prometheus import fetch
from report import Report
from servers import free_ports
from stand import Stand

# Enough requests that the collector samples some of them.
REQUESTS = 120
DECISION_SECONDS = 12.0


async def check(stand: Stand, report: Report, scripts: Path) -> None:
    """Starts a backend that sends its spans to the collector, and a gateway in front of it."""
    engine, listen, admin = free_ports(3)
    environment = os.environ | {"OTEL_SERVICE_NAME": "vllm-real", "RUN": str(stand.work)}
    command = [scripts / "serve.sh", engine, "--otlp-traces-endpoint", stand.url("collector_grpc")]
    await run(command, environment)
    config = stand.work / "real.yaml"
    config.write_text(json.dumps({
        "listen": f"127.0.0.1:{listen}",
        "admin": f"127.0.0.1:{admin}",
        "backends": [{"url": f"http://127.0.0.1:{engine}", "name": "real"}],
        "tracing": {"endpoint": stand.url("collector_grpc"), "ratio": 1.0},
    }))
    serve = [stand.tools.gateway, "serve", "--config", config, "--log-format", "json"]
    gateway = Process("real", serve, stand.work)
    try:
        gateway.start()
        await gateway.ready(f"http://127.0.0.1:{admin}/readyz")
        load = Load(("127.0.0.1", listen))
        for _ in range(REQUESTS // 4):
            requests = (load.send(model="tiny", words=5, tokens=8) for _ in range(4))
            statuses = await asyncio.gather(*requests)
        report.check("engine", "a real vLLM answers", statuses == [200] * 4, REQUESTS)
        await asyncio.sleep(DECISION_SECONDS)
        query = {"service": "vllm-real", "operation": "llm_request", "limit": str(REQUESTS)}
        data = (await fetch(f"{stand.url('jaeger')}/api/traces", **query))["data"] or []
        trees = [trace["spans"] for trace in data]
        wrong = [defect for tree in trees if (defect := traces.defect_of(tree))]
        what = "SERVER, inference, attempt, and vLLM's own span"
        report.check("engine", what, trees and not wrong, wrong[:3] or f"{len(trees)} traces")
    finally:
        gateway.stop()
        await run([scripts / "stop.sh", engine], environment)


async def run(command: list, environment: dict) -> None:
    """Runs a script and waits for its end."""
    process = await asyncio.create_subprocess_exec(*map(str, command), env=environment)
    if status := await process.wait():
        raise ChildProcessError(f"{command[0]}: exit status {status}")
