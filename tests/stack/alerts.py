"""Each alert fires under its fault, is sent to its receiver, and resolves afterwards. No alert fires without a fault."""

import asyncio
import time

from faults import FAULTS, Fault
from prometheus import Prometheus, fetch
from report import Report
from stand import Stand

FIRES_SECONDS = 150.0
RESOLVES_SECONDS = 150.0


async def check(stand: Stand, prometheus: Prometheus, report: Report, selection: str) -> None:
    """Injects all faults whose names contain `selection`, one after the other."""
    rules = await prometheus.rules()
    broken = [rule["name"] for rule in rules if rule["health"] == "err"]
    report.check("alerts", "no rule has an error", not broken, broken or f"{len(rules)} rules")
    firing = await prometheus.firing()
    report.check("alerts", "no alert without a fault", not firing, names_of(firing))
    shipped = {rule["name"] for rule in rules if rule["type"] == "alerting"}
    for fault in [fault for fault in FAULTS if selection in fault.name]:
        await check_fault(stand, prometheus, report, fault)
    covered = frozenset().union(*(fault.alerts for fault in FAULTS))
    unknown = covered - shipped
    report.check("alerts", "all alerts of the faults exist", not unknown, names_of(unknown))
    report.note("alerts", "only covered by the unit tests of rules", names_of(shipped - covered))


async def check_fault(stand: Stand, prometheus: Prometheus, report: Report, fault: Fault) -> None:
    """Injects a fault, waits for its alerts, ends it, and waits until the alerts are resolved."""
    # Alerts of an earlier fault must not count as those of this fault.
    await wait_until_resolved(fault, prometheus)
    since = time.time()
    async with fault.begin(stand):
        fired = await wait_until_fired(fault, FIRES_SECONDS, prometheus.firing)
        fired_in = time.time() - since
        sent, missing_sent = set(), fired
        # Alertmanager waits to group alerts before it sends a notification.
        while missing_sent and time.time() - since < FIRES_SECONDS + fired_in:
            sent = {name for name in fired if stand.webhook.has(name, "firing", since)}
            missing_sent = fired - sent - await inhibited(stand)
            await asyncio.sleep(0.5)
    ended = time.time()
    missing = fault.alerts - fired
    shown = f"{names_of(fault.alerts)} in {fired_in:.0f} s" if not missing else f"not {names_of(missing)}"
    report.check(fault.name, "fires", not missing, shown)
    report.check(fault.name, "is sent or inhibited", not missing_sent, names_of(sent or missing_sent))
    firing = await wait_until_resolved(fault, prometheus)
    shown = names_of(firing) if firing else f"in {time.time() - ended:.0f} s"
    report.check(fault.name, "resolves", not firing, shown)


async def wait_until_fired(fault: Fault, seconds: float, firing) -> set[str]:
    """Waits for the alerts of a fault. Returns the alerts that fired within the timeout."""
    fired, deadline = set(), time.monotonic() + seconds
    while not fault.alerts <= fired and time.monotonic() < deadline:
        fired |= await firing() & fault.alerts
        await asyncio.sleep(0.3)
    return fired


async def wait_until_resolved(fault: Fault, prometheus: Prometheus) -> set[str]:
    """Waits until no alert of a fault fires. Returns the alerts that still fire after the timeout."""
    deadline = time.monotonic() + RESOLVES_SECONDS
    while (firing := await prometheus.firing() & fault.alerts) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
    return firing


async def inhibited(stand: Stand) -> set[str]:
    """Alerts that Alertmanager does not send because another alert inhibits them."""
    alerts = await fetch(f"{stand.url('alertmanager')}/api/v2/alerts")
    return {alert["labels"]["alertname"] for alert in alerts if alert["status"]["inhibitedBy"]}


def names_of(alerts) -> str:
    """Names of alerts without their common prefix."""
    return ", ".join(sorted(name.removeprefix("Tokenweir") for name in alerts)) or "none"
