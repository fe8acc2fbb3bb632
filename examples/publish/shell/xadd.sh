#!/bin/sh
# usage: xadd.sh URL ID                            (redis-cli takes -u from REDIS_URL)
exec redis-cli -e ${REDIS_URL:+-u "$REDIS_URL"} XADD 'lockstep:{0}:changes' '*' id "$2" url "$1" ref refs/heads/main
