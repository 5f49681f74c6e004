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

echo "== chart"
if have helm "the chart"; then
  helm lint --quiet packaging/helm/tokenweir
  helm template gw packaging/helm/tokenweir \
    --set serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboards.enabled=true,autoscaling.enabled=true \
    >/dev/null 2>&1
  # What the chart writes must be what the gateway reads.
  helm template gw packaging/helm/tokenweir >"$out/chart.yaml"
  check_configuration "$out/chart.yaml"
fi
