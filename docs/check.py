"""Reads README.md and the other documents: links and anchors lead somewhere, no page is forgotten, and
each YAML example that is a configuration passes `tokenweir check` and the JSON Schema.

    python3 docs/check.py target/debug/tokenweir
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap

try:
    import jsonschema
    import yaml
except ImportError:
    jsonschema = None

FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
INLINE_CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
MARK = re.compile(r"<a id=\"([^\"]+)\"")
EMBEDDED = re.compile(r"^  tokenweir\.yaml: \|\n((?:    .*\n|\n)+)", re.MULTILINE)
# What a program that was built without Kubernetes says of an example with it.
WITHOUT_KUBERNETES = "was built without Kubernetes"


def pages():
    found = ["README.md", "benches/README.md"]
    for pattern in ("docs/*.md", "packaging/*.md"):
        found += sorted(glob.glob(pattern))
    return {page: open(page, encoding="utf-8").read() for page in found}


def anchors(text):
    """The anchors of a page, as GitHub makes them of headings."""
    text = FENCE.sub("", text)
    seen, found = {}, set(MARK.findall(text))
    for heading in HEADING.findall(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def links(text):
    # Text in backticks stays as the text of a link, and is no link itself.
    prose = FENCE.sub("", text)
    prose = INLINE_CODE.sub(lambda code: re.sub(r"[\[\]()]", "", code.group()), prose)
    return [target for target in LINK.findall(prose) if not re.match(r"[a-z]+:", target)]


def check_links(texts):
    problems, linked, of_page = [], set(), {}
    for page, text in texts.items():
        for target in links(text):
            path, _, anchor = target.partition("#")
            file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(file):
                problems.append(f"{page}: {target}: there is no {file}")
                continue
            if file != page:
                linked.add(file)
            if not anchor:
                continue
            if file not in of_page:
                of_page[file] = anchors(open(file, encoding="utf-8").read())
            if anchor not in of_page[file]:
                problems.append(f"{page}: {target}: {file} has no heading for #{anchor}")
    for page in texts:
        if page not in linked and page not in ("README.md", "packaging/wheel.md"):
            problems.append(f"{page}: no other page leads here")
    return problems


def configurations(texts, keys):
    """The examples that have a key of the configuration, with the page that each is on."""
    for page, text in texts.items():
        for _, language, block in FENCE.findall(text):
            if language != "yaml":
                continue
            block = textwrap.dedent(block)
            for one in [block, *map(textwrap.dedent, EMBEDDED.findall(block))]:
                if keys & set(re.findall(r"^(\w+):", one, re.MULTILINE)):
                    yield page, one
    yield "config/tokenweir.yaml", open("config/tokenweir.yaml", encoding="utf-8").read()
    yield "docker/tokenweir.yaml", open("docker/tokenweir.yaml", encoding="utf-8").read()


def check_configurations(texts, program, schema):
    problems, count = [], 0
    for page, text in configurations(texts, set(schema["properties"])):
        count += 1
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            done = subprocess.run([program, "check", file.name], capture_output=True, text=True)
        said = done.stdout + done.stderr
        if done.returncode != 0 and WITHOUT_KUBERNETES not in said:
            problems.append(f"{page}: an example is refused: {said}\n{text}")
        if jsonschema:
            validator = jsonschema.Draft202012Validator(schema)
            for error in validator.iter_errors(yaml.safe_load(text)):
                problems.append(f"{page}: the schema refuses {error.json_path}: {error.message}")
    if jsonschema:
        jsonschema.Draft202012Validator.check_schema(schema)
        problems += taken_although_wrong(schema)
    return problems, count


def taken_although_wrong(schema):
    """A schema that takes everything would find nothing."""
    validator = jsonschema.Draft202012Validator(schema)
    wrong = [
        {"routng": {}},
        {"routing": {"policy": "fastest"}},
        {"drain": {"timeout": 30}},
        {"limits": {"body": "64K"}},
        {"backends": [{"name": "a"}]},
        {"backends": [{"url": "http://a:1", "api_key": "sk-123"}]},
        {"watch": {"max_page": None}},
    ]
    return [f"the schema takes {it}" for it in wrong if validator.is_valid(it)]


def main():
    program = os.path.abspath(sys.argv[1])
    schema = json.load(open("config/tokenweir.schema.json", encoding="utf-8"))
    texts = pages()
    problems = check_links(texts)
    more, count = check_configurations(texts, program, schema)
    problems += more
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{len(texts)} pages, {sum(len(links(text)) for text in texts.values())} links, {count} examples")
    if not jsonschema:
        print("!! jsonschema and yaml are not installed: the schema is NOT checked", file=sys.stderr)


main()
