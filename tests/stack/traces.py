"""Exemplars: each exemplar in Prometheus is a trace in Jaeger."""

import asyncio
import json
import time

from prometheus import Prometheus, fetch
from report import Report
from stand import Stand

HISTOGRAMS = (
    "gen_ai_server_time_to_first_token_seconds_bucket",
    "gen_ai_server_request_duration_seconds_bucket",
)
FOLLOWED = 20
SLOW_SECONDS = 8.0
WAIT_SECONDS = 30.0
CHAIN = ["server", "client", "client"]
"""The kinds of the spans of the gateway: the request, the inference and the attempt."""


async def check(stand: Stand, prometheus: Prometheus, report: Report) -> None:
    """Makes some requests slow and checks the exemplars of each histogram. Older exemplars do not count: a fault stopped
    the collector, so their traces may be lost."""
    begin = time.time()
    stand.relays[0].delay = stand.relays[1].delay = 1.5
    await asyncio.sleep(SLOW_SECONDS)
    stand.relays[0].delay = stand.relays[1].delay = 0.0
    # Waits for the next scrape and for the sampling decision of the Collector.
    await asyncio.sleep(10.0)
    for histogram in HISTOGRAMS:
        exemplars = await prometheus.exemplars(histogram, begin, time.time())
        step = histogram.removeprefix("gen_ai_server_").removesuffix("_seconds_bucket")
        await follow(stand, report, step, list({exemplar["labels"]["trace_id"] for exemplar in exemplars}))


async def follow(stand: Stand, report: Report, step: str, ids: list[str]) -> None:
    """Checks the traces in Jaeger."""
    reasons = sampling_reasons(stand)
    followed = [trace_id for trace_id in ids if trace_id in reasons][-FOLLOWED:]
    report.check(step, "exemplars are of sampled traces", set(ids) <= reasons.keys(), len(ids))
    trees = await asyncio.gather(*(spans_of(stand, trace_id, WAIT_SECONDS) for trace_id in followed))
    present = [tree for tree in trees if tree]
    missing = {trace_id: reasons[trace_id] for trace_id, tree in zip(followed, trees) if not tree}
    report.check(
        step,
        "each trace is in Jaeger",
        followed and not missing,
        f"not {missing}" if missing else f"{len(present)}: {sorted({reasons[trace_id] for trace_id in followed})}",
    )
    wrong = [defect for tree in present if (defect := defect_of(tree))]
    complete = sum(any(is_engine(span) for span in tree) for tree in present)
    report.check(step, "SERVER, inference, attempt", not wrong, wrong[:3] or len(present))
    report.check(step, "with the engine's span below", complete > 0, f"in {complete}")


def sampling_reasons(stand: Stand) -> dict[str, str]:
    """The sampling reason of each trace, from the access log."""
    lines = map(json.loads, stand.processes["gateway"].output.read_text().splitlines())
    return {line["trace_id"]: line["sample_reason"] for line in lines if line.get("sample_reason")}


async def spans_of(stand: Stand, trace_id: str, seconds: float) -> list[dict] | None:
    """Waits for a trace in Jaeger. Returns its spans, or `None` after the timeout."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            document = await fetch(f"{stand.url('jaeger')}/api/traces/{trace_id}")
            return document["data"][0]["spans"]
        except LookupError:
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(1.0)


def defect_of(spans: list[dict]) -> str | None:
    """The defect of the spans of one request, as text. The engine has no span for an aborted request."""
    by_id = {span["spanID"]: span for span in spans}
    roots = [span for span in spans if parent_of(span) not in by_id]
    if [kind(root) for root in roots] != ["server"]:
        return f"{spans[0]['traceID']}: the roots are {names(roots)}"
    for span in spans:
        is_attempt = tag(span, "tokenweir.backend.id") is not None and kind(span) == "client"
        is_leaf = span["spanID"] not in {parent_of(other) for other in spans}
        if not is_engine(span) and not (is_attempt and is_leaf):
            continue
        chain = [span]
        while (parent := by_id.get(parent_of(chain[0]))) is not None:
            chain.insert(0, parent)
        expected = [*CHAIN, "server"] if is_engine(span) else CHAIN
        if [kind(link) for link in chain] != expected:
            return f"{span['traceID']}: {names(chain)}"
    return None


def is_engine(span: dict) -> bool:
    """Whether the span is of vLLM."""
    return span["operationName"] == "llm_request"


def names(spans: list[dict]) -> list[str]:
    """The names of the spans."""
    return [span["operationName"] for span in spans]


def parent_of(span: dict) -> str | None:
    """The id of the parent span."""
    references = [reference for reference in span["references"] if reference["refType"] == "CHILD_OF"]
    return references[0]["spanID"] if references else None


def tag(span: dict, key: str) -> object:
    """An attribute of a span."""
    return next((entry["value"] for entry in span["tags"] if entry["key"] == key), None)


def kind(span: dict) -> object:
    """The kind of a span."""
    return tag(span, "span.kind")
