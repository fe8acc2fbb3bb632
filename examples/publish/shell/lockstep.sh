#!/bin/sh
# usage: LOCKSTEP_REDIS=redis://127.0.0.1:6379 lockstep.sh URL [ID]
# Publishes a change with the command and waits for its result.
id=${2:-push-$(date +%s)-$$}
echo "published $id"
exec lockstep publish "$1" --id "$id" --ref main --wait --timeout 10m --json
