#!/usr/bin/env python3
"""Prints the Markdown tables of docs/benchmarks/routing.md from the output of a tournament.

    tokenweir-lab tournament 500 --seeds 1 --json > tournament.json
    lab/tournament_tables.py tournament.json
"""

import json
import sys
from collections.abc import Callable, Iterable
from statistics import mean

NAMES = {
    "lmetric": "LMetric",
    "llm_d_optimized": "llm-d, optimized baseline",
    "dynamo_approximate": "Dynamo, approximate caches",
    "dynamo": "Dynamo, exact caches",
    "smg": "smg, cache-aware",
    "backlog_and_share": "backlog and share (a rule that nobody ships)",
    "llm_d_no_hit_lru": "llm-d with no-hit-lru",
    "llm_d_predicted": "llm-d, predicted latency",
    "radix_tree": "radix tree (SGLang and vLLM routers)",
    "llm_d": "llm-d's default scorers",
}
OURS = "kv_aware"
BELOW_SATURATION = 0.85


def name(router: str) -> str:
    """The name of a router in the tables."""
    return NAMES.get(router, f"**`{router}`**" if router == OURS else f"`{router}`")


class Setup:
    """The goodput of each router in one setup, in percent."""

    def __init__(self, result: dict):
        self.cell = result["cell"]
        self.scores = {router: 100 * score["goodput"] for router, score in result["scores"].items()}
        self.scores.pop("session", None)
        self.prediction = result["scores"][OURS]["prediction_ratio"]

    def regret(self, router: str) -> float:
        """Points behind the best router."""
        return max(self.scores.values()) - self.scores[router]


def share(values: Iterable[bool]) -> str:
    """The share of true values."""
    return f"{100 * mean(values):.0f} %"


def standings(setups: list[Setup]) -> None:
    """One row for each router, the best mean first."""
    print("| router | mean goodput | mean regret | within 1 point of the best | within 3 points | greatest regret |")
    print("|---|--:|--:|--:|--:|--:|")
    goodput = {router: mean(setup.scores[router] for setup in setups) for router in setups[0].scores}
    for router in sorted(goodput, key=goodput.get, reverse=True):
        regrets = [setup.regret(router) for setup in setups]
        within = [share(regret <= limit for regret in regrets) for limit in (1, 3)]
        print(f"| {name(router)} | {goodput[router]:.1f} % | {mean(regrets):.1f} | {' | '.join(within)} | {max(regrets):.0f} |")


def matrix(setups: list[Setup]) -> None:
    """One row for each part of the setups. Rows in which another router is ahead are bold."""
    print("\n| | setups | `kv_aware` | best other | llm-d's default scorers | mean regret | greatest |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    parts: list[tuple[str, Callable[[dict], bool]]] = []
    for key, label in [("shape", "traffic"), ("fleet", "fleet"), ("engine", "engine"), ("objective", "objective")]:
        for value in sorted({setup.cell[key] for setup in setups}):
            parts.append((f"{label} `{value}`", lambda cell, key=key, value=value: cell[key] == value))
    for label, low, high in [("30 to 70 %", 0, 0.7), ("85 and 100 %", 0.85, 1.0), ("120 and 150 %", 1.2, 9)]:
        parts.append((f"load {label}", lambda cell, low=low, high=high: low <= cell["load"] <= high))
    for label, is_part in parts:
        chosen = [setup for setup in setups if is_part(setup.cell)]
        goodput = {router: mean(setup.scores[router] for setup in chosen) for router in chosen[0].scores}
        ours = goodput.pop(OURS)
        best = max(goodput, key=goodput.get)
        regrets = [setup.regret(OURS) for setup in chosen]
        other = f"{goodput[best]:.1f} {name(best)}"
        if goodput[best] > ours:
            label, other = f"**{label}**", f"**{other}**"
        print(f"| {label} | {len(chosen)} | {ours:.1f} | {other} | {goodput['llm_d']:.1f} | {mean(regrets):.1f} | {max(regrets):.0f} |")


def remarks(setups: list[Setup]) -> None:
    """The figures of the text."""
    best = mean(max(setup.scores.values()) for setup in setups)
    print(f"\nbest router of each setup, known afterwards: {best:.2f} %")
    print("at least four routers above 99 %:", share(sorted(setup.scores.values())[-4] > 99 for setup in setups))
    full = [setup for setup in setups if setup.cell["load"] <= 1.0]
    for label, chosen in [("load up to 100 %", full), ("all", setups)]:
        within = [share(setup.regret(OURS) <= limit for setup in chosen) for limit in (1, 3)]
        far = sum(setup.regret(OURS) > 10 for setup in chosen)
        print(f"{label}: {len(chosen)} setups, within 1 and 3: {within}, more than 10 behind: {far}")
    losses = [setup for setup in setups if setup.regret(OURS) > 3]
    winners = [max(setup.scores, key=setup.scores.get) for setup in losses]
    counts = sorted({(winners.count(router), router) for router in winners}, reverse=True)
    print(f"more than 3 behind: {len(losses)}; best there:", ", ".join(f"{router} {count}" for count, router in counts))
    below = [setup for setup in setups if setup.cell["load"] <= BELOW_SATURATION and setup.prediction is not None]
    outside = [setup for setup in below if not 0.8 <= setup.prediction <= 1.25]
    print(f"predictions of setups with a load of at most 85 %: {len(outside)} of {len(below)} outside of 0.8 to 1.25:")
    for setup in outside:
        print(f"  {setup.prediction:.2f} engine {setup.cell['engine']}, {setup.cell['non_streaming']:.0%} do not stream")


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        setups = [Setup(result) for result in json.load(file)["cells"]]
    standings(setups)
    matrix(setups)
    remarks(setups)


if __name__ == "__main__":
    main()
