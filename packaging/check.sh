#!/usr/bin/env bash
# Makes each package of a binary and tries it. A program that is not there is skipped, loudly:
#
#   packaging/check.sh BINARY
#
# Nothing is installed on this machine: no script of a package is run.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "${1:?usage: packaging/check.sh BINARY}")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

have() {
  command -v "$1" >/dev/null && return
  printf '\n!! %s is not installed: %s is NOT checked\n' "$1" "$2" >&2
  return 1
}

# Whether the binary takes the configuration in a chart's ConfigMap.
check_configuration() {
  awk '/^  tokenweir\.yaml: \|/ { inside = 1; next } inside && /^(    |$)/ { sub(/^    /, ""); print; next } { inside = 0 }' \
    "$1" >"$out/chart-configuration.yaml"
  [ -s "$out/chart-configuration.yaml" ] || { echo "the chart has no ConfigMap with tokenweir.yaml" >&2; exit 1; }
  local said
  said=$("$binary" check "$out/chart-configuration.yaml" 2>&1) && { printf '%s\n' "$said"; return; }
  if grep 'built without Kubernetes' <<<"$said" >/dev/null; then
    printf '!! %s was built without --features kubernetes: the configuration of the chart is NOT checked\n' "$binary" >&2
  else
    printf '%s\n' "$said" >&2
    exit 1
  fi
}

echo "== static binary"
if readelf --dynamic "$binary" 2>/dev/null | grep NEEDED >/dev/null; then
  # It takes an optimised build, so it is not made here.
  printf '!! %s needs libraries: what packaging/static.sh makes is NOT checked\n' "$binary" >&2
else
  packaging/static.sh --check "$binary"
fi

echo "== completions and manual pages"
for guide in man completions-bash completions-zsh completions-fish; do
  "$binary" generate "$guide" --out "$out/usr" 2>/dev/null
done
bash -n "$out/usr/share/bash-completion/completions/tokenweir"
if have zsh "the completion of zsh"; then zsh -n "$out/usr/share/zsh/site-functions/_tokenweir"; fi
if have fish "the completion of fish"; then fish --no-execute "$out/usr/share/fish/vendor_completions.d/tokenweir.fish"; fi
if have mandoc "the manual"; then mandoc -T lint -W error "$out"/usr/share/man/man1/*.1; fi

echo "== Debian package"
if have dpkg-deb "the Debian package"; then
  deb=$(packaging/deb.sh "$binary" "$out" | tail -1)
  root=$out/root
  mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
  touch "$root/var/lib/dpkg/status"
  # Unpacked, not configured: postinst makes a user, and would make it on this machine.
  dpkg --root="$root" --log=/dev/null --force-not-root --unpack "$deb" >/dev/null
  "$root/usr/bin/tokenweir" --version
  (cd "$root" && md5sum --quiet --check var/lib/dpkg/info/tokenweir.md5sums)
  for script in packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm; do sh -n "$script"; done
fi

echo "== wheel"
if have python3 "the wheel"; then
  wheel=$(packaging/wheel.sh "$binary" "$out" | tail -1)
  python3 -m venv "$out/venv"
  "$out/venv/bin/pip" install --quiet --no-index "$wheel"
  "$out/venv/bin/tokenweir" --version
  if have twine "the description of the wheel"; then twine check "$wheel"; fi
fi

# What nobody must be able to install is refused, and says why.
refused() {
  local why=$1
  shift
  helm template gw packaging/helm/tokenweir "$@" >/dev/null 2>"$out/said" && { echo "the chart takes $*" >&2; exit 1; }
  grep --fixed-strings "$why" "$out/said" >/dev/null || { echo "the chart refuses $* without saying $why" >&2; cat "$out/said" >&2; exit 1; }
}

# Whether it stands in what was rendered.
rendered() {
  local file=$1 text
  shift
  for text in "$@"; do
    grep --fixed-strings -- "$text" "$file" >/dev/null || { echo "the chart renders no $text" >&2; exit 1; }
  done
}

echo "== chart"
if have helm "the chart"; then
  chart=packaging/helm/tokenweir
  helm lint --quiet "$chart"
  helm template gw "$chart" >"$out/chart.yaml"
  rendered "$out/chart.yaml" 'terminationGracePeriodSeconds: 330' 'scheme: HTTP }' 'readOnlyRootFilesystem: true'
  # What the chart writes must be what the gateway reads.
  check_configuration "$out/chart.yaml"
  cat >"$out/values.yaml" <<'VALUES'
vllm: { namespace: ai, port: http }
config:
  listen: 0.0.0.0:8443
  tls: { cert: /run/tls/tls.crt, key: /run/tls/tls.key, admin: true }
  access: { admin_token: { env: ADMIN_TOKEN } }
  reload: { watch: false }
  drain: { timeout: 1h 30m }
env: [{ name: ADMIN_TOKEN, valueFrom: { secretKeyRef: { name: gateway, key: admin } } }]
volumes: [{ name: tls, secret: { secretName: gateway-tls } }]
volumeMounts: [{ name: tls, mountPath: /run/tls, readOnly: true }]
autoscaling: { enabled: true }
serviceMonitor:
  enabled: true
  labels: { release: prometheus }
  authorization: { credentials: { name: gateway, key: admin } }
prometheusRule: { enabled: true, runbooks: "https://wiki.example.com/runbooks" }
dashboards: { enabled: true }
VALUES
  helm template gw "$chart" --values "$out/values.yaml" >"$out/full.yaml"
  # Ports and drain follow the configuration, a false wins over what is usual, and the rules are rules.
  rendered "$out/full.yaml" 'containerPort: 8443' 'value: "0.0.0.0:8443"' 'scheme: HTTPS }' 'scheme: https' \
    'terminationGracePeriodSeconds: 5430' 'watch: false' 'secretName: gateway-tls' 'name: ADMIN_TOKEN' \
    'release: prometheus' 'authorization:' 'alert: TokenweirNoBackend' 'record: tokenweir:slo_budget:ratio' \
    '"uid": "tokenweir-replica"' 'https://wiki.example.com/runbooks#tokenweirnobackend'
  check_configuration "$out/full.yaml"
  refused 'streams would be cut' --set terminationGracePeriodSeconds=305
  refused 'write durations of drain in s, m and h' --set drain.timeout=2weeks
  refused 'autoscaling' --set autoscaling.maxReplica=3
fi

# The first stage of docker/Dockerfile needs what it fetches; the last one is the image that runs.
check_image() {
  local store=(--root "$out/store" --runroot "$out/run" --storage-driver vfs) built=$out/built container
  mkdir -p "$built/src" "$built/etc/ssl/certs"
  cp "$binary" "$built/src/tokenweir"
  cp /etc/ssl/certs/ca-certificates.crt "$built/etc/ssl/certs/"
  sed -n '/^FROM scratch/,$p' docker/Dockerfile >"$out/Dockerfile"
  buildah "${store[@]}" bud --quiet --isolation chroot --build-context "build=$built" --tag tokenweir:check \
    --file "$out/Dockerfile" . >/dev/null
  [ "$(buildah "${store[@]}" inspect --format '{{.OCIv1.Config.User}}' tokenweir:check)" = 65532:65532 ] \
    || { echo "the image runs as root" >&2; exit 1; }
  container=$(buildah "${store[@]}" from tokenweir:check)
  buildah "${store[@]}" run --isolation chroot "$container" -- /tokenweir --version
  buildah "${store[@]}" run --isolation chroot "$container" -- /tokenweir check /etc/tokenweir/tokenweir.yaml
  buildah "${store[@]}" rm --all >/dev/null
}

echo "== image"
if have hadolint "the Dockerfile"; then hadolint docker/Dockerfile; fi
if readelf --dynamic "$binary" 2>/dev/null | grep NEEDED >/dev/null; then
  printf '!! %s needs libraries, and the image has none: it is NOT checked\n' "$binary" >&2
elif have buildah "the image"; then
  check_image
fi
