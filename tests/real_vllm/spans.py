"""The spans of the gateway and of the engine, as one collector got them: one tree."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from fleet import Fleet
from report import Report, show
from sdk import Ask, Sdk

SERVER, CLIENT = 2, 3
WAIT_SECONDS = 20.0


async def check(fleet: Fleet, report: Report, path: Path) -> None:
    """The engine's span of each answer hangs under the gateway's attempt to get it."""
    sdk, body = Sdk(fleet.gateway, "traced"), {"temperature": 0, "max_tokens": 20}
    shapes = ("chat", "completions", "responses")
    asks = [Ask(api, "count", stream, body) for api in shapes for stream in (False, True)]
    ids = [(await sdk.ask(ask)).request_id for ask in asks * 3]
    lines = await fleet.log.of(ids)
    traces = [line.get("trace_id") for line in lines.values()]
    report.check("traces", "each line names its trace", all(traces), len(traces))
    spans = await arrived(path, set(traces), {"llm_request", "SERVER"})
    by_trace = {trace: [span for span in spans if span["trace_id"] == trace] for trace in traces}
    wrong = [text for trace, tree in by_trace.items() for text in flaws(trace, tree)]
    shown = "; ".join(wrong[:3]) or len(traces)
    report.check("traces", "engine span under the gateway's attempt", not wrong, shown)
    results = fleet.page().by("tokenweir_otel_spans_total", "result")
    lost = results["failed"] + results["filtered"]
    report.check("traces", "no span lost", lost == 0, show(results))


async def arrived(path: Path, traces: set[str], needed: set[str]) -> list[dict]:
    """The spans, once each trace has the needed kinds, or the wait is over."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        spans = read(path)
        have = Counter()
        for trace in traces:
            kinds = {kind for span in spans if span["trace_id"] == trace for kind in kinds_of(span)}
            have[needed <= kinds] += 1
        if not have[False] or time.monotonic() > deadline:
            return spans
        await asyncio.sleep(1)


def read(path: Path) -> list[dict]:
    """What the collector has written so far. It may be in the middle of it."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []


def kinds_of(span: dict) -> set[str]:
    """What a trace must have before it can be judged: the engine's span, and the gateway's root."""
    is_root = span["kind"] == SERVER and span["scope"] == "tokenweir"
    return {span["name"], "SERVER" if is_root else ""}


def flaws(trace: str, tree: list[dict]) -> list[str]:
    """What is wrong with the spans of one request, in words."""
    engine = [span for span in tree if span["name"] == "llm_request"]
    ours = {span["span_id"]: span for span in tree if span["scope"] == "tokenweir"}
    if len(engine) != 1:
        return [f"{trace}: {len(engine)} spans of the engine"]
    attempt = ours.get(engine[0]["parent_span_id"])
    if attempt is None or "tokenweir.backend.id" not in attempt["attributes"]:
        return [f"{trace}: the parent of the engine's span is not an attempt"]
    chain = [attempt]
    while chain[-1]["parent_span_id"] in ours:
        chain.append(ours[chain[-1]["parent_span_id"]])
    if [span["kind"] for span in chain] != [CLIENT, CLIENT, SERVER]:
        return [f"{trace}: the chain above is {[span['name'] for span in chain]}"]
    theirs = engine[0]["attributes"].get("gen_ai.usage.completion_tokens")
    own = chain[1]["attributes"].get("gen_ai.usage.output_tokens")
    return [] if own == theirs else [f"{trace}: output tokens {own}, engine {theirs}"]
