"""Checks README.md, the book in docs and the other documents: links and anchors resolve, docs/SUMMARY.md
lists each page of the book once, and each YAML example that is a configuration passes `tokenweir check`
and the JSON Schema. The query of the usage log runs on the record beside it. llms.txt, the commands in AGENTS.md and the table of engines are as docs/SUMMARY.md, the justfile and
tests/real_vllm/results.tsv have them, and the references are as the schema and the catalogue of metrics have them.

    python3 docs/check.py target/debug/tokenweir SCHEMA METRICS
    python3 docs/check.py --renew SCHEMA METRICS    # writes the files and tables that are derived from others
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap

import configuration_reference
import metrics_reference
import runbooks_page

try:
    import jsonschema
    import yaml
except ImportError:
    jsonschema = None
try:
    import duckdb
except ImportError:
    duckdb = None

FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
INLINE_CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
MARK = re.compile(r"<a id=\"([^\"]+)\"")
EMBEDDED = re.compile(r"^  tokenweir\.yaml: \|\n((?:    .*\n|\n)+)", re.MULTILINE)
USAGE_LOG = "docs/operate/usage-log.md"
SUMMARY, INDEX, AGENTS = "docs/SUMMARY.md", "llms.txt", "AGENTS.md"
ENGINES, RESULTS = "docs/reference/engines.md", "tests/real_vllm/results.tsv"
GENERATED = re.compile(r"(<!-- Generated.*-->\n)(?:(?:[-|] .*|\|.*)?\n)*(?=<!-- End)")
# Pages that need no link: where readers begin, the list of chapters, and the text of the package index.
STARTS = ("README.md", SUMMARY, "packaging/wheel.md")
# The recipes of the justfile that AGENTS.md lists.
RECIPES = ("ci", "fmt", "lint", "test", "suite", "allocations", "docs", "docs-renew", "instructions")
CONFIGURATION, METRICS = "docs/reference/configuration.md", "docs/reference/metrics.md"
CHART_SCHEMA = "packaging/helm/tokenweir/values.schema.json"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def pages():
    found = []
    for pattern in ("*.md", "docs/**/*.md", "benches/README.md", "lab/*.md", "lab/traces/*.md", "packaging/*.md"):
        found += sorted(glob.glob(pattern, recursive=True))
    return {page: read(page) for page in found}


def anchors(text):
    """The anchors of a page, as GitHub derives them from headings."""
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
    # Code in backticks may be the text of a link. It contains no link itself.
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
                of_page[file] = anchors(read(file))
            if anchor not in of_page[file]:
                problems.append(f"{page}: {target}: {file} has no heading for #{anchor}")
    for page in texts:
        if page not in linked and page not in STARTS:
            problems.append(f"{page}: no other page links to it")
    return problems


def check_summary(texts):
    """Each page of the book is listed once; mdBook leaves out a page that is not listed."""
    listed = [os.path.normpath(f"docs/{target}") for target in links(texts[SUMMARY])]
    book = {page for page in texts if page.startswith("docs/") and page != SUMMARY}
    problems = [f"{SUMMARY}: {page} is not listed" for page in sorted(book - set(listed))]
    problems += [f"{SUMMARY}: {page} is listed, but there is no such page" for page in sorted(set(listed) - book)]
    problems += [f"{SUMMARY}: {page} is listed twice" for page in sorted(set(listed)) if listed.count(page) > 1]
    return problems


def index():
    """llms.txt: the chapters and pages of the book, for programs that read documents (https://llmstxt.org)."""
    introduction = read("docs/introduction.md").split("\n\n")
    lines = ["# tokenweir", "", "> " + " ".join(introduction[1].split()), ""]
    for line in read(SUMMARY).splitlines():
        if line.startswith("# ") and line != "# Summary":
            lines += [f"## {line[2:]}", ""]
        elif match := re.fullmatch(r" *(?:- )?\[(.*)\]\((.*)\)", line):
            lines.append(f"- [{match[1]}](docs/{match[2]})")
        elif not line and lines[-1]:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def agents():
    """AGENTS.md with the texts that the justfile has for some of its recipes."""
    found = re.findall(r"^# (.+)\n([a-z][\w-]*)([^:\n]*):", read("justfile"), re.MULTILINE)
    rows = "".join(f"- `just {name}{flags}`: {text}\n" for text, name, flags in found if name in RECIPES)
    return GENERATED.sub(lambda head: head[1] + rows, read(AGENTS))


def engines():
    """The page of the engines with the results of the checks that ran against them."""
    lines = [line.split("\t") for line in read(RESULTS).splitlines()]
    lines.insert(1, ["---"] * len(lines[0]))
    rows = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    page, count = GENERATED.subn(lambda head: f"{head[1]}\n{rows}\n", read(ENGINES))
    if count != 1:
        sys.exit(f"{ENGINES} has no place for the table")
    return page


def check_derived(schema, metrics):
    files = derived(schema, metrics)
    return [f"{file} is old: run docs/check.sh --renew" for file, text in files.items() if read(file) != text]


def derived(schema, metrics):
    """The files that are derived from others, each with its text."""
    return {
        INDEX: index(),
        AGENTS: agents(),
        ENGINES: engines(),
        CHART_SCHEMA: chart_schema(schema),
        CONFIGURATION: configuration_reference.page(schema),
        METRICS: metrics_reference.page(metrics),
        "src/admin/runbooks.html": runbooks_page.page(read("docs/operate/diagnose.md")),
    }


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def chart_schema(schema):
    """The schema of the chart's values, whose last property is the schema of the configuration without its texts."""

    def bare(value):
        if isinstance(value, list):
            return [bare(item) for item in value]
        if not isinstance(value, dict):
            return value
        texts = {key for key in ("description", "title", "default") if not isinstance(value.get(key), dict)}
        return {key: bare(child) for key, child in value.items() if key not in texts}

    config = bare(schema)
    sections = ",\n".join(f"      {json.dumps(key)}: {json.dumps(value)}" for key, value in config["properties"].items())
    values = read(CHART_SCHEMA)
    before = values[: values.index('    "config": {')]
    head = '    "config": { "type": "object", "additionalProperties": false, "properties": {'
    return f"{before}{head}\n{sections}\n    }} }}\n  }}\n}}\n"


def configurations(texts, keys):
    """(page, text) for each YAML block of a page that has a key of the configuration, and for shipped files."""
    for page, text in texts.items():
        for _, language, block in FENCE.findall(text):
            if language != "yaml":
                continue
            block = textwrap.dedent(block)
            for example in [block, *map(textwrap.dedent, EMBEDDED.findall(block))]:
                if keys & set(re.findall(r"^(\w+):", example, re.MULTILINE)):
                    yield page, example
    for file in ("config/tokenweir.yaml", "docker/tokenweir.simulator.yaml", "docker/tokenweir.gpu.yaml"):
        yield file, read(file)


def check_configurations(texts, program, schema):
    problems, count = [], 0
    for page, text in configurations(texts, set(schema["properties"])):
        count += 1
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            done = subprocess.run([program, "check", "--syntax-only", file.name], capture_output=True, text=True)
        output = done.stdout + done.stderr
        if done.returncode != 0:
            problems.append(f"{page}: an example is not valid: {output}\n{text}")
        if jsonschema:
            validator = jsonschema.Draft202012Validator(schema)
            for error in validator.iter_errors(yaml.safe_load(text)):
                problems.append(f"{page}: the schema rejects {error.json_path}: {error.message}")
    if jsonschema:
        jsonschema.Draft202012Validator.check_schema(schema)
        problems += accepted_invalid_files(schema)
    return problems, count


def accepted_invalid_files(schema):
    """Messages about invalid files that the schema accepts: such a schema would find no mistake."""
    validator = jsonschema.Draft202012Validator(schema)
    invalid = [
        {"routng": {}},
        {"routing": {"policy": "fastest"}},
        {"drain": {"timeout": 30}},
        {"limits": {"body": "64K"}},
        {"backends": [{"name": "a"}]},
        {"backends": [{"url": "http://a:1", "api_key": "sk-123"}]},
        {"scrape": {"max_page": None}},
    ]
    return [f"the schema accepts the invalid configuration {file}" for file in invalid if validator.is_valid(file)]


def check_usage_query(text):
    """Runs the query on records like that of the page, in both files, some of them twice."""
    blocks = {language: block for _, language, block in FENCE.findall(text)}
    event = json.loads(blocks["json"])
    data = {key: value for key, value in event["data"].items() if key != "tenant"}
    lines = [json.dumps({**event, "id": f"a-{number}"}) for number in range(10_000)]
    lines += [json.dumps({**event, "id": f"b-{number}", "data": data}) for number in range(1_000)]
    lines.append(json.dumps({**event, "id": "a-10000", "type": "tokenweir.usage.gap", "data": {"cause": "lost"}}))
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/usage.jsonl.old", "\n".join(lines[:6_000]) + "\n")
        write(f"{folder}/usage.jsonl", "\n".join(lines[5_000:]) + "\n")
        database = duckdb.connect()
        database.execute(f"SET file_search_path = '{folder}'")
        rows = database.execute(blocks["sql"]).fetchall()
    expected = [("research", "big", "2026-11", 10_000, 8_120_000, 330_000, 3_440.0, 1.1)]
    expected.append((None, "big", "2026-11", 1_000, 812_000, 33_000, 344.0, 0.11))
    return [] if rows == expected else [f"{USAGE_LOG}: the query gives {rows}"]


def main():
    schema = json.loads(read(sys.argv[2]))
    metrics = json.loads(read(sys.argv[3]))
    if sys.argv[1] == "--renew":
        for file, text in derived(schema, metrics).items():
            write(file, text)
        return
    program = os.path.abspath(sys.argv[1])
    texts = pages()
    problems = check_links(texts) + check_summary(texts) + check_derived(schema, metrics)
    more, count = check_configurations(texts, program, schema)
    problems += more
    if duckdb:
        problems += check_usage_query(texts[USAGE_LOG])
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{len(texts)} pages, {sum(len(links(text)) for text in texts.values())} links, {count} examples")
    if not jsonschema:
        print("!! jsonschema and yaml are not installed: the schema is NOT checked", file=sys.stderr)
    if not duckdb:
        print("!! duckdb is not installed: the query of the usage log does NOT run", file=sys.stderr)


main()
