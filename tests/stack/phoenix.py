"""Arize Phoenix gets the same spans and reads token counts and TTFT from them."""

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
    """Checks the spans of inferences in Phoenix."""
    if not stand.tools.phoenix:
        report.note("phoenix", "skipped", "not installed")
        return
    spans, deadline = [], time.monotonic() + WAIT_SECONDS
    while not spans and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        spans = [span for span in await all_spans(stand) if span["name"].startswith("chat ")]
    report.check("phoenix", "has spans of inferences", bool(spans), len(spans))
    is_llm = [span["span_kind"].lower() == "llm" for span in spans]
    report.check("phoenix", "their kind is LLM", spans and all(is_llm), sum(is_llm))
    counts = [span["attributes"].get("llm.token_count.completion") for span in spans]
    report.check("phoenix", "has output tokens", any(counts), sum(map(bool, counts)))
    first = [span for span in spans if has_first_token(span)]
    report.check("phoenix", "has the first token", bool(first), f"{len(first)} spans")


async def all_spans(stand: Stand) -> list[dict]:
    """The spans of several pages. A fault can produce many spans without tokens, so one page is not enough."""
    url = f"{stand.url('phoenix')}/v1/projects/default/spans"
    spans, cursor = [], {}
    try:
        for _ in range(PAGES):
            page = await fetch(url, limit="1000", **cursor)
            spans += page["data"]
            if not page.get("next_cursor"):
                break
            cursor = {"cursor": page["next_cursor"]}
    except LookupError:
        pass  # Phoenix creates the project with the first span.
    return spans


def has_first_token(span: dict) -> bool:
    """Whether the span has the time of the first token."""
    events = {event["name"] for event in span.get("events", ())}
    return FIRST_TOKEN_EVENT in events and TTFT_ATTRIBUTE in span["attributes"]
