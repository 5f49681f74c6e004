"""Arize Phoenix gets the same spans, and reads tokens and the time to first token in them."""

import asyncio
import time

from prometheus import fetch
from report import Report
from stand import Stand

FIRST_TOKEN_EVENT = "First Token Stream Event"
TTFT_ATTRIBUTE = "gen_ai.response.time_to_first_chunk"
WAIT_SECONDS = 40.0
PAGES = 20


async def check(stand: Stand, report: Report) -> None:
    """Looks at the spans of inferences that it has."""
    if not stand.tools.phoenix:
        report.note("phoenix", "skipped", "it is not installed")
        return
    spans, deadline = [], time.monotonic() + WAIT_SECONDS
    while not spans and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        spans = [span for span in await everything(stand) if span["name"].startswith("chat ")]
    report.check("phoenix", "has spans of inferences", bool(spans), len(spans))
    is_read = [span["span_kind"].lower() == "llm" for span in spans]
    report.check("phoenix", "reads them as an LLM's", spans and all(is_read), sum(is_read))
    counts = [span["attributes"].get("llm.token_count.completion") for span in spans]
    report.check("phoenix", "has their output tokens", any(counts), sum(map(bool, counts)))
    first = [span for span in spans if has_first_token(span)]
    report.check("phoenix", "has the first token", bool(first), f"of {len(first)}")


async def everything(stand: Stand) -> list[dict]:
    """The spans of some minutes: those of a fault may be many, and have no tokens."""
    url = f"{stand.url('phoenix')}/v1/projects/default/spans"
    spans, more = [], {}
    try:
        for _ in range(PAGES):
            page = await fetch(url, limit="1000", **more)
            spans += page["data"]
            if not page.get("next_cursor"):
                break
            more = {"cursor": page["next_cursor"]}
    except LookupError:
        pass  # The project is there when its first span is.
    return spans


def has_first_token(span: dict) -> bool:
    """Whether it says when the first token came."""
    events = {event["name"] for event in span.get("events", ())}
    return FIRST_TOKEN_EVENT in events and TTFT_ATTRIBUTE in span["attributes"]
