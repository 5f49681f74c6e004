"""From a bucket of a histogram to the request: an exemplar of Prometheus is a trace of Jaeger."""

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
"""The gateway's spans from the root to the attempt, by kind."""


async def check(stand: Stand, prometheus: Prometheus, report: Report) -> None:
    """Makes some requests slow, and follows exemplars of each histogram. Older ones may be of
    traces that were lost, because a fault was that the collector was gone."""
    begin = time.time()
    stand.relays[0].delay = stand.relays[1].delay = 1.5
    await asyncio.sleep(SLOW_SECONDS)
    stand.relays[0].delay = stand.relays[1].delay = 0.0
    # The next scrape, and the collector's decision.
    await asyncio.sleep(10.0)
    for histogram in HISTOGRAMS:
        found = await prometheus.exemplars(histogram, begin, time.time())
        step = histogram.removeprefix("gen_ai_server_").removesuffix("_seconds_bucket")
        await follow(stand, report, step, list({each["labels"]["trace_id"] for each in found}))


async def follow(stand: Stand, report: Report, step: str, ids: list[str]) -> None:
    """Looks for the traces in Jaeger."""
    kept = reasons(stand)
    followed = [each for each in ids if each in kept][-FOLLOWED:]
    report.check(step, "exemplars name traces that were kept", set(ids) <= kept.keys(), len(ids))
    trees = await asyncio.gather(*(trace(stand, each, WAIT_SECONDS) for each in followed))
    found = [tree for tree in trees if tree]
    lost = {each: kept[each] for each, tree in zip(followed, trees) if not tree}
    report.check(
        step,
        "each is in Jaeger",
        followed and not lost,
        f"not {lost}" if lost else f"{len(found)}: {sorted({kept[each] for each in followed})}",
    )
    wrong = [flaw for tree in found if (flaw := flaw_of(tree))]
    whole = sum(any(is_engine(span) for span in tree) for tree in found)
    report.check(step, "SERVER, inference, attempt", not wrong, wrong[:3] or len(found))
    report.check(step, "and the engine's span below", whole > 0, f"in {whole}")


def reasons(stand: Stand) -> dict[str, str]:
    """Why the gateway kept each trace, by its access log."""
    lines = map(json.loads, stand.process("gateway").output.read_text().splitlines())
    return {line["trace_id"]: line["kept"] for line in lines if line.get("kept")}


async def trace(stand: Stand, trace_id: str, seconds: float) -> list[dict] | None:
    """The spans of a trace, if Jaeger has it in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            document = await fetch(f"{stand.url('jaeger')}/api/traces/{trace_id}")
            return document["data"][0]["spans"]
        except LookupError:
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(1.0)


def flaw_of(spans: list[dict]) -> str | None:
    """What is wrong with the tree of one request, in words. The engine has no span of a request
    that was given up."""
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
        if [kind(each) for each in chain] != expected:
            return f"{span['traceID']}: {names(chain)}"
    return None


def is_engine(span: dict) -> bool:
    """Whether it is vLLM's own."""
    return span["operationName"] == "llm_request"


def names(spans: list[dict]) -> list[str]:
    """What the spans are called."""
    return [span["operationName"] for span in spans]


def parent_of(span: dict) -> str | None:
    """The id of the span that it is a child of."""
    references = [each for each in span["references"] if each["refType"] == "CHILD_OF"]
    return references[0]["spanID"] if references else None


def tag(span: dict, key: str) -> object:
    """One of its attributes."""
    return next((each["value"] for each in span["tags"] if each["key"] == key), None)


def kind(span: dict) -> object:
    """Which side of a call it is."""
    return tag(span, "span.kind")
