"""The table of what was checked, and whether it held."""

from statistics import median


class Report:
    """Rows in the order of the checks."""

    def __init__(self):
        self.rows = []

    def check(self, step: str, what: str, holds: bool, seen: object = "") -> None:
        """Something that must hold, and what was seen."""
        self.row(step, what, str(seen), "ok" if holds else "FAILED")

    def note(self, step: str, what: str, seen: object) -> None:
        """A number that is of interest, without a bar."""
        self.row(step, what, str(seen), "")

    def equal(self, step: str, what: str, ours: object, theirs: object) -> None:
        """Two counts that must be the same."""
        seen = f"{show(ours)}" if ours == theirs else f"{show(ours)}, not {show(theirs)}"
        self.check(step, what, ours == theirs, seen)

    def row(self, step: str, what: str, seen: str, verdict: str) -> None:
        """Adds a row and prints it at once, so that a long run can be followed."""
        self.rows.append((step, what, seen, verdict))
        print(f"  {step}: {what}: {seen} {verdict}".rstrip(), flush=True)

    def failed(self) -> bool:
        """Whether anything did not hold."""
        return any(verdict == "FAILED" for *_, verdict in self.rows)

    def print(self) -> None:
        """The table."""
        widths = [max(len(row[column]) for row in self.rows) for column in range(3)]
        print()
        for row in self.rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths)]
            print(" | ".join([*cells, row[3]]).rstrip())


def show(value: object) -> str:
    """Counts without the `.0` of metrics pages."""
    if isinstance(value, dict):
        counts = (f"{key} {show(count)}" for key, count in sorted(value.items()) if count)
        return ", ".join(counts) or "none"
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: list[float], digits: int = 2) -> str:
    """Median, 95th percentile and maximum, for milliseconds."""
    marks = {"p50": median(values), "p95": percentile(values, 0.95), "max": max(values)}
    shown = ", ".join(f"{name} {value:.{digits}f}" for name, value in marks.items())
    return f"{shown} ms of {len(values)}"


def seconds(took: float | None) -> str:
    """A wait that may have been in vain."""
    return "never" if took is None else f"{took:.2f} s"
