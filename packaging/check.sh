#!/usr/bin/env bash
# Builds each package of a binary and tests it. A check whose program is missing is skipped with a message:
#
#   packaging/check.sh BINARY
#
#   LAB  the program tokenweir-lab, for the wheel and the image (default: the packages are checked without it)
#
# It installs nothing on this machine. Scripts of the Debian package run in a chroot.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "${1:?usage: packaging/check.sh BINARY}")
version=$("$binary" --version | cut -d ' ' -f 2)
if [ -z "${LAB-}" ]; then printf '!! LAB is not set: tokenweir-lab is NOT checked\n' >&2; fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# have PROGRAM CHECK: whether a program is installed. If not, says that CHECK is skipped.
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
  "$binary" check --syntax-only "$out/chart-configuration.yaml"
}

echo "== release"
packaging/release_notes.sh "v$version" >/dev/null
! packaging/release_notes.sh "v$version.1" >/dev/null 2>&1 || { echo "a tag of another version is accepted" >&2; exit 1; }
# The workflow runs these scripts only on a tag.
for script in $(grep --only-matching --no-filename 'packaging/[a-z_]*\.sh' .github/workflows/*.yml | sort --unique); do
  [ -x "$script" ] || { echo "a workflow runs $script, which is missing" >&2; exit 1; }
done
if have actionlint "the workflows"; then actionlint .github/workflows/*.yml; fi
if have cargo-cyclonedx "the software bill of materials"; then
  python3 -m json.tool "$(packaging/sbom.sh "$out" | tail -1)" >/dev/null
fi

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
  deb=$(COMPRESSION=none packaging/deb.sh "$binary" "$out" | tail -1)
  root=$out/root
  mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
  touch "$root/var/lib/dpkg/status"
  # --unpack does not run postinst, which would create a user on this machine.
  dpkg --root="$root" --log=/dev/null --force-not-root --unpack "$deb" >/dev/null
  "$root/usr/bin/tokenweir" --version
  (cd "$root" && md5sum --quiet --check var/lib/dpkg/info/tokenweir.md5sums)
  for script in packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm; do sh -n "$script"; done
  packaging/check_deb.sh "$deb"
fi

echo "== systemd units"
if have systemd-analyze "the systemd units"; then
  mkdir "$out/units"
  for unit in packaging/systemd/*.service; do
    # The program is not installed here, and only an instance of a template can be read.
    sed "s|/usr/local/bin/tokenweir|$binary|" "$unit" >"$out/units/$(basename "$unit" | sed 's/@/@1/')"
  done
  # An unknown value is a warning and not a failure.
  systemd-analyze verify --man=no "$out"/units/*.service 2>&1 | tee "$out/stderr"
  [ ! -s "$out/stderr" ] || { echo "systemd does not understand the units" >&2; exit 1; }
  systemd-analyze --version | head -1
fi

echo "== wheel"
if have python3 "the wheel"; then
  wheel=$(packaging/wheel.sh "$binary" "$out" | tail -1)
  python3 -m venv "$out/venv"
  "$out/venv/bin/pip" install --quiet --no-index "$wheel"
  "$out/venv/bin/tokenweir" --version
  if [ -n "${LAB-}" ]; then "$out/venv/bin/tokenweir-lab" --version; fi
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
  packaging/helm.sh "$out"
  IMAGE=registry.example.com/gateway packaging/helm.sh "$out"
  helm template gw "$out/tokenweir-$version.tgz" >"$out/packaged.yaml"
  assert_rendered "$out/packaged.yaml" "image: \"registry.example.com/gateway:$version\""
  helm lint --quiet "$chart"
  helm template gw "$chart" >"$out/chart.yaml"
  assert_rendered "$out/chart.yaml" 'terminationGracePeriodSeconds: 330' 'scheme: HTTP }' 'readOnlyRootFilesystem: true' \
    "image: \"tokenweir:$version\"" 'kind: Secret' 'name: TOKENWEIR_ADMIN_TOKEN' \
    'service.instance.id=$(POD_NAME)'
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
service: { type: LoadBalancer, port: 443, nodePort: 30443, loadBalancerIP: 192.0.2.1 }
serviceAccount: { annotations: { eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/gateway" } }
podLabels: { team: serving }
podAnnotations: { linkerd.io/inject: "false" }
priorityClassName: high
podSecurityContext: { fsGroup: 65532 }
networkPolicy: { enabled: true, clients: [{ namespaceSelector: { matchLabels: { app: chat } } }] }
VALUES
  helm template gw "$chart" --values "$out/values.yaml" >"$out/full.yaml"
  # Ports and the grace period follow `config`, `false` overrides a default of the chart, and the rules are rendered.
  assert_rendered "$out/full.yaml" 'containerPort: 8443' 'value: "0.0.0.0:8443"' 'scheme: HTTPS }' 'scheme: https' \
    'terminationGracePeriodSeconds: 5430' 'watch: false' 'secretName: gateway-tls' 'name: ADMIN_TOKEN' \
    'release: prometheus' 'authorization:' 'alert: TokenweirDown' 'record: tokenweir:slo_budget:ratio' \
    '"uid": "tokenweir-backend"' 'https://wiki.example.com/runbooks#tokenweirdown' 'nodePort: 30443' \
    'loadBalancerIP: 192.0.2.1' 'role-arn' 'team: serving' 'linkerd.io/inject' 'priorityClassName: high' 'fsGroup: 65532' \
    'kind: NetworkPolicy' '- podSelector: {}'
  ! grep 'kind: Secret' "$out/full.yaml" || { echo "the chart creates a token beside config.access.admin_token" >&2; exit 1; }
  check_configuration "$out/full.yaml"
  # The values of the guide for backends with API keys.
  sed -n '/^# values.yaml, for:/,/^```$/{/^```$/!p}' docs/guides/kubernetes.md >"$out/guide.yaml"
  helm template gw "$chart" --values "$out/guide.yaml" >"$out/backends.yaml"
  assert_rendered "$out/backends.yaml" 'discovery: []' 'name: gpu-1' 'secretName: gateway-keys'
  if have kubernetes-validate "the schema of the objects"; then
    kubernetes-validate --strict --quiet --no-warn "$out/chart.yaml" "$out/full.yaml"
  fi
  helm template gw "$chart" --set prometheusRule.enabled=true,config.tls.admin=true >"$out/runbooks.yaml"
  assert_rendered "$out/runbooks.yaml" 'https://gw-admin.default.svc:9090/runbooks#tokenweirdown'
  helm template gw "$chart" --set adminToken.secret=gateway-admin >"$out/token.yaml"
  assert_rendered "$out/token.yaml" 'name: TOKENWEIR_ADMIN_TOKEN' 'unauthenticated_metrics: true'
  check_configuration "$out/token.yaml"
  # A scaler of the backends: without them the gateways stay ready, because requests wait in them.
  ! grep 'ScaledObject' "$out/full.yaml" || { echo "the chart makes a ScaledObject by default" >&2; exit 1; }
  keda=(--set keda.enabled=true,keda.target.name=vllm,keda.model=llama,keda.prometheus=http://prometheus:9090)
  helm template gw "$chart" "${keda[@]}" >"$out/keda.yaml"
  assert_rendered "$out/keda.yaml" 'kind: ScaledObject' 'minReplicaCount: 0' 'gen_ai_request_model="llama"' 'name: vllm' 'type: external-push'
  ! grep 'path: /readyz' "$out/keda.yaml" || { echo "a gateway that is not ready gets no requests that could wait" >&2; exit 1; }
  helm template gw "$chart" "${keda[@]}" --set keda.minReplicas=1 >"$out/keda.yaml"
  assert_rendered "$out/keda.yaml" 'path: /readyz'
  assert_rejected 'keda.model is empty' --set keda.enabled=true,keda.target.name=vllm
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
  assert_rejected 'write durations of drain in s, m and h' --set drain.timeout=forever
  assert_rejected "'lisen' not allowed" --set config.lisen=0.0.0.0:8080
  assert_rejected 'got number, want string' --set config.listen=8080
  assert_rejected 'cannot reach loopback' --set config.admin=127.0.0.1:9090
  assert_rejected 'write 0.0.0.0:PORT' --set config.listen=gateway
  # Pods are replaced for a change that a reload does not apply, and not for another one.
  checksum() { helm template gw "$chart" "$@" | grep checksum/; }
  [ "$(checksum)" = "$(checksum --set config.routing.policy=p2c,config.drain.delay=9s)" ] \
    || { echo "a reloadable key replaces the pods" >&2; exit 1; }
  [ "$(checksum)" != "$(checksum --set config.log.level=debug)" ] || { echo "no pod gets a new log.level" >&2; exit 1; }
  # A value that is removed is not needed or named, and no template fails on it.
  python3 - "$chart/values.schema.json" >"$out/paths" <<'PATHS'
import json, sys
for key, value in json.load(open(sys.argv[1]))["properties"].items():
    print(key)
    print(*(f"{key}.{child}" for child in value.get("properties", {}) if key != "config"), sep="\n")
PATHS
  for path in $(grep --invert-match '^$' "$out/paths"); do
    helm template gw "$chart" --set "$path=null" >"$out/null.yaml" 2>"$out/stderr" && continue
    grep --fixed-strings "don't meet the specifications of the schema" "$out/stderr" >/dev/null \
      || { echo "a template fails on $path=null" >&2; cat "$out/stderr" >&2; exit 1; }
  done
fi

# Builds the last stage of docker/Dockerfile only. The first stage needs a network.
check_image() {
  local store=(--root "$out/store" --runroot "$out/run" --storage-driver vfs) built=$out/built container
  mkdir -p "$built/src" "$built/etc/ssl/certs"
  cp "$binary" "$built/src/tokenweir"
  cp "${LAB:-$binary}" "$built/src/tokenweir-lab"
  cp /etc/ssl/certs/ca-certificates.crt "$built/etc/ssl/certs/"
  sed -n '/^FROM scratch$/,$p' docker/Dockerfile >"$out/Dockerfile"
  buildah "${store[@]}" bud --quiet --isolation chroot --build-context "build=$built" --tag tokenweir:check \
    --file "$out/Dockerfile" . >/dev/null
  [ "$(buildah "${store[@]}" inspect --format '{{.OCIv1.Config.User}}' tokenweir:check)" = 65532:65532 ] \
    || { echo "the image runs as root" >&2; exit 1; }
  container=$(buildah "${store[@]}" from tokenweir:check)
  buildah "${store[@]}" run --isolation chroot "$container" -- /tokenweir --version
  buildah "${store[@]}" run --isolation chroot "$container" -- /tokenweir check /etc/tokenweir/tokenweir.yaml
  buildah "${store[@]}" run --isolation chroot "$container" -- /tokenweir-lab --version
  buildah "${store[@]}" rm --all >/dev/null
}

# Lays out what the first stage of docker/Dockerfile copies, and looks for each file that the program was built from:
# the compiler lists the files of a crate beside its result.
check_image_context() {
  local context=$out/context library crate seen=" " file files missing=0
  mkdir "$context"
  while read -r -a words; do
    local sources=("${words[@]::${#words[@]}-1}") target=$context/${words[-1]%.}
    # A folder is copied without its name.
    mkdir -p "$(dirname "$target")"
    if [ -d "${sources[0]}" ]; then cp -r "${sources[0]}" "$target"; else mkdir -p "$target" && cp "${sources[@]}" "$target"; fi
  done < <(sed '/^FROM scratch/,$d' docker/Dockerfile | sed -n 's/^COPY //p')
  (cd "$context" && cargo metadata --offline --locked --no-deps --format-version 1 >/dev/null)
  # The newest of each crate: those that were built last.
  for library in $(ls -t "$libraries"/libtokenweir*.rlib); do
    crate=$(basename "$library" .rlib) crate=${crate#lib}
    case $seen in *" ${crate%-*} "*) continue ;; esac
    # Skips a crate that was built for the workspace lab: its paths are absolute, or in the folder of lab.
    files=$(sed -n 's/^\([^ ]*\):$/\1/p' "$libraries/$crate.d" | sed "s|^$PWD/||")
    # shellcheck disable=SC2086
    ls $files >/dev/null 2>&1 || continue
    seen+="${crate%-*} "
    for file in $files; do
      [ -e "$context/$file" ] || { echo "docker/Dockerfile does not copy $file, which $crate needs" >&2; missing=1; }
    done
  done
  return "$missing"
}

echo "== image"
if have hadolint "the Dockerfile"; then hadolint docker/Dockerfile; fi
libraries=$(dirname "$binary")/deps
if compgen -G "$libraries/libtokenweir*.rlib" >/dev/null; then
  check_image_context
else
  printf '!! cargo did not build %s in its folder: the context of the image is NOT checked\n' "$binary" >&2
fi
if readelf --dynamic "$binary" 2>/dev/null | grep NEEDED >/dev/null; then
  printf '!! %s needs libraries, and the image has none: the image is NOT checked\n' "$binary" >&2
elif have buildah "the image"; then
  check_image
fi
