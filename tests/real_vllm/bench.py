"""Compares vLLM's load generators with the gateway's access log for each request, and their medians with and
without a gateway."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from answers import TTFT_LIMIT_MS, TTFT_TARGET_MS, check_ttft
from fleet import Fleet
from report import Report, spread
from sdk import MODEL

REQUESTS, TOKENS = 64, 64
PACED = {"request-rate": 8}
CROWDED = {"request-rate": "inf", "max-concurrency": 16}
TPOT_TOLERANCE = 0.01
# The Python load generator shares the cores with the engines and reads many streams late. The Rust load
# generator at the same rate is the accurate measurement.
PYTHON_LIMIT_MS = 40.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class Tool:
    """A load generator with its inputs, and the URL of a gateway in front of the first backend only. The tools in
    Rust (`vllm-rs`) and in Python (`vllm`) have the same command line."""

    program: Path
    tokenizer: Path
    work: Path
    single: str

    async def run(self, base: str, name: str, seed: int, pace: dict) -> dict:
        """Runs the tool. The request ids are `name-0`, `name-1` and so on, in the order of the lists in the result.
        For some seeds the tool generates a prompt that it rejects itself; then the next seed is used."""
        for candidate in range(seed, seed + 5):
            try:
                return await self.run_once(base, name, candidate, pace)
            except ChildProcessError as error:
                if "server verification failed" not in str(error):
                    raise
        raise ChildProcessError(f"the tool rejects its prompts for the seeds from {seed} on")

    async def run_once(self, base: str, name: str, seed: int, pace: dict) -> dict:
        """Runs the tool with one seed."""
        result = self.work / f"bench-{name}.json"
        options = pace | {
            "backend": "openai-chat", "base-url": base, "endpoint": "/v1/chat/completions",
            "model": MODEL, "tokenizer": self.tokenizer, "dataset-name": "random",
            "random-input-len": TOKENS, "random-output-len": TOKENS, "num-prompts": REQUESTS,
            "seed": seed, "request-id-prefix": f"{name}-",
            "result-dir": result.parent, "result-filename": result.name,
        }
        command = [str(self.program), "bench", "serve"]
        command += ["--ignore-eos", "--save-result", "--save-detailed"]
        command += [str(part) for key, value in options.items() for part in (f"--{key}", value)]
        with (self.work / f"bench-{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, env=os.environ | OFFLINE, stdout=log, stderr=log
            )
            if await asyncio.wait_for(process.wait(), 120):
                raise ChildProcessError(Path(log.name).read_text()[-2000:])
        return json.loads(result.read_text())


async def check(fleet: Fleet, report: Report, tools: list[Tool]) -> None:
    """Runs all checks of this module. Each run has its own seed, so that it finds no cache of another run."""
    for number, tool in enumerate(tools):
        name, seed = tool.program.name, 1000 * number
        await check_run(fleet, report, tool, f"{name}-paced", seed + 100, PACED)
        await check_run(fleet, report, tool, f"{name}-crowded", seed + 200, CROWDED)
    tool = tools[0]
    runs = {
        "direct": await tool.run(fleet.backends[0], "direct", 300, PACED),
        "gateway": await tool.run(tool.single, "gateway", 400, PACED),
    }
    for what in ("ttft", "tpot", "e2el"):
        medians = (f"{name} {run[f'median_{what}_ms']:.2f} ms" for name, run in runs.items())
        report.note("bench", f"median {what.upper()}, one backend", ", ".join(medians))


async def check_run(fleet, report, tool: Tool, name: str, seed: int, pace: dict) -> None:
    """Checks counts and times of one run through the gateway."""
    step = f"bench {name}"
    before = await fleet.settled()
    result = await tool.run(fleet.gateway, name, seed, pace)
    counted = (await fleet.settled()).since(before)
    ids = [f"{name}-{number}" for number in range(REQUESTS)]
    lines = await fleet.log.lines_of(ids)
    report.equal(step, "requests without error", result["completed"], REQUESTS)
    tokens, engine = counted.tokens, counted.engine
    output = tokens["output"]
    report.equal(step, "input tokens, gateway = engines", tokens["input"], engine["prompt_tokens"])
    report.equal(step, "output tokens, gateway = engines", output, engine["generation_tokens"])
    report.equal(step, "output tokens, gateway = tool", output, result["total_output_tokens"])
    limit = TTFT_LIMIT_MS if tool.program.name == "vllm-rs" else PYTHON_LIMIT_MS
    check_times(report, step, result, [lines[request_id] for request_id in ids], limit)


def check_times(
    report: Report, step: str, result: dict, lines: list[dict], limit: float
) -> None:
    """Checks the times of each request. The tool's TTFT ends at the role event. The gateway holds it until the first
    output, so both reach the tool at the end of the gateway's TTFT. vLLM can send the role event earlier, since a
    token without text, or one that ends inside a character, has no output."""
    roles = [ttft * 1e3 for ttft in result["ttfts"]]
    waits = [gaps[0] * 1e3 for gaps in result["itls"]]
    differences = [role - line["ttft_ms"] for role, line in zip(roles, lines)]
    check_ttft(report, step, "tool, role event", differences, limit)
    outputs = [role + wait for role, wait in zip(roles, waits)]
    differences = [output - line["ttft_ms"] for output, line in zip(outputs, lines)]
    check_ttft(report, step, "tool, first output", differences, limit)
    held = sum(line["ttft_ms"] - line["first_event_ms"] > TTFT_TARGET_MS for line in lines)
    report.note(step, "role event held by the gateway", f"for more than 2 ms: {held}")
    late = sum(wait > TTFT_TARGET_MS for wait in waits)
    report.note(step, "first output later than the role event", f"by more than 2 ms: {late}")
    check_decode(report, step, result, lines)
    overhead = [line["overhead_us"] / 1e3 for line in lines]
    report.note(step, "gateway overhead in the access log", spread(overhead, digits=3))


def check_decode(report: Report, step: str, result: dict, lines: list[dict]) -> None:
    """Checks the mean TPOT. The gateway has no TPOT for requests during which the tool stopped reading."""
    fields = ("latencies", "ttfts", "output_lens")
    rows = zip(lines, *(result[name] for name in fields))
    rows = [row for row in rows if row[0]["tpot_ms"] is not None]
    report.note(step, "requests with a TPOT", f"{len(rows)} of {len(lines)}")
    gateway = fmean(line["tpot_ms"] for line, *_ in rows)
    tool = fmean((end - first) * 1e3 / (count - 1) for _, end, first, count in rows)
    check_tpot(report, step, "tool", gateway, tool)


def check_tpot(report: Report, step: str, name: str, gateway: float, other: float) -> None:
    """Checks the difference of the mean TPOT of the gateway and of the measurement `name`, in milliseconds."""
    difference, limit = gateway / other - 1, TPOT_TOLERANCE
    shown = f"{gateway:.3f} and {other:.3f} ms, {difference:+.2%}"
    what = f"mean TPOT, gateway and {name} (limit {limit:.0%})"
    report.check(step, what, abs(difference) <= limit, shown)
