"""Measures the start with many keys: `python3 tests/many_keys.py PROGRAM [KEYS] [TENANTS]`.

It starts the program with a folder of keys files and with one key, and prints for each the time until the gateway is
ready and the memory of the process (VmRSS). It needs no backend.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

KEYS_PER_FILE = 7_000


def write_keys(folder, keys, tenants):
    per_tenant = keys // tenants
    names = [f"tenant-{number:05}" for number in range(tenants)]
    entries, files = [], 0
    for index, tenant in enumerate(names):
        for number in range(per_tenant):
            digest = hashlib.sha256(f"{index} {number}".encode()).hexdigest()
            entries.append((tenant, f'  - {{ name: key-{number}, hash: "sha256:{digest}" }}\n'))
    for start in range(0, len(entries), KEYS_PER_FILE):
        text, previous = "tenants:\n", None
        for tenant, key in entries[start : start + KEYS_PER_FILE]:
            if tenant != previous:
                is_first = start == 0 or previous is not None or entries[start - 1][0] != tenant
                limits = "  limits: { tokens_per_day: 1000000000 }\n" if is_first else ""
                text += f"- name: {tenant}\n{limits}  keys:\n"
                previous = tenant
            text += key
        (folder / f"keys-{files:03}.yaml").write_text(text)
        files += 1


def start(program, folder, keys, tenants):
    folder.mkdir()
    (folder / "keys").mkdir()
    write_keys(folder / "keys", keys, tenants)
    config = folder / "gateway.yaml"
    config.write_text(
        "listen: 127.0.0.1:18431\nadmin: 127.0.0.1:18432\n"
        f"backends: [{{ url: 'http://127.0.0.1:9' }}]\naccess: {{ keys_file: '{folder / 'keys'}' }}\n"
    )
    began = time.monotonic()
    process = subprocess.Popen(
        ["timeout", "120", program, "serve", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                urllib.request.urlopen("http://127.0.0.1:18432/livez", timeout=1).read()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.01)
        seconds = time.monotonic() - began
        time.sleep(3)
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        status = pathlib.Path(f"/proc/{children[0]}/status").read_text()
        memory = int(status.split("VmRSS:")[1].split()[0]) / 1024
    finally:
        process.terminate()
        process.wait()
    print(f"{keys} keys, {tenants} tenants: ready after {seconds:.2f} s, {memory:.1f} MiB")


def main():
    program = sys.argv[1]
    keys = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    tenants = int(sys.argv[3]) if len(sys.argv) > 3 else 5_000
    with tempfile.TemporaryDirectory() as folder:
        start(program, pathlib.Path(folder) / "one", 1, 1)
        start(program, pathlib.Path(folder) / "many", keys, tenants)


main()
