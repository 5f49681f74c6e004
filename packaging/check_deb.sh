#!/usr/bin/env bash
# Installs, upgrades, removes and purges a Debian package in a chroot of Debian's packages. systemctl is a script that
# records its calls:
#
#   packaging/check_deb.sh DEB
set -euo pipefail

deb=$(realpath "${1:?usage: packaging/check_deb.sh DEB}")
if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
  printf '\n!! root and mmdebstrap are needed: the installation of the Debian package is NOT checked\n' >&2
  exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root calls=$work/root/calls

fail() {
  echo "the Debian package: $*" >&2
  exit 1
}

# The packages that the maintainer scripts use, and the dependencies of this one. They are unpacked without their own
# scripts, which takes a third of the time; dpkg therefore does not know them.
depends=$(dpkg-deb --field "$deb" Depends | sed 's/([^)]*)//g; s/[ ]//g')
if ! mmdebstrap --quiet --variant=extract --include="base-passwd,coreutils,dash,diffutils,dpkg,libc-bin,perl-base,sed,tar,$depends" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root"; then
  printf '\n!! the packages of Debian cannot be downloaded: the installation of the Debian package is NOT checked\n' >&2
  exit
fi
ln --symbolic --force dash "$root/bin/sh"
for file in passwd group; do cp "$root/usr/share/base-passwd/$file.master" "$root/etc/$file"; done
mkdir -p "$root/run/systemd/system" "$root/usr/local/sbin"
cat >"$root/usr/local/sbin/systemctl" <<'SYSTEMCTL'
#!/bin/sh
echo "$@" >>/calls
case $1 in
  list-units) [ ! -e /running ] || cat /running ;;
  restart) [ "$(cat /broken 2>/dev/null)" != "$2" ] ;;
esac
SYSTEMCTL
chmod 755 "$root/usr/local/sbin/systemctl"

# in_root COMMAND...: empties the list of calls, and runs a command in the chroot.
in_root() {
  : >"$calls"
  chroot "$root" /usr/bin/env PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}
# next NUMBER: writes the package with a higher version to /next.deb in the chroot.
next() {
  dpkg-deb --raw-extract "$deb" "$work/next"
  sed -i "s/^Version: .*/&+$1/" "$work/next/DEBIAN/control"
  dpkg-deb --root-owner-group -Znone --build "$work/next" "$root/next.deb" >/dev/null
  rm -r "$work/next"
}
dpkg_in_root() { in_root dpkg --force-depends "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "dpkg $* failed"; }; }
# The calls `restart UNIT` since the last in_root, separated by commas.
restarts() { grep '^restart ' "$calls" | paste --serial --delimiters , || true; }

cp "$deb" "$root/first.deb"
dpkg_in_root --install /first.deb
in_root tokenweir --version
in_root tokenweir check --syntax-only /etc/tokenweir/tokenweir.yaml
in_root getent passwd tokenweir >/dev/null || fail "the user tokenweir is missing"

# The restarts of an upgrade are separate calls, one after the other. The configuration of the operator stays.
printf '%s\n' 'tokenweir.service loaded active running x' 'tokenweir@1.service loaded active running x' \
  'tokenweir@2.service loaded active running x' >"$root/running"
echo '# mine' >>"$root/etc/tokenweir/tokenweir.yaml"
next 1
dpkg_in_root --install /next.deb
[ "$(restarts)" = 'restart tokenweir.service,restart tokenweir@1.service,restart tokenweir@2.service' ] || fail "the upgrade calls: $(cat "$calls")"
grep --quiet '# mine' "$root/etc/tokenweir/tokenweir.yaml" || fail "the upgrade replaces the configuration"
# An instance that does not start keeps the others from a restart.
echo tokenweir@1.service >"$root/broken"
next 2
dpkg_in_root --install /next.deb
[ "$(restarts)" = 'restart tokenweir.service,restart tokenweir@1.service' ] || fail "after a failed restart: $(cat "$calls")"
# A configuration that the new version refuses keeps the previous one running.
echo 'no_such_key: 1' >>"$root/etc/tokenweir/tokenweir.yaml"
next 3
dpkg_in_root --install /next.deb
[ -z "$(restarts)" ] || fail "a restart with an invalid configuration: $(cat "$calls")"

dpkg_in_root --remove tokenweir
grep --quiet '^disable --now tokenweir.service tokenweir.service tokenweir@1.service tokenweir@2.service$\|^disable --now tokenweir.service tokenweir@1.service tokenweir@2.service$' "$calls" || fail "the removal calls: $(cat "$calls")"
[ ! -e "$root/usr/bin/tokenweir" ] && [ -e "$root/etc/tokenweir/tokenweir.yaml" ] || fail "the removal leaves the program, or no configuration"
dpkg_in_root --purge tokenweir
[ ! -e "$root/etc/tokenweir" ] || fail "a purge leaves the configuration"
echo "installed, upgraded, removed and purged in a chroot"
