"""A load generator that is not vLLM's: what AIPerf measured of each request against the gateway's
line. Its time begins at the first text, so that both mean the same."""

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
    """The program and what it needs."""

    program: Path
    tokenizer: Path
    work: Path

    async def run(self, base: str) -> list[dict]:
        """What it wrote of each request."""
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
    """Everything of this module."""
    step, before = "aiperf", await fleet.settled()
    records = await tool.run(fleet.gateway)
    counted = (await fleet.settled()).since(before)
    found = await fleet.log.of([record["metadata"]["x_request_id"] for record in records])
    lines = [found[record["metadata"]["x_request_id"]] for record in records]
    report.equal(step, "requests", len(records), REQUESTS)
    output, engine = counted.tokens["output"], counted.engine["generation_tokens"]
    at_tool = sum(each(records, "usage_completion_tokens"))
    report.equal(step, "output tokens, gateway = engines", output, engine)
    report.equal(step, "output tokens, gateway = tool", output, at_tool)
    pairs = zip(each(records, "time_to_first_token"), lines)
    check_ttft(report, step, "tool", [theirs - line["ttft_ms"] for theirs, line in pairs])
    times = zip((line["tpot_ms"] for line in lines), each(records, "inter_token_latency"))
    known = [(own, theirs) for own, theirs in times if own is not None]
    report.note(step, "requests with a time per token", f"{len(known)} of {len(lines)}")
    check_tpot(report, step, "tool", *(fmean(side) for side in zip(*known)))


def each(records: list[dict], name: str) -> list[float]:
    """One number of every request."""
    return [record["metrics"][name]["value"] for record in records]
