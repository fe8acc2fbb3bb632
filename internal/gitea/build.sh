#!/bin/sh
# Builds Gitea and git-lfs from the Go module proxy into the cache of make test-forge, once: about five minutes of processor time and,
# until it is done, 2 GB of disk. Needs Go and a C compiler. Prints the folder, which then has 140 MB.
set -eu
version=1.26.2
sum=h1:i0oTSOGXnB3WLILa0lRzwi4KFIkKIEZnoyCtYiajtYY=
lfs=v3.8.1 # its checksum is in the database of Go, which go install asks

cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep
dir=$cache/gitea-$version
lfs() { GOBIN=$1 GOFLAGS=-buildvcs=false GOWORK=off go install "github.com/git-lfs/git-lfs/v3@$lfs"; }
if [ -x "$dir/gitea" ]; then
  [ -x "$dir/git-lfs" ] || lfs "$dir"
  echo "$dir"
  exit
fi
command -v "${CC:-cc}" >/dev/null || { echo "make test-forge: there is no C compiler; install gcc and libc6-dev" >&2; exit 1; }
mkdir -p "$cache"
work=$(mktemp -d "$cache/building.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM # sh runs the trap of EXIT only then
cd "$work"
export GOFLAGS=-buildvcs=false GOWORK=off
go mod download -json "code.gitea.io/gitea@v$version" >module.json
grep -q "\"Sum\": \"$sum\"" module.json || { echo "make test-forge: the module of Gitea $version has another checksum than $sum" >&2; exit 1; }

# Its go.mod has replacements, which go install refuses, and modules in the cache are read-only: build a copy.
cp -r "$(go env GOMODCACHE)/code.gitea.io/gitea@v$version" source
chmod -R u+w source
(cd source && CGO_ENABLED=1 go build -trimpath -tags 'sqlite sqlite_unlock_notify' -ldflags "-s -w -X main.Version=$version" -o ../done/gitea .)
lfs "$work/done"
cp -r source/templates source/options source/public done/ # read at run time; pages lack scripts and styles, the API needs none
mv done "$dir"
echo "$dir"
