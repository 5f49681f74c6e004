"""Compares AIPerf, a load generator independent of vLLM, with the gateway's access log, for each request.
Both define TTFT by the first text."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from answers import check_ttft
from bench import check_tpot
from fleet import Fleet
from report import Report
from sdk import MODEL

REQUESTS, TOKENS, CLIENTS = 64, 64, 4
SECONDS = 180
FIXED = json.dumps({"ignore_eos": True, "min_tokens": TOKENS})


@dataclass(frozen=True)
class Tool:
    """The program and its inputs."""

    program: Path
    tokenizer: Path
    work: Path

    async def run(self, base: str) -> list[dict]:
        """Runs the load. Returns the tool's record of each request."""
        folder = self.work / "aiperf"
        options = {
            "url": base, "model": MODEL, "endpoint-type": "chat", "tokenizer": self.tokenizer,
            "synthetic-input-tokens-mean": TOKENS, "output-tokens-mean": TOKENS,
            "extra-inputs": FIXED, "request-count": REQUESTS, "concurrency": CLIENTS,
            "workers-max": 1, "random-seed": 7, "ui": "none", "artifact-dir": folder,
        }
        command = [str(self.program), "profile", "--streaming"]
        command += ["--no-server-metrics", "--no-gpu-telemetry"]
        command += [str(part) for key, value in options.items() for part in (f"--{key}", value)]
        with (self.work / "aiperf.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
            if await asyncio.wait_for(process.wait(), SECONDS):
                raise ChildProcessError(Path(log.name).read_text()[-2000:])
        records = (folder / "profile_export.jsonl").read_text().splitlines()
        return [json.loads(record) for record in records]


async def check(fleet: Fleet, report: Report, tool: Tool) -> None:
    """Runs all checks of this module."""
    step, before = "aiperf", await fleet.settled()
    records = await tool.run(fleet.gateway)
    counted = (await fleet.settled()).since(before)
    by_id = await fleet.log.lines_of([record["metadata"]["x_request_id"] for record in records])
    lines = [by_id[record["metadata"]["x_request_id"]] for record in records]
    report.equal(step, "requests", len(records), REQUESTS)
    output, engine = counted.tokens["output"], counted.engine["generation_tokens"]
    tool_output = sum(metric(records, "usage_completion_tokens"))
    report.equal(step, "output tokens, gateway = engines", output, engine)
    report.equal(step, "output tokens, gateway = tool", output, tool_output)
    pairs = zip(metric(records, "time_to_first_token"), lines)
    check_ttft(report, step, "tool", [tool - line["ttft_ms"] for tool, line in pairs])
    times = zip((line["tpot_ms"] for line in lines), metric(records, "inter_token_latency"))
    known = [(gateway, tool) for gateway, tool in times if gateway is not None]
    report.note(step, "requests with a TPOT", f"{len(known)} of {len(lines)}")
    check_tpot(report, step, "tool", *(fmean(side) for side in zip(*known)))


def metric(records: list[dict], name: str) -> list[float]:
    """One metric of every request."""
    return [record["metrics"][name]["value"] for record in records]
