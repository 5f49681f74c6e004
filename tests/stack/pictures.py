"""Screenshots of Prometheus and Phoenix, with Chromium. Jaeger's API serves no pages."""

import asyncio
import urllib.parse
from pathlib import Path

from report import Report
from stand import Stand

LIMIT_SECONDS = 60.0
ALERTS = 'sum by (alertname) (ALERTS{alertstate="firing"})'


def alerts_page(stand: Stand, minutes: int) -> str:
    """The URL of a Prometheus graph of the firing alerts."""
    parameters = {"g0.expr": ALERTS, "g0.tab": "0", "g0.stacked": "1", "g0.range_input": f"{minutes}m"}
    return f"{stand.url('prometheus')}/classic/graph?{urllib.parse.urlencode(parameters)}"


def trace_page(stand: Stand, trace_id: str) -> str:
    """The URL of a trace in Phoenix."""
    return f"{stand.url('phoenix')}/redirects/traces/{trace_id}"


async def take(stand: Stand, report: Report, folder: Path, name: str, page: str) -> None:
    """Takes a screenshot of a page after its scripts have run."""
    browser = stand.tools.path("chromium")
    if not browser.exists():
        report.note("screenshots", name, "skipped: no Chromium")
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.png"
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--window-size=1280,1000", "--virtual-time-budget=15000",
        f"--user-data-dir={stand.work / 'chromium'}", f"--screenshot={file}", page,
    ]
    with (stand.work / "chromium.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*map(str, command), stdout=log, stderr=log)
        try:
            await asyncio.wait_for(process.wait(), LIMIT_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
    report.note("screenshots", name, f"{file.stat().st_size} bytes" if file.exists() else "none")
