#!/usr/bin/env python3
"""Checks a gateway in front of two real vLLM servers, step by step, and prints a table.

Exit code 1: a check failed. ../real_vllm.sh starts the backends that this script needs.
"""

import argparse
import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path

import answers
import bench
import faults
import frozen
import merged
import mixed
import official_sdks
import pathologies
import phases
import results
import spans
import transparency
import usage
from fleet import FRONT_ENDS, Fleet
from report import Report
from rig import Rig


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--backend", required=True, action="append", help="URL of a backend; repeatable")
    add("--work", required=True, type=Path, help="a folder for results")
    add("--bench", type=Path, action="append", help="a load generator: vllm-rs, vllm, or both")
    add("--tokenizer", type=Path, help="the folder of the model, for load generators")
    add("--spans", type=Path, help="the JSON file to which a collector writes spans")
    add("--program", required=True, type=Path, help="the program of the gateway")
    add("--engine", required=True, type=Path, help="the folder with serve.sh and stop.sh")
    add("--run", required=True, type=Path, help="the folder with the process ids of the backends")
    add("--front-end", required=True, choices=FRONT_ENDS, help="the HTTP server of the backends")
    add("--faults", action="store_true", help="also start backends and inject faults")
    add("--kill", action="store_true", help="also kill and restart a backend of the fleet")
    add("--only", help="runs only these steps, comma-separated")
    return parser.parse_args()


async def main() -> int:
    args = arguments()
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    rig = Rig(args.engine, args.run, args.program, args.work, FRONT_ENDS[args.front_end])
    # The gateway `single` is in front of the first backend only.
    async with rig.fleet("gateway", args.backend) as fleet, rig.fleet("single", args.backend[:1]) as single:
        return await check(args, rig, fleet, single)


async def check(args: argparse.Namespace, rig: Rig, fleet: Fleet, single: Fleet) -> int:
    """Runs the steps. Returns the exit code."""
    report = Report()
    steps = [
        ("answers", answers.check(fleet, report)),
        ("usage", usage.check(fleet, report, rig)),
        ("byte for byte", transparency.check(fleet, report, rig)),
        ("official SDKs", official_sdks.check(fleet, report, rig)),
        ("cancel", faults.check_cancel(fleet, report)),
    ]
    if args.bench:
        needs = (args.tokenizer, args.work, single.gateway)
        tools = [bench.Tool(program, *needs) for program in args.bench]
        steps.append(("bench", bench.check(fleet, report, tools)))
    else:
        report.note("bench", "skipped", "no load generator")
    if args.spans:
        steps.append(("traces", spans.check(fleet, report, args.spans)))
        steps.append(("phases", phases.check(fleet, report, args.spans)))
    if args.kill:
        steps.append(("kill", faults.check_kill(fleet, report, rig)))
    if args.faults:
        steps.append(("frozen", frozen.check(rig, report)))
        steps.append(("pathologies", pathologies.check(rig, report)))
        steps.append(("merged", merged.check(rig, report)))
        steps.append(("byte for byte merged", transparency.check_merged(rig, report)))
    if args.front_end == "mixed":
        for _, step in steps:
            step.close()
        steps = [("mixed", mixed.check(fleet, report))]
    only = args.only.split(",") if args.only else [name for name, _ in steps]
    if unknown := set(only) - {name for name, _ in steps}:
        sys.exit(f"no step {sorted(unknown)}; the steps are {', '.join(name for name, _ in steps)}")
    report.note("machine", "load average before", load_average())
    for name, step in steps:
        if name not in only:
            step.close()
            continue
        try:
            await step
        except Exception:
            traceback.print_exc()
            report.check(name, "the step completed", False)
    report.note("machine", "load average after", load_average())
    report.print()
    if not args.only and args.front_end in results.FRONT_ENDS:
        results.write(report, args.backend[0], args.front_end)
    return int(report.failed())


def load_average() -> str:
    """The load of the machine, which affects all times."""
    return "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
