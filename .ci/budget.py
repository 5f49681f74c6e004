#!/usr/bin/env python3
"""Compares the size of the project with budget.toml.

    .ci/budget.py            prints each size beside its budget. Exit code 1: a size is above its budget, or a budget is
                             more than 2 % above its size
    .ci/budget.py --write    sets each budget to the size. A commit that raises a budget says why

Code lines have a token that is not a comment. Tests are `#[cfg(test)]` items, files named `tests.rs` or `*_tests.rs`,
and everything below a folder named `tests` or `benches`. Only files that git tracks count.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "budget.toml"
# A budget may exceed its size by this share. A larger budget would permit growth that nobody decided.
SLACK = 0.02
# Matches the comments, strings and characters of Rust: braces inside them do not count as nesting.
OPAQUE = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
    r"""|(?P<text>b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])')""",
    re.DOTALL,
)
CFG_TEST = re.compile(r"#\[cfg\((?:test|all\(test[^]]*)\)\]")
FUNCTION = re.compile(r"\bfn\s+(\w+)")


def tracked(*patterns: str) -> list[Path]:
    """The tracked files that match a pattern of git and exist."""
    output = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [path for name in output.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def without_comments(source: str) -> str:
    """The source with empty comments, and with strings of the same number of lines without braces."""

    def replaced(match: re.Match) -> str:
        part = match.group(0)
        if match.group("comment"):
            return "\n" * part.count("\n")
        return re.sub(r"[{}\[\]();#]", "_", part)

    return OPAQUE.sub(replaced, source)


def end_of_item(source: str, start: int) -> int:
    """The end of the item that begins at `start`: its closing brace, or its semicolon."""
    depth = 0
    for index in range(start, len(source)):
        character = source[index]
        depth += (character in "{([") - (character in "})]")
        if depth == 0 and character in "};" and index > start:
            return index + 1
    return len(source)


def lines(source: str) -> int:
    return sum(1 for line in source.splitlines() if line.strip())


def is_test_file(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    name = parts[-1]
    return name == "tests.rs" or name.endswith("_tests.rs") or bool({"tests", "benches"} & set(parts[:-1]))


def rust(path: Path) -> tuple[int, int, int]:
    """Code lines, test lines, and lines of the longest function outside tests."""
    source = without_comments(text_of(path))
    if is_test_file(path):
        return 0, lines(source), 0
    tests = 0
    while match := CFG_TEST.search(source):
        end = end_of_item(source, match.end())
        tests += lines(source[match.start() : end])
        source = source[: match.start()] + source[end:]
    longest = 0
    for match in FUNCTION.finditer(source):
        longest = max(longest, lines(source[match.start() : end_of_item(source, match.end())]))
    return lines(source), tests, longest


def crate_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    at = parts.index("crates") if "crates" in parts else None
    if at is not None:
        return "/".join(parts[: at + 2])
    return "lab" if parts[0] == "lab" else "src"


def packages() -> int:
    """Number of packages in the default binary."""
    output = subprocess.run(
        ["cargo", "tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout
    return len({line.removesuffix(" (*)") for line in output.splitlines()})


def direct_dependencies() -> int:
    """Number of external packages that a manifest of the workspace names."""
    own, names = set(), set()
    for path in tracked("Cargo.toml", "crates/*/Cargo.toml"):
        manifest = tomllib.loads(text_of(path))
        own.add(manifest.get("package", {}).get("name"))
        tables = [manifest, manifest.get("workspace", {}), *manifest.get("target", {}).values()]
        for table in tables:
            for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
                names |= set(table.get(kind, {}))
    return len(names - own)


def sizes() -> dict[str, dict[str, int]]:
    code, tests, longest = Counter(), Counter(), 0
    for path in tracked("*.rs"):
        if path.is_relative_to(ROOT / "fuzz"):
            continue
        here, there, function = rust(path)
        code[crate_of(path)] += here
        tests["rust"] += there
        longest = max(longest, function)
    scripts = [path for path in tracked("tests/*.py", "tests/*.sh") if "wire" not in path.parts]
    tests["scripts"] = sum(lines(text_of(path)) for path in scripts)
    recordings = ("tests/wire/", "lab/traces/")
    committed = [p for p in tracked("*.json") if not str(p.relative_to(ROOT)).startswith(recordings)]
    folders = Counter(path.parent for path in tracked("src/*.rs", "crates/*.rs", "lab/*.rs") if not is_test_file(path))
    root_code = sum(count for crate, count in code.items() if not crate.startswith("lab"))
    return {
        "code": dict(sorted(code.items())) | {"root workspace": root_code, "all": sum(code.values())},
        "tests": dict(tests),
        "documents": {"words": sum(len(text_of(path).split()) for path in tracked("*.md"))},
        "json": {"lines": sum(len(text_of(path).splitlines()) for path in committed)},
        "configuration": {"keys": keys()},
        "telemetry": {"metrics": metrics(), "alerts": alerts()},
        "dependencies": {
            "direct": direct_dependencies(),
            "locked": text_of(ROOT / "Cargo.lock").count("[[package]]"),
            "in the default binary": packages(),
        },
        "structure": {"longest function": longest, "files of a folder": max(folders.values())},
    }


def keys() -> int:
    """Number of configuration keys on the reference page."""
    page = text_of(ROOT / "docs/reference/configuration.md")
    return len(re.findall(r"^- `[^`]+` \(", page, re.MULTILINE))


def metrics() -> int:
    """Number of metric families on the reference page."""
    page = text_of(ROOT / "docs/reference/metrics.md")
    return len(set(re.findall(r"^- `(tokenweir_\w+)", page, re.MULTILINE)))


def alerts() -> int:
    """Number of alerts in the Prometheus rules."""
    rules = [text_of(path) for path in tracked("config/prometheus/*.yml")]
    return len({name for text in rules for name in re.findall(r"^\s*- alert: (\w+)", text, re.MULTILINE)})


def written(found: dict[str, dict[str, int]], heading: str) -> str:
    out = [heading.rstrip("\n")]
    for table, values in found.items():
        out += ["", f"[{table}]"]
        out += [f"{json.dumps(name)} = {value}" for name, value in values.items()]
    return "\n".join(out) + "\n"


def main() -> int:
    found = sizes()
    text = text_of(BUDGET) if BUDGET.exists() else ""
    if "--write" in sys.argv:
        BUDGET.write_text(written(found, text.split("\n\n[")[0]))
        return 0
    budget = tomllib.loads(text)
    wrong = 0
    for table, values in found.items():
        for name, value in values.items():
            limit = budget.get(table, {}).get(name)
            if limit is None:
                note = "has no budget"
            elif value > limit:
                note = "is above its budget: make it smaller, or raise the budget and say why"
            elif value < limit * (1 - SLACK) - 1:
                note = "is below its budget: lower the budget (.ci/budget.py --write)"
            else:
                note = ""
            wrong += bool(note)
            print(f"{table + ': ' + name:<44}{value:>8}  of {limit if limit is not None else '-':>8}  {note}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
