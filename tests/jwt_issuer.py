"""The checks of tests/jwt_issuer.sh.

    python tests/jwt_issuer.py GATEWAY FOLDER
"""

import pathlib
import socket
import subprocess
import sys
import time
from urllib.parse import parse_qs, urlsplit

import httpx

GATEWAY, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
PROVIDER = str(pathlib.Path(sys.executable).parent / "oidc-provider-mock")
CLIENT = "tokenweir-test"
# The gateway reads the keys of an issuer at most every 10 s.
REFRESH_SECONDS = 10


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


ISSUER_PORT, SIM_PORT, CLIENT_PORT, ADMIN_PORT = (free_port() for _ in range(4))
ISSUER = f"http://127.0.0.1:{ISSUER_PORT}"
running = []


def start(*command):
    log = open(FOLDER / f"{len(running)}.log", "w")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    running.append(process)
    return process


def wait_for(what, condition, limit=30):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            if condition():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    sys.exit(f"FAIL: {what} not within {limit} s")


def start_issuer():
    process = start(PROVIDER, "--port", str(ISSUER_PORT))
    discovery = f"{ISSUER}/.well-known/openid-configuration"
    wait_for("the issuer serves", lambda: httpx.get(discovery).status_code == 200)
    return process


def id_token():
    """The ID token of the authorization code flow."""
    redirect = "http://127.0.0.1/callback"
    query = {"client_id": CLIENT, "redirect_uri": redirect, "response_type": "code", "scope": "openid", "nonce": "1"}
    answer = httpx.post(f"{ISSUER}/oauth2/authorize", params=query, data={"sub": "alice"})
    code = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect}
    answer = httpx.post(f"{ISSUER}/oauth2/token", data=form, auth=(CLIENT, "secret"))
    return answer.json()["id_token"]


def status_of(token):
    body = {"model": "sim-model", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    headers = {"authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{CLIENT_PORT}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=20).status_code


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"FAIL: {what}: {found}, expected {expected}")
    print(f"ok: {what}: {found}")


def check():
    issuer = start_issuer()
    start(GATEWAY, "sim", "--backends", "1", "--listen", f"127.0.0.1:{SIM_PORT}")
    (FOLDER / "keys.yaml").write_text("tenants: [{ name: visitors, keys: [] }]\n")
    (FOLDER / "gateway.yaml").write_text(f"""
listen: 127.0.0.1:{CLIENT_PORT}
admin: 127.0.0.1:{ADMIN_PORT}
backends: [{{ url: "http://127.0.0.1:{SIM_PORT}" }}]
access: {{ keys_file: "{FOLDER}/keys.yaml" }}
jwt:
  refresh_interval: {REFRESH_SECONDS}s
  issuers: [{{ issuer: "{ISSUER}", audiences: [{CLIENT}], default_tenant: visitors }}]
""")
    start(GATEWAY, "serve", "--config", str(FOLDER / "gateway.yaml"))
    ready = f"http://127.0.0.1:{ADMIN_PORT}/readyz"
    wait_for("the gateway is ready", lambda: httpx.get(ready).status_code == 200)
    token = id_token()
    wait_for("the keys are read", lambda: status_of(token) != 503)
    expect("a token", status_of(token), 200)
    header, claims, signature = token.split(".")
    expect("changed claims", status_of(f"{header}.{claims[:-4]}AAAA.{signature}"), 401)
    expect("no signature", status_of(f"{header}.{claims}."), 401)
    issuer.terminate()
    issuer.wait()
    time.sleep(2 * REFRESH_SECONDS)
    expect("a token while the issuer is away", status_of(token), 200)
    # It generates a key at each start.
    start_issuer()
    new = id_token()
    wait_for("the new key is read", lambda: status_of(new) == 200, limit=3 * REFRESH_SECONDS)
    expect("a token of the removed key", status_of(token), 401)
    metrics = httpx.get(f"http://127.0.0.1:{ADMIN_PORT}/metrics").text
    refused = [line for line in metrics.splitlines() if line.startswith("tokenweir_jwt_")]
    print("\n".join(refused))


try:
    check()
finally:
    for process in running:
        process.kill()
