#!/usr/bin/env bash
# Builds a Debian package of a binary. The last line of output is the path of the package:
#
#   packaging/deb.sh BINARY [OUT]        default: target/packages
#
# COMPRESSION=none builds a larger package a minute faster, for tests.
# Contents: binary in /usr/bin, configuration in /etc/tokenweir (a conffile), systemd units, manual pages,
# completions. The script finds the dependencies of the binary; a static binary needs only adduser.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

binary=$(realpath "${1:?usage: packaging/deb.sh BINARY [OUT]}")
mkdir -p "${2:-$here/../target/packages}"
out=$(cd "${2:-$here/../target/packages}" && pwd)
cd "$here/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

# The paths that Debian prescribes: /usr/lib for units, /usr/bin for programs, vendor-completions for zsh.
install -D --mode 755 --strip "$binary" "$root/usr/bin/tokenweir"
install -D --mode 644 packaging/deb/tokenweir.yaml "$root/etc/tokenweir/tokenweir.yaml"
cat config/tokenweir.yaml extras/*/tokenweir.yaml | install -D --mode 644 /dev/stdin "$root/usr/share/doc/tokenweir/examples/tokenweir.yaml"
install -D --mode 644 config/production.yaml "$root/usr/share/doc/tokenweir/examples/production.yaml"
for unit in packaging/systemd/*.service; do
  install -D --mode 644 "$unit" "$root/usr/lib/systemd/system/$(basename "$unit")"
done
sed -i 's|/usr/local/bin/|/usr/bin/|' "$root"/usr/lib/systemd/system/*.service
for guide in man completions-bash completions-zsh completions-fish; do
  "$binary" generate "$guide" --out "$root/usr" 2>/dev/null
done
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_tokenweir" "$root/usr/share/zsh/vendor-completions/"
rmdir "$root/usr/share/zsh/site-functions"
gzip --best --no-name "$root"/usr/share/man/man1/*.1
install -D --mode 644 packaging/deb/copyright "$root/usr/share/doc/tokenweir/copyright"
date=$(date --utc --rfc-email --date "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")
sed "s|@VERSION@|$version|; s|@DATE@|$date|" packaging/deb/changelog \
  | gzip --best --no-name >"$root/usr/share/doc/tokenweir/changelog.gz"
find "$root/usr" "$root/etc" -type d -exec chmod 755 {} +
find "$root/usr/share" -type f -exec chmod 644 {} +

mkdir "$root/DEBIAN"
echo /etc/tokenweir/tokenweir.yaml >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort --zero-terminated | xargs --null md5sum) >"$root/DEBIAN/md5sums"
install --mode 755 packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm "$root/DEBIAN"

# The newest glibc symbol version that the binary requires is the minimum version of libc6.
glibc=$({ readelf --wide --dyn-syms "$binary" | grep -o 'GLIBC_[0-9.]*' || true; } | sed 's/GLIBC_//' | sort --version-sort | tail -1)
{
  cat packaging/deb/control
  echo "Version: $version"
  echo "Architecture: $architecture"
  echo "Installed-Size: $(du --summarize --block-size 1024 --exclude DEBIAN "$root" | cut -f1)"
  echo "Depends: adduser${glibc:+, libc6 (>= $glibc), libgcc-s1}"
} >"$root/DEBIAN/control"

dpkg-deb --root-owner-group ${COMPRESSION:+"-Z$COMPRESSION"} --build "$root" "$out/tokenweir_${version}_$architecture.deb" >&2
echo "$out/tokenweir_${version}_$architecture.deb"
