#!/usr/bin/env bash
# run.sh NAME [REGEX]: builds this tree in a chroot of another distribution and runs its tests (those that match).
# The chroot is made once by debootstrap, in build/distro/NAME; MIRROR names another mirror than this machine's own.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
die() { printf 'test-distro: %s\n' "$*" >&2; exit 1; }

name=${1:-} regex=${2:-}
case "$name" in
  debian-13) suite=trixie ;;
  *) die "no distribution is called '$name'; there are: debian-13" ;;
esac
[ "$(id -u)" = 0 ] || die "making a chroot needs root"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' | grep -v security | sort -u | head -1)}
root=$PWD/build/distro/$name
jobs=${JOBS:-$(nproc)}

packages=(build-essential cmake ninja-build ccache pkg-config git python3 python3-pytest python3-numpy python3-safetensors
  strace libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libgtest-dev libxxhash-dev libzstd-dev
  libsqlite3-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libyaml-cpp-dev libgloo-dev libopenblas-dev iproute2 procps liburing-dev)

if [ ! -e "$root/.made" ]; then
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase "$suite" "$root" "$mirror"
  cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
  touch "$root/.made"
fi

mounts=()
leave() { for at in "${mounts[@]}"; do umount "$at" || umount -l "$at"; done; }
trap leave EXIT
hold() { mkdir -p "${!#}"; mount "$@"; mounts=("${!#}" "${mounts[@]}"); }
hold -t proc proc "$root/proc"
hold -t sysfs sysfs "$root/sys"
hold --bind /dev "$root/dev"
hold --bind /dev/pts "$root/dev/pts"
hold -t tmpfs tmpfs "$root/dev/shm"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }

if [ ! -e "$root/.have" ] || [ "$(cat "$root/.have")" != "${packages[*]}" ]; then
  inside apt-get update -qq
  inside apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  printf '%s' "${packages[*]}" >"$root/.have"
fi

mkdir -p "$root/src"
git ls-files -co --exclude-standard -z | tar --null -T - -c | tar -x -C "$root/src"
inside bash -ec "cd /src; git init -q . ; cmake --preset test >/dev/null; ninja -C build/test -j $jobs; mkdir -p build/test-results
ctest --test-dir build/test -j $jobs --output-on-failure --output-junit /src/build/test-results/test.xml ${regex:+-R '$regex'} |
  grep -v ' Passed ' | grep -v '^ *Start ' || true
CKPT_BIN=/src/build/test/bin CKPT_BUILD=/src/build/test python3 -m pytest -q tests integrations examples -p no:cacheprovider \
  --junit-xml=build/test-results/pytest-test.xml ${regex:+-k '$regex'} || true"
