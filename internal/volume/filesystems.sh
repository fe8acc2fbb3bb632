#!/bin/bash
# Runs tests of the volume on several file systems, or on those named, for make test-filesystems, and prints a table in Markdown. Needs root: it mounts
# images of 3 GB in a private mount namespace, which ends with the script. FUSE is bindfs, from PATH or extracted from Debian's package. A file
# system that this kernel or machine does not have is named, and left out.
set -euo pipefail
[ "$(id -u)" -eq 0 ] || { echo "make test-filesystems: run it as root, or as sudo unshare --mount" >&2; exit 1; }
if [ -z "${IN_NAMESPACE:-}" ]; then
  IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly volume='TestSync|TestPublish|TestMove|TestRemove|TestPin|TestRetire|TestAdopt|TestOwner|TestTrash|TestTombstone|TestLinks|TestDurab|TestView|TestPrepare|TestLFS'
work=$(mktemp -d -p "${FILESYSTEMS_DIR:-/var/tmp}")
cleanup() {
  for at in "$work"/at/* "$work/tmp"; do umount -l "$at" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
mkdir "$work/at"
chmod 755 "$work" "$work/at"

# image mounts a new file system of a type.
image() {
  command -v "mkfs.$1" >/dev/null || { echo "there is no mkfs.$1" >&2; return 1; }
  truncate -s 3G "$work/$1.image"
  "mkfs.$1" -q "$work/$1.image" >&2 && mount -o loop "$work/$1.image" "$work/at/$1"
}

overlay() {
  mkdir -p "$work/tmp"
  mount -t tmpfs tmpfs "$work/tmp"
  mkdir "$work/tmp/lower" "$work/tmp/upper" "$work/tmp/work"
  mount -t overlay overlay -o "lowerdir=$work/tmp/lower,upperdir=$work/tmp/upper,workdir=$work/tmp/work" "$work/at/overlay"
}

fuse() {
  local program=bindfs
  if ! command -v bindfs >/dev/null; then
    mkdir "$work/bindfs"
    (cd "$work/bindfs" && apt-get -qq download bindfs && for lib in libfuse2 libfuse2t64 libfuse3-3 fuse3; do apt-get -qq download "$lib" || true; done && for package in *.deb; do dpkg-deb --extract "$package" .; done) >&2 || return 1
    program=$work/bindfs/usr/bin/bindfs
    export LD_LIBRARY_PATH=$work/bindfs/usr/lib/x86_64-linux-gnu:$work/bindfs/lib/x86_64-linux-gnu
    export PATH=$PATH:$work/bindfs/bin:$work/bindfs/usr/bin
  fi
  mkdir "$work/below"
  "$program" "$work/below" "$work/at/fuse"
}

CGO_ENABLED=0 go test -trimpath -c -o "$work/volume.test" ./internal/volume
CGO_ENABLED=0 go test -trimpath -c -o "$work/tree.test" ./tree

# suite runs the tests of a package with all their files on a file system, and prints how many passed, and the time. What fails is tried
# again, alone.
suite() {
  local package=$1 match=$2 began=$EPOCHREALTIME log=$work/log again=
  test_in() { (cd "$package" && TMPDIR=$at/tmp timeout 900 "$work/$(basename "$package").test" -test.v -test.run "$@" >"$log" 2>&1); }
  test_in "$match" || again=$(grep -oE '^--- FAIL: [A-Za-z0-9_]+' "$log" | cut -d' ' -f3 | paste -sd'|')
  local ended=$EPOCHREALTIME passed bad
  passed=$(grep -c '^--- PASS' "$log" || true) bad=$(grep -c '^--- FAIL' "$log" || true)
  if [ "$bad" -gt 0 ] && test_in "^($again)\$" -test.parallel 1; then
    echo "$kind $package: passed only alone: $again" >&2
    passed=$((passed + bad)) bad=0
  fi
  [ "$bad" -eq 0 ] && [ "$passed" -gt 0 ] || { grep -E -B12 '^--- FAIL|^panic' "$log" | grep -vE '^=== |--- (PASS|SKIP)' | head -n 60 || tail -n 20 "$log"; } >&2
  awk -v p="$passed" -v f="$bad" -v s="$began" -v e="$ended" 'BEGIN { printf "%d passed%s, %.1f s", p, f ? ", " f " FAILED" : "", e - s }'
}

failed=
echo "| file system | volume | tree |"
echo "|---|---|---|"
[ $# -gt 0 ] || set -- ext4 xfs btrfs tmpfs overlay fuse
for kind; do
  at=$work/at/$kind
  mkdir "$at"
  case $kind in
  tmpfs) mount -t tmpfs tmpfs "$at" ;;
  overlay) overlay ;;
  fuse) fuse ;;
  *) image "$kind" ;;
  esac || { echo "| $kind | cannot be mounted here | |"; continue; }
  mkdir "$at/tmp"
  chmod 755 "$at" "$at/tmp"
  row="| $kind | $(suite internal/volume "$volume") | $(suite tree .) |"
  echo "$row"
  case $row in *FAILED* | *"| 0 passed"*) failed=1 ;; esac
  umount -l "$at" && rm -f "$work/$kind.image"
done
[ -z "$failed" ]
