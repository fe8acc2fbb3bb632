#!/bin/sh
# usage: publish.sh URL [ID]                       (redis-cli takes -u from REDIS_URL)
# Publishes a change as plain fields and waits for its result.
url=$1 id=${2:-push-$(date +%s)-$$}
changes='lockstep:{0}:changes' results='lockstep:{0}:results'
redis() { redis-cli -e ${REDIS_URL:+-u "$REDIS_URL"} "$@"; }

from=$(redis XREVRANGE "$results" + - COUNT 1 | head -n 1) # current end of the stream
redis XADD "$changes" '*' id "$id" url "$url" ref refs/heads/main >/dev/null || exit
echo "published $id"

give_up=$(($(date +%s) + 600))
while [ "$(date +%s)" -lt "$give_up" ]; do
    read=$(redis XREAD COUNT 100 BLOCK 5000 STREAMS "$results" "${from:-0-0}") || exit
    answer=$(printf '%s\n' "$read" | grep -a -F "\"$id\"" | head -n 1)
    case $answer in
    *'"type":"lockstep.result.synced.v1"'*) printf '%s\n' "$answer"; exit 0 ;;
    ?*) printf '%s\n' "$answer"; exit 1 ;;
    esac
    last=$(printf '%s\n' "$read" | grep -a -E -x '[0-9]+-[0-9]+' | tail -n 1)
    from=${last:-$from}
done
echo "no result for $id after 10 minutes" >&2
exit 1
