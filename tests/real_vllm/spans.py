"""Checks that the spans of gateway and engine, received by one collector, form one tree."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from fleet import Fleet
from report import Report, show
from sdk import Request, Sdk

SERVER, CLIENT = 2, 3
WAIT_SECONDS = 20.0


async def check(fleet: Fleet, report: Report, path: Path) -> None:
    """The engine's span of each request is a child of the gateway's span of the attempt."""
    sdk, body = Sdk(fleet.gateway, "traced"), {"temperature": 0, "max_tokens": 20}
    apis = ("chat", "completions", "responses")
    requests = [Request(api, "count", stream, body) for api in apis for stream in (False, True)]
    ids = [(await sdk.send(request)).request_id for request in requests * 3]
    lines = await fleet.log.lines_of(ids)
    traces = [line.get("trace_id") for line in lines.values()]
    report.check("traces", "each line has a trace id", all(traces), len(traces))
    spans = await wait_for_spans(path, set(traces), {"llm_request", "SERVER"})
    by_trace = {trace: [span for span in spans if span["trace_id"] == trace] for trace in traces}
    wrong = [text for trace, tree in by_trace.items() for text in flaws(trace, tree)]
    shown = "; ".join(wrong[:3]) or len(traces)
    report.check("traces", "engine span under the gateway's attempt", not wrong, shown)
    results = fleet.page().by("tokenweir_otel_spans_total", "result")
    dropped = results["failed"] + results["filtered"]
    report.check("traces", "no span dropped", dropped == 0, show(results))


async def wait_for_spans(path: Path, traces: set[str], needed: set[str]) -> list[dict]:
    """Waits until each trace has the needed kinds of spans, or until the timeout. Returns all spans."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        spans = read(path)
        complete = Counter()
        for trace in traces:
            kinds = {kind for span in spans if span["trace_id"] == trace for kind in kinds_of(span)}
            complete[needed <= kinds] += 1
        if not complete[False] or time.monotonic() > deadline:
            return spans
        await asyncio.sleep(1)


def read(path: Path) -> list[dict]:
    """The spans that the collector has written so far. An incomplete file counts as empty."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []


def kinds_of(span: dict) -> set[str]:
    """The name of a span, and SERVER for the root span of the gateway."""
    is_root = span["kind"] == SERVER and span["scope"] == "tokenweir"
    return {span["name"], "SERVER" if is_root else ""}


def flaws(trace: str, tree: list[dict]) -> list[str]:
    """The defects of the spans of one request, as text."""
    engine = [span for span in tree if span["name"] == "llm_request"]
    gateway = {span["span_id"]: span for span in tree if span["scope"] == "tokenweir"}
    if len(engine) != 1:
        return [f"{trace}: {len(engine)} spans of the engine"]
    attempt = gateway.get(engine[0]["parent_span_id"])
    if attempt is None or "tokenweir.backend.id" not in attempt["attributes"]:
        return [f"{trace}: the parent of the engine's span is not an attempt"]
    chain = [attempt]
    while chain[-1]["parent_span_id"] in gateway:
        chain.append(gateway[chain[-1]["parent_span_id"]])
    if [span["kind"] for span in chain] != [CLIENT, CLIENT, SERVER]:
        return [f"{trace}: the ancestors are {[span['name'] for span in chain]}"]
    engine_tokens = engine[0]["attributes"].get("gen_ai.usage.completion_tokens")
    tokens = chain[1]["attributes"].get("gen_ai.usage.output_tokens")
    return [] if tokens == engine_tokens else [f"{trace}: output tokens {tokens}, engine {engine_tokens}"]
