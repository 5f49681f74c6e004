# All entry points of the repository. `just` lists them. https://just.systems
# Environment variables of the scripts are described in the head of each script.

set shell := ["bash", "-euo", "pipefail", "-c"]

# List the recipes.
default:
    @just --list --unsorted

# --- before a change ---------------------------------------------------------------------------

# Run everything that must pass before a merge: format, lints, tests, documents. `.ci/run --full` also measures the hot path.
ci:
    .ci/run

# Format the code.
fmt:
    cargo fmt

# Check formatting and lints.
lint:
    cargo fmt --check
    cargo clippy --locked --workspace --all-targets -- -D warnings

# Check licences, banned crates and sources. Needs cargo-deny.
deny:
    cargo deny check licenses bans sources

# --- tests -------------------------------------------------------------------------------------

# Run all tests of cargo, or those whose names contain FILTER.
test *FILTER:
    cargo test --locked --workspace {{ FILTER }}

# Run the unit tests only.
unit *FILTER:
    cargo test --locked --workspace --lib {{ FILTER }}

# Run the integration suite only (sockets, simulated and scripted backends).
suite *FILTER:
    cargo test --locked --test suite {{ FILTER }}

# Run the suite of Kubernetes discovery.
suite-kubernetes:
    cargo test --locked --features dns,kubernetes --lib --test suite kubernetes

# Run all tests of the laboratory (workspace `lab`), or those whose names contain FILTER.
lab *FILTER:
    cd lab && cargo test --locked --workspace {{ FILTER }}

# Write the lock file of the laboratory again, with the dependency versions of the gateway.
lab-lock:
    cp Cargo.lock lab/Cargo.lock
    cargo update --workspace --manifest-path lab/Cargo.toml

# Count allocations: a chunk and a scrape allocate nothing.
allocations:
    cargo test --locked --test allocations

# Build the core: without options, and without the commands of the feature `tools`.
minimal:
    cargo build --locked --no-default-features

# Compare the recorded responses of vLLM with the values that an independent Python parser reads from them.
wire:
    python3 tests/wire/oracle.py --check

# Fuzz each target with EXECUTIONS inputs.
fuzz EXECUTIONS="2500000":
    fuzz/run.sh {{ EXECUTIONS }}

# --- documents ---------------------------------------------------------------------------------

# Check generated documents, links and configuration examples.
docs:
    docs/check.sh

# Write the generated documents and rules again.
docs-renew:
    docs/check.sh --renew

# Build the documentation of the crates.
rustdoc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

# --- scripts with other programs ---------------------------------------------------------------

# Read a live metrics page of the gateway with Python's prometheus_client.
metrics-page:
    tests/metrics_page.sh

# Check the Prometheus rules with promtool, and the routing of alerts with amtool.
operations:
    tests/operations.sh

# Run the test suites of hostile clients with full load, or with a tenth of it: `just hostile --quick`.
hostile *ARGS:
    tests/hostile.sh {{ ARGS }}

# Check that the gateway and other servers read COUNT request bodies alike. Needs a Python package index.
bodies COUNT="100000":
    tests/bodies.sh {{ COUNT }}

# Compare responses that the SDKs of OpenAI and Anthropic read through the gateway and directly. Needs npm.
npm-sdks:
    tests/npm_sdks.sh

# Run h2spec against the client listener. Needs h2spec.
h2spec:
    cargo build --locked --release
    tests/h2spec.sh

# Open the live page in Chromium. Needs chromium and chromedriver.
page *ARGS:
    tests/page.sh {{ ARGS }}

# Run the commands of README.md, from a clone to the first request, with the program BINARY.
first-use BINARY *ARGS:
    TOKENWEIR={{ BINARY }} tests/first_use.sh {{ ARGS }}

# Run the gateway with an OpenTelemetry Collector, Jaeger, Prometheus and Alertmanager. Needs STACK_TOOLS.
stack *ARGS:
    tests/stack.sh {{ ARGS }}

# Stage faults. Check that the first screen names each of them, and nothing else.
staged-faults *ARGS:
    tests/staged_faults.sh {{ ARGS }}

# Install the programs for `just stack` into FOLDER.
stack-install FOLDER:
    tests/stack/install.sh {{ FOLDER }}

# Compare the values of the gateway with those of clients and of two real vLLM servers. Needs REAL_VLLM.
real-vllm *ARGS:
    tests/real_vllm.sh {{ ARGS }}

# Compare the policies round_robin and kv_aware on two real vLLM servers. Needs REAL_VLLM.
real-vllm-routing *ARGS:
    tests/real_vllm_routing.sh {{ ARGS }}

# Send the turns of agents to two real vLLM servers, with and without `sessions`. Needs REAL_VLLM.
real-vllm-sessions *ARGS:
    tests/real_vllm_sessions.sh {{ ARGS }}

# Compare several gateways with and without the exchange between gateways, in real time. Needs redis-server.
several-gateways *ARGS:
    cargo build --locked --release
    cargo build --locked --release --manifest-path lab/Cargo.toml
    tests/several_gateways.sh {{ ARGS }}

# --- load --------------------------------------------------------------------------------------

# Open as many concurrent streams as the limit of open files allows, then run slow readers and slow uploads.
load *ARGS:
    tests/load.sh {{ ARGS }}

# Run a mixed load for SECONDS, or `whole` for 4,320,000 requests. `--reload` sends SIGHUP every 5 s.
soak *ARGS:
    tests/soak.sh {{ ARGS }}

# --- measurements ------------------------------------------------------------------------------

# Count instructions and compare them with the baseline. Needs valgrind.
instructions:
    cargo bench --locked --profile counted --bench instructions

# Count instructions and write the baseline again.
instructions-record:
    INSTRUCTIONS_RECORD=1 cargo bench --locked --profile counted --bench instructions

# Measure one bench, NAME: parts, passthrough, accuracy, load or soak.
bench NAME *ARGS:
    cargo bench --locked --bench {{ NAME }} {{ ARGS }}

# --- packages ----------------------------------------------------------------------------------

# Build the shipped binary with profile-guided optimization, which builds it twice. Needs llvm-tools and lld.
release *ARGS:
    packaging/release.sh {{ ARGS }}

# Build and check the static binary.
static *ARGS:
    packaging/static.sh {{ ARGS }}

# Build the Debian package of BINARY.
deb BINARY *OUT:
    packaging/deb.sh {{ BINARY }} {{ OUT }}

# Build the wheel of BINARY.
wheel BINARY *OUT:
    packaging/wheel.sh {{ BINARY }} {{ OUT }}

# Build all packages of BINARY and check them. Nothing is installed.
packages BINARY:
    packaging/check.sh {{ BINARY }}

# Build the container image.
image:
    docker build -f docker/Dockerfile -t tokenweir -t "tokenweir:$(sed -n 's/^appVersion: //p' packaging/helm/tokenweir/Chart.yaml)" .
