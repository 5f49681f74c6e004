#!/usr/bin/env python3
"""Prints the Markdown tables of docs/benchmarks/routing.md from the output of a tournament.

    tokenweir-lab tournament --json > tournament.json
    lab/tournament_tables.py tournament.json
"""

import json
import sys
from statistics import mean, stdev

NAMES = {
    "lmetric": "LMetric",
    "llm_d_optimized": "llm-d, optimized baseline",
    "dynamo_approximate": "Dynamo, approximate caches",
    "dynamo": "Dynamo, exact caches",
    "smg": "smg, cache-aware",
    "backlog_and_share": "backlog and share",
    "llm_d_no_hit_lru": "llm-d with no-hit-lru",
    "llm_d_predicted": "llm-d, predicted latency",
    "radix_tree": "radix tree (SGLang router)",
    "vllm_router": "vLLM router",
    "smetric": "vLLM router, `smetric`",
    "thunder_agent": "llm-d, `thunder-agent`",
    "dynamo_sessions": "Dynamo, session-aware queue",
    "llm_d": "llm-d's default scorers",
    "lpwl": "LPWL",
    "dual_map": "DualMap",
    "five_terms": "five terms",
    "exact_state": "`kv_aware` on the true state",
    "lookahead": "lookahead",
    "without_admission": "`kv_aware`, `admission.enabled: false`",
}
OURS = "kv_aware"
CLAIRVOYANT = "exact_state"
AT_ONCE = "without_admission"
# Quantile of Student's t-distribution for a 95 % interval, by the number of values.
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


def name(router: str) -> str:
    """The name of a router in the tables."""
    return NAMES.get(router, f"**`{router}`**" if router == OURS else f"`{router}`")


class Setup:
    """The scores of each router in one setup."""

    def __init__(self, result: dict):
        cell = result["cell"]
        self.shape, self.fleet, self.load = cell["shape"], cell["fleet"], cell["load"]
        self.bound = result["bound"]
        self.scores = result["scores"]
        self.others = [router for router in self.scores if router not in (OURS, CLAIRVOYANT, AT_ONCE)]

    def mean(self, router: str, key: str = "goodput") -> float:
        """Mean over the seeds, shares in percent."""
        values = [score[key] for score in self.scores[router]]
        return mean(values) * (1 if key in ("ttft_p99", "turnovers") else 100)

    def interval(self, router: str) -> float:
        """Half of the 95 % interval of the goodput over the traffic seeds."""
        values = [100 * score["goodput"] for score in self.scores[router]]
        return STUDENT.get(len(values), 2.0) * stdev(values) / len(values) ** 0.5

    def best(self) -> str:
        """The name of the router with the best goodput, other than `kv_aware`."""
        return max(self.others, key=self.mean)

    def lead(self) -> float:
        """Percentage points of goodput by which `kv_aware` is ahead of the best other router."""
        return self.mean(OURS) - self.mean(self.best())

    def p99_ratio(self) -> float:
        """Ratio of the TTFT p99 of `kv_aware` to the lowest of another router."""
        return self.mean(OURS, "ttft_p99") / min(self.mean(router, "ttft_p99") for router in self.others)


def standings(report: dict) -> None:
    """One row for each router, the best mean first."""
    print("| router | goodput, % | `kv_aware` ahead by | regret | regret ≤ 1, ≤ 3 | greatest | TTFT p99, s | within 3 ×, % | wasted, % | fairness |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for row in report["standings"]:
        router = row["router"]
        ahead, low, high = row["behind_first"]
        lead = "" if router == OURS else f"{ahead:+.1f} [{low:+.1f}, {high:+.1f}]"
        cells = [Setup(cell) for cell in report["cells"]]
        within = mean(cell.mean(router, "within_three") for cell in cells)
        print(
            f"| {name(router)} | {100 * row['goodput']:.1f} | {lead} | {row['regret']:.1f} | {100 * row['within_one']:.0f}, {100 * row['within_three']:.0f} % "
            f"| {row['worst']:.1f} | {row['ttft_p99']:.1f} | {within:.1f} | {100 * row['wasted']:.1f} | {row['fairness']:.3f} |"
        )


def matrix(setups: list[Setup]) -> None:
    """One row for each kind of traffic: goodput and interval, and the lead. Losses above a point are bold."""
    columns = sorted({(setup.fleet, setup.load) for setup in setups})
    heads = [f"{fleet.replace('_', ' ')}, {load:g}" for fleet, load in columns]
    print("\n| traffic | " + " | ".join(heads) + " |")
    print("|---|" + "--:|" * len(columns))
    for shape in dict.fromkeys(setup.shape for setup in setups):
        row = {(setup.fleet, setup.load): setup for setup in setups if setup.shape == shape}
        texts = []
        for column in columns:
            setup = row[column]
            text = f"{setup.mean(OURS):.1f} ± {setup.interval(OURS):.1f} ({setup.lead():+.1f})"
            texts.append(f"**{text}**" if setup.lead() < -1 else text)
        print(f"| `{shape}` | " + " | ".join(texts) + " |")


def losses(setups: list[Setup]) -> None:
    """The setups in which another router is more than a point ahead."""
    print("\n| setup | `kv_aware`, % | TTFT p99, s | best other, % | TTFT p99, s | true state, % | bound, % |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for setup in sorted(setups, key=Setup.lead):
        if setup.lead() >= -1:
            break
        best = setup.best()
        clairvoyant = f"{setup.mean(CLAIRVOYANT):.1f}" if CLAIRVOYANT in setup.scores else ""
        bound = f"{100 * setup.bound:.1f}" if setup.bound is not None else ""
        print(
            f"| `{setup.shape}`, {setup.fleet.replace('_', ' ')}, {setup.load:g} | {setup.mean(OURS):.1f} | {setup.mean(OURS, 'ttft_p99'):.1f} "
            f"| {setup.mean(best):.1f} {name(best)} | {setup.mean(best, 'ttft_p99'):.1f} | {clairvoyant} | {bound} |"
        )


def remarks(setups: list[Setup]) -> None:
    """Prints the figures that the text of the document states."""
    regrets = [max(0.0, -setup.lead()) for setup in setups]
    ratios = sorted(setup.p99_ratio() for setup in setups)
    print(f"\nregret at most 1: {sum(r <= 1 for r in regrets)}, at most 3: {sum(r <= 3 for r in regrets)} of {len(setups)}; greatest {max(regrets):.1f}")
    print(f"TTFT p99 relative to the lowest: median {ratios[len(ratios) // 2]:.2f}, greatest {ratios[-1]:.1f}, at most 1.5 in {sum(r <= 1.5 for r in ratios)}")
    turnovers = sorted(setup.mean(OURS, "turnovers") for setup in setups)
    print(f"turnovers of the caches: least {turnovers[0]:.1f}, at least 3 in {sum(t >= 3 for t in turnovers)}")
    bounded = [setup for setup in setups if setup.bound]
    print(f"share of the bound: {mean(setup.mean(OURS) / setup.bound for setup in bounded):.1f} % in {len(bounded)} setups")
    spread = [setup.interval(OURS) for setup in setups]
    print(f"half of the interval of a setup: median {sorted(spread)[len(spread) // 2]:.1f}, greatest {max(spread):.1f}")


def admission(setups: list[Setup]) -> None:
    """Prints what admission control changes at each load."""
    for load in sorted({setup.load for setup in setups}):
        chosen = [setup for setup in setups if setup.load == load and AT_ONCE in setup.scores]
        if not chosen:
            return
        gains = {setup: setup.mean(OURS) - setup.mean(AT_ONCE) for setup in chosen}
        spread = 1.96 * stdev(gains.values()) / len(gains) ** 0.5
        p99 = [mean(setup.mean(router, "ttft_p99") for setup in chosen) for router in (AT_ONCE, OURS)]
        refused = mean(setup.mean(OURS, "refused") for setup in chosen)
        worst = min(gains, key=gains.get)
        print(
            f"admission at {load:g}: {mean(gains.values()):+.1f} ± {spread:.1f} points, worst {gains[worst]:+.1f} ({worst.shape}, {worst.fleet}), "
            f"best {max(gains.values()):+.1f}; TTFT p99 {p99[0]:.1f} → {p99[1]:.1f} s; {refused:.1f} % refused"
        )


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    if report["config"] is not None:
        sys.exit(f"the tables show the default configuration, but this tournament used {report['config']}")
    setups = [Setup(result) for result in report["cells"]]
    standings(report)
    matrix(setups)
    losses(setups)
    remarks(setups)
    admission(setups)


if __name__ == "__main__":
    main()
