#!/usr/bin/env python3
"""Starts the whole observability stack, generates load and faults, and checks the telemetry.

Exit code 1: a check failed. ../stack.sh calls this script.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import alerts
import dashboards
import traces
from prometheus import Prometheus
from report import Report
from stand import Stand, Tools

BASELINE_CLIENTS = 8
STEPS = ("alerts", "traces", "dashboards")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--gateway", required=True, type=Path, help="the program of the gateway")
    add("--tools", required=True, type=Path, help="the folder of install.sh")
    add("--work", required=True, type=Path, help="a folder for logs and data")
    add("--dashboards", required=True, type=Path, help="the folder of the shipped dashboards")
    add("--time-divisor", type=float, default=30.0, help="divisor of the windows of rules")
    add("--only", default=",".join(STEPS), help="steps, separated by commas")
    add("--fault", default="", help="only faults whose names contain this text")
    add("--gateway-only", action="store_true", help="Prometheus scrapes no backend")
    return parser.parse_args()


async def main() -> int:
    args = arguments()
    report, only = Report(), args.only.split(",")
    stand = Stand(Tools(args.tools, args.gateway), args.work, args.time_divisor, args.gateway_only)
    if not stand.tools.has_jaeger:
        only = [step for step in only if step in ("alerts", "dashboards")]
        report.note("traces", "skipped", "Jaeger is not installed")
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await stand.start()
        begin = time.time()
        prometheus = Prometheus(stand.url("prometheus"))
        stand.load.start(BASELINE_CLIENTS)
        stand.load.start(1, usage={"include_usage": True, "continuous_usage_stats": True})
        stand.load.start(1, stream=False)
        # Some rules compare a value with its value an hour ago.
        await asyncio.sleep((1.2 * 3600 if "alerts" in only else 600) / args.time_divisor)
        steps = {
            "alerts": lambda: alerts.check(stand, prometheus, report, args.fault),
            "traces": lambda: traces.check(stand, prometheus, report),
            "dashboards": lambda: dashboards.check(args.dashboards, prometheus, report, begin),
        }
        report.note("machine", "load average before", os.getloadavg())
        for name in [name for name in steps if name in only]:
            try:
                await steps[name]()
            except Exception:
                traceback.print_exc()
                report.check(name, "the step completed", False)
        report.note("machine", "load average after", os.getloadavg())
        await stand.load.stop()
    finally:
        stand.end()
    report.print()
    return int(report.failed())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
