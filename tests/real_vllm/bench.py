"""vLLM's own load generators through the gateway: what they measured of each request against the
gateway's line, and medians against those without a gateway."""

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
# A tool in Python that shares the cores with the engines reads many streams late. What the one in
# Rust sees at the same pace is what counts.
PYTHON_LIMIT_MS = 40.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class Tool:
    """A load generator, what it needs, and a gateway before the first replica only. The one in
    Rust (`vllm-rs`) and the one in Python (`vllm`) are called alike."""

    program: Path
    tokenizer: Path
    work: Path
    single: str

    async def run(self, base: str, name: str, seed: int, pace: dict) -> dict:
        """One run. Its requests are called `name-0`, `name-1` and so on, in the order of the
        lists. Of some seeds the tool makes a prompt that it rejects before it sends any."""
        for each in range(seed, seed + 5):
            try:
                return await self.run_once(base, name, each, pace)
            except ChildProcessError as error:
                if "server verification failed" not in str(error):
                    raise
        raise ChildProcessError(f"the tool makes no prompts from seed {seed} on")

    async def run_once(self, base: str, name: str, seed: int, pace: dict) -> dict:
        """One run with one seed."""
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
    """Everything of this module. Each run has a seed of its own, so that none finds the cache
    of another."""
    for number, tool in enumerate(tools):
        name, seed = tool.program.name, 1000 * number
        await check_run(fleet, report, tool, f"{name}-paced", seed + 100, PACED)
        await check_run(fleet, report, tool, f"{name}-crowded", seed + 200, CROWDED)
    tool = tools[0]
    runs = {
        "straight": await tool.run(fleet.replicas[0], "straight", 300, PACED),
        "gateway": await tool.run(tool.single, "gateway", 400, PACED),
    }
    for what in ("ttft", "tpot", "e2el"):
        medians = (f"{name} {run[f'median_{what}_ms']:.2f} ms" for name, run in runs.items())
        report.note("bench", f"median {what.upper()}, one replica", ", ".join(medians))


async def check_run(fleet, report, tool: Tool, name: str, seed: int, pace: dict) -> None:
    """One run through the gateway: counts and times."""
    step = f"bench {name}"
    before = await fleet.settled()
    result = await tool.run(fleet.gateway, name, seed, pace)
    counted = (await fleet.settled()).since(before)
    ids = [f"{name}-{number}" for number in range(REQUESTS)]
    lines = await fleet.log.of(ids)
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
    """Times of each request. The tool's first token is the role event, which vLLM holds back until
    then: the gateway's first event. A token that ends inside a character has no output yet: the
    tool's first gap leads to the first output, where the gateway's time to first token ends."""
    roles = [ttft * 1e3 for ttft in result["ttfts"]]
    waits = [gaps[0] * 1e3 for gaps in result["itls"]]
    apart = [role - line["first_event_ms"] for role, line in zip(roles, lines)]
    check_ttft(report, step, "tool, role event", apart, limit)
    outputs = [role + wait for role, wait in zip(roles, waits)]
    apart = [output - line["ttft_ms"] for output, line in zip(outputs, lines)]
    check_ttft(report, step, "tool, first output", apart, limit)
    far = sum(wait > TTFT_TARGET_MS for wait in waits)
    report.note(step, "first output later than the role event", f"by 2 ms and more: {far}")
    check_decode(report, step, result, lines)
    overhead = [line["overhead_us"] / 1e3 for line in lines]
    report.note(step, "gateway overhead by its own line", spread(overhead, digits=3))


def check_decode(report: Report, step: str, result: dict, lines: list[dict]) -> None:
    """Mean times per token, of requests that the tool did not hold up itself: the gateway has no
    such time for those."""
    fields = ("latencies", "ttfts", "output_lens")
    rows = zip(lines, *(result[name] for name in fields))
    rows = [row for row in rows if row[0]["tpot_ms"] is not None]
    report.note(step, "requests with a time per token", f"{len(rows)} of {len(lines)}")
    own = fmean(line["tpot_ms"] for line, *_ in rows)
    theirs = fmean((end - first) * 1e3 / (count - 1) for _, end, first, count in rows)
    check_tpot(report, step, "tool", own, theirs)


def check_tpot(report: Report, step: str, other: str, own: float, theirs: float) -> None:
    """Mean times per output token, in milliseconds."""
    off, limit = own / theirs - 1, TPOT_TOLERANCE
    seen = f"{own:.3f} and {theirs:.3f} ms, {off:+.2%}"
    what = f"mean TPOT, gateway and {other} (limit {limit:.0%})"
    report.check(step, what, abs(off) <= limit, seen)
