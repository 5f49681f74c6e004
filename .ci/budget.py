#!/usr/bin/env python3
"""Compares the size of the project with budget.toml.

    .ci/budget.py                prints each size, its limit, and the difference to the base. Exit code 1: a size is
                                 above its limit
    .ci/budget.py --base REV     the base; by default the merge base with `main`, or the first parent on `main`
    .ci/budget.py --forms        prints each place of the forms that the table `forms` counts
    .ci/budget.py --write        sets each limit to the size; a limit of `forms` only falls

Sizes that many changes move may exceed their limit by 2 %, so that a change edits budget.toml only to raise a limit
on purpose. Code is counted in tokens: comments are none, a text is one. Tests do not count: `#[cfg(test)]` items, files
named `tests.rs`, `*_test.rs` or `*_tests.rs`, and folders named `tests`, `benches`, `examples` or `fuzz`.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Iterator, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "budget.toml"
# A size of these tables may exceed its limit by this share.
SLACK = 0.02
WITH_SLACK = ("tokens", "documents", "json")
# A function with more tokens counts as a form.
MAX_FUNCTION_TOKENS = 450
# A test with more words in its name counts as a form.
MAX_TEST_WORDS = 8
LEXEME = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
    r"""|(?P<text>b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?c?"(?:\\.|[^"\\])*"|b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])')"""
    r"""|(?P<code>'[^\W\d]\w*|(?:r\#|\#)?[^\W\d]\w*|\d[\w.]*"""
    r"""|\.\.=|\.\.\.|::|->|=>|[=!<>+*/-]=|&&|\|\||\.\.|<<|>>|\S)""",
    re.DOTALL,
)
TEST_FOLDERS = {"tests", "benches", "examples", "fuzz"}
TEST_FILE = re.compile(r"(^|_)tests?\.rs$")
TEST_NAME = re.compile(r"#\[(?:tokio::)?test\b[^\n]*\n(?:\s*#\[[^\n]*\n)*\s*(?:async )?fn (\w+)")
OPENING = {"(": ")", "[": "]", "{": "}"}
NUMBER_ARRAY = re.compile(r"\[ (?:f32|f64|u32|u64|bool|usize|Atomic\w+|Option < [^;\]]+ >) ; [2-9] \]")


class Token(NamedTuple):
    value: str
    line: int


class Place(NamedTuple):
    form: str
    path: str
    line: int


def git(*arguments: str) -> str | None:
    """The output of git, or None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, errors="replace")
    return done.stdout if done.returncode == 0 else None


def is_counted(path: str) -> bool:
    return path.endswith((".rs", ".md", ".json", ".toml", ".lock", ".yml"))


def working_tree() -> dict[str, str]:
    """The text of each tracked file by its path."""
    names = (git("ls-files", "-z") or "").split("\0")
    paths = [name for name in names if is_counted(name) and (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in paths}


def tree_at(revision: str) -> dict[str, str]:
    """The text of each file of a revision by its path."""
    entries = [entry.split("\t", 1) for entry in (git("ls-tree", "-r", "-z", revision) or "").split("\0") if entry]
    blobs = {name: kind.split()[2] for kind, name in entries if is_counted(name)}
    asked = "\n".join(blobs.values()).encode()
    output = subprocess.run(["git", "cat-file", "--batch"], cwd=ROOT, input=asked, capture_output=True, check=True).stdout
    texts, at = {}, 0
    for name in blobs:
        end = output.index(b"\n", at)
        size = int(output[at:end].split()[2])
        texts[name] = output[end + 1 : end + 1 + size].decode(errors="replace")
        at = end + 2 + size
    return texts


def base_revision() -> str | None:
    if "--base" in sys.argv:
        return sys.argv[sys.argv.index("--base") + 1]
    head = git("rev-parse", "HEAD")
    merge_base = git("merge-base", "HEAD", "main")
    if merge_base is None or merge_base == head:
        merge_base = git("rev-parse", "--verify", "--quiet", "HEAD^")
    return merge_base and merge_base.strip()


def is_test_file(path: str) -> bool:
    *folders, name = path.split("/")
    return bool(TEST_FILE.search(name)) or bool(TEST_FOLDERS & set(folders))


def lexed(source: str) -> list[Token]:
    tokens, line, seen = [], 1, 0
    for match in LEXEME.finditer(source):
        line += source.count("\n", seen, match.start())
        seen = match.start()
        if match.group("comment") is None:
            tokens.append(Token(match.group(0), line))
    return tokens


def closing(tokens: list[Token], start: int) -> int:
    """The index of the token that closes the bracket at `start`."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += (tokens[index].value in OPENING) - (tokens[index].value in OPENING.values())
        if depth == 0:
            return index
    return len(tokens) - 1


def without_tests(tokens: list[Token]) -> list[Token]:
    kept, index = [], 0
    while index < len(tokens):
        head = "".join(token.value for token in tokens[index : index + 7])
        if not (head.startswith("#[cfg(test)]") or head.startswith("#[cfg(all(test")):
            kept.append(tokens[index])
            index += 1
            continue
        while index < len(tokens) and tokens[index].value == "#":
            index = closing(tokens, index + 1) + 1
        while index < len(tokens) and tokens[index].value not in "{;":
            index += 1
        if index < len(tokens) and tokens[index].value == "{":
            index = closing(tokens, index)
        index += 1
    return kept


def has_tuple_parameter(parameters: list[Token]) -> bool:
    """Whether a parameter of a function has a tuple as its pattern."""
    index, is_start = 0, True
    while index < len(parameters):
        value = parameters[index].value
        if value in OPENING:
            end = closing(parameters, index)
            if value == "(" and is_start and end + 1 < len(parameters) and parameters[end + 1].value == ":":
                return True
            index = end
        is_start = value == ","
        index += 1
    return False


class Function(NamedTuple):
    path: str
    name: str
    line: int
    tokens: int
    has_tuple_parameter: bool


def functions(path: str, tokens: list[Token]) -> Iterator[Function]:
    for index in range(len(tokens) - 2):
        name = tokens[index + 1].value
        if tokens[index].value != "fn" or not (name[0].isalpha() or name[0] == "_"):
            continue
        opening = index + 2
        # A generic parameter contains no parenthesis before the parameters of the function, except a bound `Fn(..)`.
        depth = 0
        while opening < len(tokens) and (depth > 0 or tokens[opening].value != "("):
            depth += {"<": 1, ">": -1, ">>": -2}.get(tokens[opening].value, 0)
            opening += 1
        end_of_parameters = closing(tokens, opening)
        body = end_of_parameters
        while body < len(tokens) and tokens[body].value not in "{;":
            body += 1
        if body == len(tokens) or tokens[body].value == ";":
            continue
        size = closing(tokens, body) - index + 1
        parameters = tokens[opening + 1 : end_of_parameters]
        yield Function(path, name, tokens[index].line, size, has_tuple_parameter(parameters))


def forms(path: str, tokens: list[Token]) -> Iterator[Place]:
    """Forms of few lines that a reader must take apart: CONTRIBUTING.md names the boring one of each."""
    values = [token.value for token in tokens]
    for index, value in enumerate(values):
        line = tokens[index].line
        if value == "let" and values[index + 1 : index + 2] == ["("]:
            names = closing(tokens, index + 1)
            if values[names + 1 : names + 3] == ["=", "("]:
                end = closing(tokens, names + 2)
                if values[end + 1 : end + 2] == [";"]:
                    yield Place("let tuples", path, line)
        if values[index : index + 4] == ["filter", "(", "|", "_"]:
            yield Place("filters that ignore their value", path, line)
        if value == "[" and NUMBER_ARRAY.match(" ".join(values[index : index + 16])):
            yield Place("number arrays", path, line)
        if value == "Result" and re.match(r"Result < [^;{]*, bool >", " ".join(values[index : index + 12])):
            yield Place("errors of type bool", path, line)


def long_test_names(path: str, source: str) -> Iterator[Place]:
    for match in TEST_NAME.finditer(source):
        if match.group(1).count("_") >= MAX_TEST_WORDS:
            yield Place(FORMS[-1], path, source.count("\n", 0, match.end()) + 1)


class Code(NamedTuple):
    tokens: dict[str, int]
    forms: list[Place]
    longest_function: int


FORMS = (
    "let tuples",
    "tuple parameters",
    "number arrays",
    "filters that ignore their value",
    "errors of type bool",
    f"functions above {MAX_FUNCTION_TOKENS} tokens",
    f"test names above {MAX_TEST_WORDS} words",
)


def code(files: dict[str, str]) -> Code:
    tokens, places, longest = Counter(), [], 0
    for path, source in files.items():
        if not path.endswith(".rs"):
            continue
        places += long_test_names(path, source)
        if is_test_file(path):
            continue
        found = without_tests(lexed(source))
        tokens[crate_of(path)] += len(found)
        places += forms(path, found)
        for function in functions(path, found):
            longest = max(longest, function.tokens)
            if function.has_tuple_parameter:
                places.append(Place("tuple parameters", path, function.line))
            if function.tokens > MAX_FUNCTION_TOKENS:
                places.append(Place(FORMS[-2], path, function.line))
    return Code(tokens, places, longest)


def crate_of(path: str) -> str:
    """The folder of the crate: `src`, `crates/NAME`, `extras/NAME`, `lab` or `lab/crates/NAME`."""
    parts = path.split("/")
    root = 1 if parts[0] == "lab" else 0
    is_member = len(parts) > root + 1 and parts[root] in ("crates", "extras")
    return "/".join(parts[: root + 2]) if is_member else parts[0]


def packages() -> int:
    """Number of packages in the default binary."""
    output = subprocess.run(
        ["cargo", "tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout
    return len({line.removesuffix(" (*)") for line in output.splitlines()})


def direct_dependencies(files: dict[str, str]) -> int:
    """Number of external packages that a manifest of the workspace names."""
    own, names = set(), set()
    for path, text in files.items():
        if not re.fullmatch(r"((crates|extras)/[^/]+/)?Cargo\.toml", path):
            continue
        manifest = tomllib.loads(text)
        own.add(manifest.get("package", {}).get("name"))
        tables = [manifest, manifest.get("workspace", {}), *manifest.get("target", {}).values()]
        for table in tables:
            for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
                names |= set(table.get(kind, {}))
    return len(names - own)


def sizes(files: dict[str, str], found: Code) -> dict[str, dict[str, int]]:
    names = Counter(place.form for place in found.forms)
    recordings = ("tests/wire/", "tests/earlier/", "lab/traces/")
    documents = [text for path, text in files.items() if path.endswith(".md")]
    data = [text for path, text in files.items() if path.endswith(".json") and not path.startswith(recordings)]
    rules = [text for path, text in files.items() if re.fullmatch(r"config/prometheus/[^/]+\.yml", path)]
    alerts = {name for text in rules for name in re.findall(r"^\s*- alert: (\w+)", text, re.MULTILINE)}
    configuration = files.get("docs/reference/configuration.md", "")
    metrics = files.get("docs/reference/metrics.md", "")
    root = sum(count for crate, count in found.tokens.items() if not crate.startswith("lab"))
    return {
        "tokens": dict(sorted(found.tokens.items())) | {"root workspace": root},
        "forms": {form: names[form] for form in FORMS},
        "functions": {"tokens of the longest": found.longest_function},
        "documents": {"words": sum(len(text.split()) for text in documents)},
        "json": {"lines": sum(len(text.splitlines()) for text in data)},
        "configuration": {"keys": len(re.findall(r"^- `[^`]+` \(", configuration, re.MULTILINE))},
        "telemetry": {
            "metrics": len(set(re.findall(r"^- `(tokenweir_\w+)", metrics, re.MULTILINE))),
            "alerts": len(alerts),
        },
        "dependencies": {
            "direct": direct_dependencies(files),
            "locked": files.get("Cargo.lock", "").count("[[package]]"),
        },
    }


def written(found: dict[str, dict[str, int]], budget: dict[str, dict[str, int]], heading: str) -> str:
    out = [heading.rstrip("\n")]
    for table, values in found.items():
        out += ["", f"[{table}]"]
        for name, value in values.items():
            limit = budget.get(table, {}).get(name, value)
            out.append(f"{json.dumps(name)} = {min(value, limit) if table == 'forms' else value}")
    return "\n".join(out) + "\n"


def main() -> int:
    files = working_tree()
    now = code(files)
    if "--forms" in sys.argv:
        for place in sorted(now.forms):
            print(f"{place.path}:{place.line}: {place.form}")
        return 0
    found = sizes(files, now)
    found["dependencies"]["in the default binary"] = packages()
    text = BUDGET.read_text() if BUDGET.exists() else ""
    budget = tomllib.loads(text)
    if "--write" in sys.argv:
        BUDGET.write_text(written(found, budget, text.split("\n\n[")[0]))
        return 0
    revision = base_revision()
    base_files = tree_at(revision) if revision else None
    base = sizes(base_files, code(base_files)) if base_files else {}
    print(f"{'base: ' + revision[:8] if base else 'no base':<56}{'size':>8}{'change':>9}{'limit':>9}")
    is_above = False
    for table, values in found.items():
        for name, value in values.items():
            limit = budget.get(table, {}).get(name)
            before = base.get(table, {}).get(name)
            change = f"{value - before:+}" if before not in (None, value) else ""
            note = ""
            if limit is None:
                note = "has no limit (--write)"
            elif value > limit * (1 + SLACK * (table in WITH_SLACK)):
                note = "is above its limit: make it smaller, or raise the limit and say why"
                if table == "forms":
                    note = "is above its limit: --forms prints the places, CONTRIBUTING.md what replaces them"
            is_above = is_above or bool(note)
            print(f"{table + ': ' + name:<56}{value:>8}{change:>9}{limit or 0:>9}  {note}".rstrip())
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main())
