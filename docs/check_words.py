"""Refuses words that docs/glossary.md retires, in code and prose: file names, identifiers and text.

    python3 docs/check_words.py

The glossary, the changelog and recorded data are exempt. A word is matched without regard to case, as a
whole word or as a part of an identifier (`backend_roster`, `BackendRoster`).
"""

import re
import subprocess
import sys

# Each word has one replacement or more, which the message shows.
RETIRED = {
    "door": "listener, connection",
    "guest": "client, connection",
    "leash": "abort handle",
    "teller": "batch dispatcher",
    "keeper": "health check supervisor",
    "roster": "registry, key file",
    "glance": "load hint, snapshot",
    "vacanc(?:y|ies)": "capacity",
    "whoever": "the noun",
    "whomever": "the noun",
    "luck": "randomness",
    "outcast": "ejected backend",
    "hearing": "telemetry pipeline",
    "bid_?farewell": "close",
    "glimpse": "sample",
    "shake_?hands": "TLS handshake",
}
EXEMPT = ("docs/glossary.md", "docs/check_words.py", "CHANGELOG.md", "Cargo.lock", "lab/Cargo.lock")
DATA = ("tests/wire/", "tests/earlier/", "lab/traces/", "tests/pages/", "tests/proptest-regressions/", "docs/images/")
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def main():
    retired = {re.compile(f"(?:{word})s?", re.IGNORECASE): use for word, use in RETIRED.items()}
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout
    found = 0
    for file in listed.decode().split("\0"):
        if not file or file in EXEMPT or file.startswith(DATA):
            continue
        try:
            with open(file, encoding="utf-8") as opened:
                lines = opened.read().split("\n")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        for number, line in enumerate([file, *lines]):
            words = set(PARTS.findall(line))
            for pattern, use in retired.items():
                for word in words:
                    if pattern.fullmatch(word):
                        found += 1
                        print(f"{file}:{number}: `{word}` is retired; write: {use}", file=sys.stderr)
    if found:
        sys.exit(f"{found} retired words; see docs/glossary.md")


if __name__ == "__main__":
    main()
