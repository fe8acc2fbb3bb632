#!/bin/bash
# Runs tests against several Redis and Valkey servers, for make test-matrix, and prints a table in Markdown.
#
#   internal/redistest/matrix.sh [NAME=PROGRAM …]
#
# Servers: redis-server of this machine; those of Debian trixie and sid, extracted with their libraries into the cache and run by their own
# loader (amd64, needs apt-get and deb.debian.org; left out if they cannot be had); and each PROGRAM, such as
# redis-6.2.14=/src/redis-6.2.14/src/redis-server.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/servers
readonly e2e='TestPlainEntry|TestServiceSurvivesRedisOutage|TestReceiverKilled|TestAppIsNotified'
mkdir -p "$cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
servers=()

# wrap makes a folder with a redis-server that runs a command.
wrap() {
  mkdir -p "$work/bin/$1"
  printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$work/bin/$1/redis-server"
  chmod +x "$work/bin/$1/redis-server"
  if "$work/bin/$1/redis-server" --version >"$work/bin/$1/version" 2>&1; then
    servers+=("$1")
  else
    echo "$1 does not start: $(head -n 1 "$work/bin/$1/version")" >&2
  fi
}

# apt runs apt-get for another release of Debian, without touching the machine's lists and packages.
apt() {
  local suite=$1 dir=$cache/apt-$1
  shift
  mkdir -p "$dir"/{etc,lists/partial,cache/archives/partial}
  : >"$dir/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >"$dir/etc/sources.list"
  "$@" -o Dir::Etc="$dir/etc" -o Dir::Etc::sourcelist="$dir/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$dir/lists" \
    -o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root
}

# debian extracts PROGRAM-server and its libraries from a release of Debian.
debian() {
  local suite=$1 program=$2 dir=$cache/$1-$2
  if [ ! -e "$dir/done" ]; then
    mkdir -p "$dir/root"
    (
      { [ -e "$cache/apt-$suite/updated" ] || apt "$suite" apt-get -qq update; } && touch "$cache/apt-$suite/updated" && cd "$dir" &&
      apt "$suite" apt-get -qq download "$program-server" "$program-tools" libc6 libatomic1 libjemalloc2 liblzf1 libssl3t64 libstdc++6 libgcc-s1 \
        libsystemd0 libcap2 libzstd1 zlib1g && for package in *.deb; do dpkg-deb --extract "$package" root || exit; done && rm ./*.deb && touch done
    ) >&2 || { echo "$program of Debian $suite cannot be had" >&2; return; }
  fi
  local binary loader
  binary=$dir/root/usr/bin/$program-check-rdb # the server, too: Debian links one to the other
  loader=$(find "$dir/root" -name 'ld-linux-x86-64.so.2' | head -n 1)
  [ -e "$binary" ] && [ -n "$loader" ] || { echo "$program of Debian $suite has no program for this machine" >&2; return; }
  wrap "$program-$suite" "$loader --argv0 $program-server --library-path $dir/root/usr/lib/x86_64-linux-gnu:$dir/root/lib/x86_64-linux-gnu $binary"
}

for pair in "$@"; do wrap "${pair%%=*}" "$(realpath "${pair#*=}")"; done
command -v redis-server >/dev/null && wrap redis-here "$(command -v redis-server)"
debian trixie redis
debian sid redis
debian trixie valkey
debian sid valkey

for package in locking events/stream internal/state internal/watch internal/e2e; do
  CGO_ENABLED=0 go test -trimpath -c -o "$work/$(basename "$package").test" "./$package"
done

# run runs the tests of a package that match, with further flags.
run() {
  local package=$1 match=$2
  shift 2
  (cd "$package" && LOCKSTEP_TEST_REDIS=real PATH=$work/bin/$server:$PATH timeout 600 "$work/$(basename "$package").test" -test.v -test.run "$match" -test.skip Conformance "$@")
}

# suite runs the tests of a package that match, and prints how many passed, and the time. What fails is tried again, alone: other
# programs on the machine may have taken a port or the time.
suite() {
  local package=$1 match=$2 began=$EPOCHREALTIME log=$work/log again= code=0
  run "$package" "$match" >"$log" 2>&1 || { code=$?; again=$(grep -oE '^--- FAIL: [A-Za-z0-9_]+' "$log" | cut -d' ' -f3 | paste -sd'|'); }
  local ended=$EPOCHREALTIME passed bad
  passed=$(grep -c '^--- PASS' "$log" || true) bad=$(grep -c '^--- FAIL' "$log" || true)
  [ "$code" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1 # it crashed, or took too long
  if [ "$bad" -gt 0 ] && [ -n "$again" ] && run "$package" "^($again)\$" -test.parallel 1 >"$log" 2>&1; then
    echo "$server $package: passed only alone: $again" >&2
    passed=$((passed + bad)) bad=0
  fi
  [ "$bad" -eq 0 ] && [ "$passed" -gt 0 ] || { grep -E -B12 '^--- FAIL|^panic' "$log" | grep -vE '^=== |--- (PASS|SKIP)' | head -n 60 || tail -n 20 "$log"; } >&2
  awk -v p="$passed" -v f="$bad" -v s="$began" -v e="$ended" 'BEGIN { printf "%d passed%s, %.1f s", p, f ? ", " f " FAILED" : "", e - s }'
}

failed=
echo "| server | locking | events/stream | state, watches | service, end to end |"
echo "|---|---|---|---|---|"
for server in "${servers[@]}"; do
  version=$(grep -oE 'v=[0-9.]+' "$work/bin/$server/version" | head -n 1 | cut -c3-)
  row="| ${server%%-*} $version"
  row+=" | $(suite locking .)"
  row+=" | $(suite events/stream .)"
  row+=" | $(suite internal/state .); $(suite internal/watch .)"
  row+=" | $(suite internal/e2e "$e2e") |"
  echo "$row"
  case $row in *FAILED* | *"| 0 passed"* | *"; 0 passed"*) failed=1 ;; esac
done
[ -z "$failed" ]
