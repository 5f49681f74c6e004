#!/usr/bin/env bash
# Checks signed tokens of a real issuer, oidc-provider-mock with Authlib: discovery, an ID token of the code flow, an
# unreachable issuer, and an issuer that returns with another key.
#
#   tests/jwt_issuer.sh
#
#   TOKENWEIR  the gateway's binary          (default: built in debug mode)
#   VENV       a folder for Python packages  (default: a temporary folder)
#   LIMIT      time limit                    (default: 120 seconds)
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/common/gateway_program.sh

command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gateway=$(gateway_program debug)
venv=${VENV:-$work/venv}
if [[ ! -x $venv/bin/oidc-provider-mock ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet oidc-provider-mock==0.3.4
fi
timeout --kill-after=10 "${LIMIT:-120}" "$venv/bin/python" tests/jwt_issuer.py "$gateway" "$work"
