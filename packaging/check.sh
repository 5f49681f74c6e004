#!/usr/bin/env bash
# Builds each package of a binary and tests it. A check whose program is missing is skipped with a message:
#
#   packaging/check.sh BINARY
#
# It installs nothing on this machine and runs no script of a package.
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

# Checks the configuration in a ConfigMap of the chart with the binary.
check_configuration() {
  awk '/^  tokenweir\.yaml: \|/ { inside = 1; next } inside && /^(    |$)/ { sub(/^    /, ""); print; next } { inside = 0 }' \
    "$1" >"$out/chart-configuration.yaml"
  [ -s "$out/chart-configuration.yaml" ] || { echo "the chart has no ConfigMap with tokenweir.yaml" >&2; exit 1; }
  local output
  output=$("$binary" check --syntax-only "$out/chart-configuration.yaml" 2>&1) && { printf '%s\n' "$output"; return; }
  if grep 'built without Kubernetes' <<<"$output" >/dev/null; then
    printf '!! %s was built without --features kubernetes: the configuration of the chart is NOT checked\n' "$binary" >&2
  else
    printf '%s\n' "$output" >&2
    exit 1
  fi
}

echo "== static binary"
if readelf --dynamic "$binary" 2>/dev/null | grep NEEDED >/dev/null; then
  # A static binary needs an optimised build, which this script does not do.
  printf '!! %s needs libraries: the binary of packaging/static.sh is NOT checked\n' "$binary" >&2
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
  # --unpack does not run postinst, which would create a user on this machine.
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

# assert_rejected MESSAGE ARGUMENT...: the chart rejects these values with this message.
assert_rejected() {
  local message=$1
  shift
  helm template gw packaging/helm/tokenweir "$@" >/dev/null 2>"$out/stderr" && { echo "the chart accepts $*" >&2; exit 1; }
  grep --fixed-strings "$message" "$out/stderr" >/dev/null || { echo "the chart rejects $* without the message: $message" >&2; cat "$out/stderr" >&2; exit 1; }
}

# assert_rendered FILE TEXT...: the rendered chart contains each text.
assert_rendered() {
  local file=$1 text
  shift
  for text in "$@"; do
    grep --fixed-strings -- "$text" "$file" >/dev/null || { echo "the rendered chart has no $text" >&2; exit 1; }
  done
}

echo "== chart"
if have helm "the chart"; then
  chart=packaging/helm/tokenweir
  helm lint --quiet "$chart"
  helm template gw "$chart" >"$out/chart.yaml"
  assert_rendered "$out/chart.yaml" 'terminationGracePeriodSeconds: 330' 'scheme: HTTP }' 'readOnlyRootFilesystem: true'
  # The gateway must accept the configuration that the chart renders.
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
  # Ports and the grace period follow `config`, `false` overrides a default of the chart, and the rules are rendered.
  assert_rendered "$out/full.yaml" 'containerPort: 8443' 'value: "0.0.0.0:8443"' 'scheme: HTTPS }' 'scheme: https' \
    'terminationGracePeriodSeconds: 5430' 'watch: false' 'secretName: gateway-tls' 'name: ADMIN_TOKEN' \
    'release: prometheus' 'authorization:' 'alert: TokenweirNoBackend' 'record: tokenweir:slo_budget:ratio' \
    '"uid": "tokenweir-backend"' 'https://wiki.example.com/runbooks#tokenweirnobackend'
  check_configuration "$out/full.yaml"
  if have kubernetes-validate "the schema of the objects"; then
    kubernetes-validate --strict --quiet --no-warn "$out/chart.yaml" "$out/full.yaml"
  fi
  helm template gw "$chart" --set prometheusRule.enabled=true,config.tls.admin=true >"$out/runbooks.yaml"
  assert_rendered "$out/runbooks.yaml" 'https://gw-admin.default.svc:9090/runbooks#tokenweirnobackend'
  helm template gw "$chart" --set adminToken.secret=gateway-admin >"$out/token.yaml"
  assert_rendered "$out/token.yaml" 'name: TOKENWEIR_ADMIN_TOKEN' 'unauthenticated_metrics: true'
  check_configuration "$out/token.yaml"
  # limits.memory follows the limit of the container. `config` overrides it.
  for limit in 1Gi=768 512Mi=384 1.5Gi=1152 2G=1430 1073741824=768; do
    helm template gw "$chart" --set resources.limits.memory="${limit%=*}" --set config.limits.body=1MiB >"$out/limit.yaml"
    assert_rendered "$out/limit.yaml" "memory: ${limit#*=}MiB" 'body: 1MiB'
  done
  check_configuration "$out/limit.yaml"
  helm template gw "$chart" --set config.limits.memory=2GiB >"$out/limit.yaml"
  assert_rendered "$out/limit.yaml" 'memory: 2GiB'
  helm template gw "$chart" --set resources.limits=null >"$out/limit.yaml"
  ! grep MiB "$out/limit.yaml" || { echo "the chart limits the memory of a container without a limit" >&2; exit 1; }
  assert_rejected 'write a quantity such as 1536Mi' --set resources.limits.memory=lots
  assert_rejected 'streams would be cut' --set terminationGracePeriodSeconds=305
  assert_rejected 'write durations of drain in s, m and h' --set drain.timeout=2weeks
  assert_rejected 'autoscaling' --set autoscaling.maxReplica=3
fi

# Builds the last stage of docker/Dockerfile only. The first stage needs a network.
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
  printf '!! %s needs libraries, and the image has none: the image is NOT checked\n' "$binary" >&2
elif have buildah "the image"; then
  check_image
fi
