#!/usr/bin/env bash
# Scrapes a running gateway with two real Prometheus servers: one stores native histograms, the other one
# classic histograms. Fails unless both know each histogram and agree about its quantiles, within the width
# of the buckets. `PROMETHEUS` is the program, version 2.40 or later; default: the one in PATH.
#
#   TOKENWEIR  the gateway's binary   (default: built in debug mode)
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/common/gateway_program.sh
prometheus=${PROMETHEUS:-prometheus}
command -v "$prometheus" >/dev/null || { echo "no program $prometheus: set PROMETHEUS" >&2; exit 2; }
work=$(mktemp -d)
pids=()
stop() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap stop EXIT

binary=$(gateway_program debug)
printf 'metrics: { native_histograms: true }\n' >"$work/tokenweir.yaml"
"$binary" sim --listen 127.0.0.1:0 >"$work/sim" 2>&1 &
pids+=($!)
PYTHONPATH=tests/common python3 - "$work" "$binary" "$prometheus" <<'PY'
import json, re, subprocess, sys, time, urllib.parse, urllib.request

from servers import free_ports

work, binary, prometheus = sys.argv[1:]
started = []

def wait_for(what, find, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            found = find()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.2)
    raise SystemExit(f"no {what} within {seconds} s")

def start(*command, log):
    started.append(subprocess.Popen(command, stdout=open(f"{work}/{log}", "w"), stderr=subprocess.STDOUT))

def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as response:
        return response.headers["content-type"], response.read()

def query(port, expression):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    result = json.loads(get(url)[1])["data"]["result"]
    return float(result[0]["value"][1]) if result else None

try:
    address = wait_for("simulator", lambda: re.search(r"127\.0\.0\.1:\d+", open(f"{work}/sim").read()))
    listen, admin, *prometheus_ports = free_ports(4)
    start(binary, "serve", "--config", f"{work}/tokenweir.yaml", "--backend", f"http://{address.group(0)}",
          "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}", log="gateway")
    wait_for("ready gateway", lambda: get(f"http://127.0.0.1:{admin}/readyz"))
    ports = dict(zip(("classic", "native"), prometheus_ports))
    for name, flags in (("classic", []), ("native", ["--enable-feature=native-histograms"])):
        with open(f"{work}/{name}.yml", "w") as file:
            file.write("global: { scrape_interval: 1s }\nscrape_configs:\n- job_name: tokenweir\n"
                       f"  static_configs: [{{ targets: ['127.0.0.1:{admin}'] }}]\n")
        start(prometheus, f"--config.file={work}/{name}.yml", f"--storage.tsdb.path={work}/{name}",
              f"--web.listen-address=127.0.0.1:{ports[name]}", *flags, log=f"{name}.log")
    for name in ports:
        wait_for(f"scrape by {name}", lambda: query(ports[name], 'up{job="tokenweir"}'))
    model = json.loads(get(f"http://127.0.0.1:{listen}/v1/models")[1])["data"][0]["id"]
    for number in range(60):
        body = {"model": model, "stream": True, "max_tokens": 8 + number % 5,
                "messages": [{"role": "user", "content": "word " * (1 + number * 20)}]}
        request = urllib.request.Request(f"http://127.0.0.1:{listen}/v1/chat/completions",
                                         json.dumps(body).encode(), {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=30).read()
    accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
    media_type, page = get(f"http://127.0.0.1:{admin}/metrics", accept=accept)
    assert media_type.startswith("application/vnd.google.protobuf"), media_type
    compared = 0
    for histogram, least in (
        ("gen_ai_server_time_to_first_token_seconds", 60), ("gen_ai_server_request_duration_seconds", 60),
        ("tokenweir_inter_chunk_latency_seconds", 200), ("tokenweir_chunk_transit_seconds", 200),
        ("tokenweir_gateway_overhead_seconds", 60),
    ):
        count = lambda: query(ports["native"], f"histogram_count(sum({histogram}))")
        wait_for(histogram, lambda: (count() or 0) >= least)
        wait_for(histogram, lambda: query(ports["classic"], f"sum({histogram}_count)") == count())
        bounds = sorted(float(bound) for bound in set(re.findall(
            rf'{histogram}_bucket{{[^}}]*le="([0-9.e-]+)"', get(f"http://127.0.0.1:{admin}/metrics")[1].decode())))
        for quantile in (0.5, 0.9, 0.99):
            classic = query(ports["classic"], f"histogram_quantile({quantile}, sum by (le) ({histogram}_bucket))")
            native = query(ports["native"], f"histogram_quantile({quantile}, sum({histogram}))")
            # Both are inside the classic bucket of the quantile, wider by one native bucket at each side.
            upper = min((bound for bound in bounds if bound >= classic), default=float("inf"))
            lower = max((bound for bound in bounds if bound < classic), default=0.0)
            assert lower / 1.1 <= native <= upper * 1.1, (histogram, quantile, classic, native)
            print(f"{histogram} {quantile}: classic {classic:.6g}, native {native:.6g}")
            compared += 1
    assert query(ports["native"], "count(gen_ai_server_time_to_first_token_seconds_bucket)") is None
    print(f"{compared} quantiles agree; the page with native histograms has {len(page)} bytes")
except BaseException:
    for name in ("gateway", "native.log", "classic.log"):
        try:
            print(f"--- {name}\n" + open(f"{work}/{name}").read()[-2000:], file=sys.stderr)
        except OSError:
            pass
    raise
finally:
    for process in started:
        process.terminate()
    for process in started:
        process.wait(timeout=20)
PY
