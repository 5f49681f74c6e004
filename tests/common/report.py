"""The table of checks and their results."""

from statistics import median


class Report:
    """The results of a run: one row for each check or observed value, in the order of time."""

    def __init__(self):
        self.rows = []

    def check(self, step: str, what: str, holds: bool, shown: object = "") -> None:
        """Adds a check of `what`, which holds or fails. `shown` is the observed value."""
        self.row(step, what, str(shown), "ok" if holds else "FAILED")

    def note(self, step: str, what: str, shown: object) -> None:
        """Adds an observed value that is not checked."""
        self.row(step, what, str(shown), "")

    def equal(self, step: str, what: str, actual: object, expected: object) -> None:
        """Adds a check that two values are equal."""
        shown = f"{show(actual)}" if actual == expected else f"{show(actual)}, not {show(expected)}"
        self.check(step, what, actual == expected, shown)

    def row(self, step: str, what: str, shown: str, result: str) -> None:
        """Adds a row and prints it at once, to show the progress of a long run."""
        self.rows.append((step, what, shown, result))
        print(f"  {step}: {what}: {shown} {result}".rstrip(), flush=True)

    def failed(self) -> bool:
        """Whether a check of the run failed."""
        return any(result == "FAILED" for *_, result in self.rows)

    def print(self) -> None:
        """Prints the table."""
        widths = [max(len(row[column]) for row in self.rows) for column in range(3)]
        print()
        for row in self.rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths)]
            print(" | ".join([*cells, row[3]]).rstrip())


def show(value: object) -> str:
    """A value as text, and counts without the `.0` of metrics pages."""
    if isinstance(value, dict):
        counts = (f"{key} {show(count)}" for key, count in sorted(value.items()) if count)
        return ", ".join(counts) or "none"
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


def percentile(values: list[float], share: float) -> float:
    """The quantile `share` of the values, from 0 to 1. Fails without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: list[float], digits: int = 2) -> str:
    """p50, p95, maximum and number of values in milliseconds, as text."""
    marks = {"p50": median(values), "p95": percentile(values, 0.95), "max": max(values)}
    shown = ", ".join(f"{name} {value:.{digits}f}" for name, value in marks.items())
    return f"{shown} ms of {len(values)}"


def seconds(elapsed: float | None) -> str:
    """The seconds of a wait as text, or `never` for None, which stands for a timeout."""
    return "never" if elapsed is None else f"{elapsed:.2f} s"
