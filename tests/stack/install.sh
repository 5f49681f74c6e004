#!/usr/bin/env bash
# Installs the programs of components.sh into a folder, for tests/stack.sh. It installs nothing outside of the
# folder and starts no service. It does not change programs that are already there. A program that cannot be
# installed is skipped with a message.
#
#   tests/stack/install.sh FOLDER [debian|browser|jaeger|collector]...
#
# Without names it installs all. It needs apt-get, dpkg, go and python3, about 4 GB of disk and, the first time, a
# quarter of an hour.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=components.sh
. "$here/components.sh"
[[ $# -gt 0 ]] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
mkdir -p "$1/bin" "$1/logs"
folder=$(cd "$1" && pwd)
shift
export GOFLAGS="${GOFLAGS:-} -p=2 -buildvcs=false"

# unpack PACKAGE...: unpacks the packages and their missing dependencies to FOLDER/root.
unpack() {
  local debs=$folder/debs/$1 deb
  mkdir -p "$debs/partial" "$folder/root"
  apt-get install -y --no-install-recommends --download-only --reinstall \
    -o Debug::NoLocking=1 -o Dir::Cache::archives="$debs" -o APT::Sandbox::User= "$@"
  for deb in "$debs"/*.deb; do dpkg -x "$deb" "$folder/root"; done
}

debian() {
  local program
  unpack "${DEBIAN[@]}"
  for program in prometheus promtool; do
    ln -sf "../root/usr/bin/$program" "$folder/bin/$program"
  done
  ln -sf ../root/usr/bin/amtool "$folder/bin/amtool"
  # Alertmanager reads its templates from /usr/share, so an overlay mount makes them appear there.
  program alertmanager <<'E'
exec unshare --map-root-user --mount sh -c '
  mount -t overlay overlay -o "lowerdir=$0/usr/share:/usr/share" /usr/share &&
    exec "$0/usr/bin/prometheus-alertmanager" "$@"' "$root" "$@"
E
}

browser() {
  unpack "${BROWSER[@]}"
  program chromium <<'E'
libraries=$root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH="$libraries:$libraries/pulseaudio"
exec "$root/usr/lib/chromium/chromium" "$@"
E
  # tests/page.sh needs chromedriver.
  program chromedriver <<'E'
export LD_LIBRARY_PATH="$root/usr/lib/x86_64-linux-gnu"
exec "$root/usr/bin/chromedriver" "$@"
E
}

# program NAME <SCRIPT: writes a start script. In the script, $root is the folder of the unpacked packages.
program() {
  { printf '#!/bin/sh\nroot=$(cd "$(dirname "$0")/../root" && pwd)\n'; cat; } >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}

# Jaeger is built in its own module, because go.sum there has the checksums of all dependencies. The module
# has no files of the UI: they are built from another repository, which is neither a Go module nor an npm
# package. So this Jaeger serves its API and a placeholder page. Only the official images have a UI.
jaeger() {
  local source work=$folder/build/jaeger
  mkdir -p "$folder/build"
  source=$(cd "$folder" && go mod download -json "$JAEGER" | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
  rm -rf "$work"
  cp -r "$source" "$work"
  chmod -R u+w "$work"
  (cd "$work" && go build -trimpath -ldflags "-s -w" -o "$folder/bin/jaeger" ./cmd/jaeger)
  rm -rf "$work"
}

collector() {
  local work=$folder/build/collector
  rm -rf "$work"
  mkdir -p "$work"
  GOBIN=$work go install "$OTEL_CORE/cmd/builder@$OTEL"
  manifest >"$work/manifest.yaml" "$work"
  (cd "$work" && ./builder --config manifest.yaml)
  mv "$work/out/otelcol" "$folder/bin/otelcol"
  rm -rf "$work"
}

# Prints the manifest for the builder of the OpenTelemetry Collector.
manifest() {
  printf 'dist: { name: otelcol, version: %s, output_path: %s/out }\n' "${OTEL#v}" "$1"
  section receivers "$OTEL" "${RECEIVERS[@]}"
  section processors "$OTEL" "${PROCESSORS[@]}"
  section connectors "$OTEL" "${CONNECTORS[@]}"
  section exporters "$OTEL" "${EXPORTERS[@]}"
  section extensions "$OTEL" "${EXTENSIONS[@]}"
  section providers "$OTEL_PROVIDERS" "${PROVIDERS[@]}"
}

section() {
  printf '%s:\n' "$1"
  printf "  - gomod: %s $2\n" "${@:3}"
}

# The file whose existence shows that a component is installed.
installed_file() {
  case $1 in
    debian) echo bin/alertmanager ;;
    browser) echo bin/chromium ;;
    jaeger) echo bin/jaeger ;;
    collector) echo bin/otelcol ;;
    *) echo "unknown component: $1" >&2; exit 2 ;;
  esac
}

status=0
[[ $# -gt 0 ]] || set -- debian browser jaeger collector
for component in "$@"; do
  file=$folder/$(installed_file "$component")
  log=$folder/logs/$component.log
  if [[ -x $file ]]; then
    echo "$component: already installed"
    continue
  fi
  SECONDS=0
  # The installation runs in a subshell, because set -e has no effect in a function that is called in a
  # condition.
  set +e
  (set -e; "$component") >"$log" 2>&1 </dev/null
  set -e
  if [[ -x $file ]]; then
    echo "$component: installed in $SECONDS s"
  else
    echo "$component: skipped; the end of $log:"
    grep -v '^go: downloading' "$log" | tail -n 3
    status=1
  fi
done
exit "$status"
