#!/bin/sh
# Installs the Debian packages that the build needs and that are missing. Says what it does; does nothing if all are there.
set -eu
wanted="gcc g++ make cmake pkg-config binutils liblua5.4-dev libxxhash-dev libjansson-dev libcmocka-dev clang
        clang-format clang-tidy libclang-rt-14-dev locales python3"
missing=""
for package in $wanted; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "rota: missing packages:$missing; install them with this system's package manager" >&2
  exit 1
fi
echo "rota: installing$missing"
as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing
