"""usage: REDIS_URL=redis://127.0.0.1:6379 LOCKSTEP_ROOT=/srv/repos consume.py

Follows the results in a consumer group; see docs/recipes.md.
"""
import json, os, pathlib, socket, sys
import redis

RESULTS, GROUP, CONSUMER = "lockstep:{0}:results", "python", f"{socket.gethostname()}-{os.getpid()}"
OWN = "python:{0}:"  # keys of this program: the results' hash tag, so that MULTI works on Redis Cluster too
ROOT = pathlib.Path(os.environ.get("LOCKSTEP_ROOT", "repos"))
IDLE_MS, MOST_DELIVERIES = int(os.environ.get("IDLE_MS", 60_000)), 8

db = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))


def follow(kind, data):
    if kind == "lockstep.result.removed.v1":
        print(data["repo"], "removed", flush=True)
    if kind != "lockstep.result.synced.v1":
        return
    tree = ROOT / data["tree"]
    for file in data.get("files", []):  # "full", "truncated" and "before": as in consume.mjs
        path = tree / file["path"]
        if file["status"] == "deleted":
            print(data["repo"], "deleted", file["path"], flush=True)
        elif path.is_file() and not path.is_symlink():
            print(data["repo"], file["status"], file["path"], len(path.read_bytes()), "bytes", flush=True)


def settle(entry, fields):
    try:
        event = json.loads(fields[b"payload"])
        done = f"{OWN}done:{event['id']}"
        if not db.exists(done):
            follow(event["type"], event["data"])
        db.pipeline().set(done, 1, ex=7 * 24 * 3600).xack(RESULTS, GROUP, entry).execute()
    except (OSError, KeyError, ValueError) as err:
        pending = db.xpending_range(RESULTS, GROUP, min=entry, max=entry, count=1)
        deliveries = pending[0]["times_delivered"] if pending else 0
        print(f"{entry}, delivery {deliveries}: {err!r}", file=sys.stderr)
        if deliveries >= MOST_DELIVERIES:  # else it stays pending, and is claimed again
            letter = {"id": entry, "payload": fields.get(b"payload", b""), "error": repr(err)}
            db.pipeline().xadd(OWN + "dead", letter).xack(RESULTS, GROUP, entry).execute()


try:
    db.xgroup_create(RESULTS, GROUP, id="0", mkstream=True)
except redis.ResponseError as err:
    if not str(err).startswith("BUSYGROUP"):
        raise
while True:
    _, lapsed, *_ = db.xautoclaim(RESULTS, GROUP, CONSUMER, IDLE_MS, start_id="0-0", count=10)
    fresh = db.xreadgroup(GROUP, CONSUMER, {RESULTS: ">"}, count=10, block=1000)
    for entry, fields in lapsed + (fresh[0][1] if fresh else []):
        if entry is not None and fields is not None:  # else trimmed away
            settle(entry, fields)
