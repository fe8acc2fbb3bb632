#!/bin/sh
# usage: LOCKSTEP_ROOT=/srv/repos consume.sh       (redis-cli takes -u from REDIS_URL)
stream='lockstep:{0}:results' group=shell consumer=$(hostname)-$$
redis() { redis-cli ${REDIS_URL:+-u "$REDIS_URL"} "$@"; }

follow() { # one result, as JSON on standard input: prints what has changed, as files in the tree
    jq -r --arg root "${LOCKSTEP_ROOT:-repos}" 'select(.type == "lockstep.result.synced.v1") | .data
        | . as $r | (.files // [])[] | [$r.repo, .status, $root + "/" + $r.tree + "/" + .path] | @tsv'
}

redis XGROUP CREATE "$stream" "$group" 0 MKSTREAM 2>&1 | grep -v -e OK -e BUSYGROUP
while :; do
    # Of a crashed consumer, or else new: one entry, as [id, [field, value, …]].
    entry=$(redis --json XAUTOCLAIM "$stream" "$group" "$consumer" 60000 0-0 COUNT 1 | jq -c '.[1][0] // empty')
    [ -n "$entry" ] || entry=$(redis --json XREADGROUP GROUP "$group" "$consumer" COUNT 1 BLOCK 5000 STREAMS "$stream" '>' |
        jq -c 'if . then .[][0] else empty end')
    [ -n "$entry" ] || { redis PING >/dev/null || sleep 1; continue; }
    payload=$(printf %s "$entry" | jq -r '.[1] | .[index("payload") + 1]')
    mark="shell:{0}:done:$(printf %s "$payload" | jq -r .id)"
    if [ "$(redis EXISTS "$mark")" = 0 ]; then
        printf %s "$payload" | follow || continue # stays pending, and is claimed again
        redis SET "$mark" 1 EX 604800 >/dev/null
    fi
    redis XACK "$stream" "$group" "$(printf %s "$entry" | jq -r '.[0]')" >/dev/null
done
