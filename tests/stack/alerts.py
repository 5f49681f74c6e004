"""Each alert fires under its fault, is told to people, and resolves after. None fires without."""

import asyncio
import time

from faults import FAULTS, Fault
from prometheus import Prometheus, fetch
from report import Report
from stand import Stand

FIRES_SECONDS = 90.0
RESOLVES_SECONDS = 150.0


async def check(stand: Stand, prometheus: Prometheus, report: Report, chosen: str) -> None:
    """All faults whose names have a text, one after the other."""
    rules = await prometheus.rules()
    broken = [rule["name"] for rule in rules if rule["health"] == "err"]
    report.check("alerts", "no rule fails", not broken, broken or f"{len(rules)} rules")
    firing = await prometheus.firing()
    report.check("alerts", "none fires without a fault", not firing, named(firing))
    shipped = {rule["name"] for rule in rules if rule["type"] == "alerting"}
    for fault in [fault for fault in FAULTS if chosen in fault.name]:
        await provoke(stand, prometheus, report, fault)
    provoked = frozenset().union(*(fault.alerts for fault in FAULTS))
    unknown = provoked - shipped
    report.check("alerts", "all that are provoked here ship", not unknown, named(unknown))
    report.note("alerts", "left to the unit tests of rules", named(shipped - provoked))


async def provoke(stand: Stand, prometheus: Prometheus, report: Report, fault: Fault) -> None:
    """Begins a fault, waits for its alerts, ends it, and waits until they are over."""
    # What an earlier fault left must not pass for the work of this one.
    await settled(fault, prometheus)
    since = time.time()
    async with fault.begin(stand):
        fired = await reached(fault, FIRES_SECONDS, prometheus.firing)
        fired_in = time.time() - since
        told, untold = set(), fired
        # Alertmanager gathers before it tells.
        while untold and time.time() - since < FIRES_SECONDS + fired_in:
            told = {name for name in fired if stand.webhook.has(name, "firing", since)}
            untold = fired - told - await silenced(stand)
            await asyncio.sleep(0.5)
    ended = time.time()
    missing = fault.alerts - fired
    seen = f"{named(fault.alerts)} in {fired_in:.0f} s" if not missing else f"not {named(missing)}"
    report.check(fault.name, "fires", not missing, seen)
    report.check(fault.name, "is told, or silenced by its cause", not untold, named(told or untold))
    left = await settled(fault, prometheus)
    seen = named(left) if left else f"in {time.time() - ended:.0f} s"
    report.check(fault.name, "resolves", not left, seen)


async def reached(fault: Fault, seconds: float, firing) -> set[str]:
    """Those of its alerts that have fired, at any time in so many seconds."""
    fired, deadline = set(), time.monotonic() + seconds
    while not fault.alerts <= fired and time.monotonic() < deadline:
        fired |= await firing() & fault.alerts
        await asyncio.sleep(0.3)
    return fired


async def settled(fault: Fault, prometheus: Prometheus) -> set[str]:
    """Waits until none of its alerts fires any more. What is left of them."""
    deadline = time.monotonic() + RESOLVES_SECONDS
    while (left := await prometheus.firing() & fault.alerts) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
    return left


async def silenced(stand: Stand) -> set[str]:
    """Alerts about which nobody is told, because another one says it."""
    alerts = await fetch(f"{stand.url('alertmanager')}/api/v2/alerts")
    return {each["labels"]["alertname"] for each in alerts if each["status"]["inhibitedBy"]}


def named(alerts) -> str:
    """Names without what all have."""
    return ", ".join(sorted(name.removeprefix("Tokenweir") for name in alerts)) or "none"
