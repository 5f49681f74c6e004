"""Every query of every dashboard has data after all faults."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus import Prometheus
from report import Report

# The values of Grafana's built-in variables. Every other variable of a query is replaced by `.*`.
KNOWN = {"__rate_interval": "15s", "__interval": "5s", "__range": "2m", "__interval_ms": "5000"}
VARIABLE = re.compile(r"\$\{?(\w+)(?::\w+)?\}?")


async def check(folder: Path, prometheus: Prometheus, report: Report, begin: float) -> None:
    """Evaluates the queries over the whole run."""
    now, empty, count = time.time(), [], 0
    for file in sorted(folder.rglob("*.json")):
        for title, query in queries(json.loads(file.read_text())):
            count += 1
            try:
                series = await prometheus.series(substituted(query), begin, now, 5.0)
            except LookupError as error:
                series, title = 0, f"{title}: {error}"
            if not series:
                empty.append(f"{file.stem}: {title}: {' '.join(query.split())[:200]}")
    for query in empty:
        report.note("dashboards", "no data", query)
    report.check("dashboards", "every query has data", count and not empty, f"{count} queries")


def queries(part: object, title: str = "") -> Iterator[tuple[str, str]]:
    """(title of the panel, query) for all queries of a dashboard."""
    if isinstance(part, dict):
        title = part.get("title") or title
        if isinstance(part.get("expr"), str):
            yield title, part["expr"]
    children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for child in children:
        yield from queries(child, title)


def substituted(query: str) -> str:
    """The query as Grafana sends it if `All` is selected for every variable."""
    return VARIABLE.sub(lambda match: KNOWN.get(match[1], ".*"), query)
