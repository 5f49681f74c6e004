"""Every query of every dashboard has data, once everything has happened."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus import Prometheus
from report import Report

# What Grafana puts in place of its own variables. All others stand for everything.
KNOWN = {"__rate_interval": "15s", "__interval": "5s", "__range": "2m", "__interval_ms": "5000"}
VARIABLE = re.compile(r"\$\{?(\w+)(?::\w+)?\}?")


async def check(folder: Path, prometheus: Prometheus, report: Report, begin: float) -> None:
    """Evaluates the queries over the whole run."""
    now, silent, count = time.time(), [], 0
    for file in sorted(folder.rglob("*.json")):
        for title, query in queries(json.loads(file.read_text())):
            count += 1
            try:
                series = await prometheus.series(substituted(query), begin, now, 5.0)
            except LookupError as error:
                series, title = 0, f"{title}: {error}"
            if not series:
                silent.append(f"{file.stem}: {title}: {' '.join(query.split())[:200]}")
    for query in silent:
        report.note("dashboards", "no data", query)
    report.check("dashboards", "every query has data", count and not silent, f"{count} queries")


def queries(part: object, title: str = "") -> Iterator[tuple[str, str]]:
    """All queries in a dashboard, with the titles of their panels."""
    if isinstance(part, dict):
        title = part.get("title") or title
        if isinstance(part.get("expr"), str):
            yield title, part["expr"]
    children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for child in children:
        yield from queries(child, title)


def substituted(query: str) -> str:
    """The query as Grafana sends it with everything chosen."""
    return VARIABLE.sub(lambda found: KNOWN.get(found[1], ".*"), query)
