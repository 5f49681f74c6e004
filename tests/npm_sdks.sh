#!/usr/bin/env bash
# Compares responses that the official npm packages of OpenAI and Anthropic read through a gateway with responses that
# they read directly. It compares the bytes of the body, the values that the SDK returns, and the fields of its errors.
# The backends are `tokenweir sim` and a server that replays the recordings in tests/wire/python. With BACKEND, the
# backend is a real vLLM without other clients, and the recordings are not replayed.
#
#   tests/npm_sdks.sh
#   BACKEND=http://127.0.0.1:8000 tests/npm_sdks.sh
#
#   BACKEND    URL of a vLLM server                    (default: starts `tokenweir sim`)
#   TOKENWEIR  the gateway's binary                    (default: built in debug mode)
#   NPM_SDKS   a folder with node_modules              (default: a temporary folder; npm installs the packages)
#   LIMIT      time limit                              (default: 300 seconds)
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
. tests/common/gateway_program.sh

packages=(openai@7.57.0 @anthropic-ai/sdk@1.14.0)
for program in node npm; do
  command -v "$program" >/dev/null || { echo "skipped: $program is not installed"; exit 0; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

gateway=$(gateway_program debug)
sdks=${NPM_SDKS:-$work}
if [[ ! -d $sdks/node_modules/openai || ! -d $sdks/node_modules/@anthropic-ai/sdk ]]; then
  npm install --prefix "$sdks" --silent --no-audit --no-fund --ignore-scripts "${packages[@]}"
fi

SDKS=$(realpath "$sdks") GATEWAY=$gateway WORK=$work \
  timeout --kill-after=20 "${LIMIT:-300}" node tests/npm_sdks/check.mjs
