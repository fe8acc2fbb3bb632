"""usage: publish.py URL REPO [fields|cloudevent]

Publishes a change and waits for its result.
"""
import datetime, json, os, sys, time, uuid
import redis

CHANGES, RESULTS = "lockstep:{0}:changes", "lockstep:{0}:results"


def cloud_event(id, url, repo):
    """A CloudEvents document in Watermill's wire format, whose field "metadata" may be left out."""
    change = {
        "specversion": "1.0", "id": id, "source": "/examples/publish", "type": "lockstep.change.pushed.v1",
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        "data": {"repo": repo, "url": url, "ref": "refs/heads/main"},
    }
    return {"_watermill_message_uuid": id, "payload": json.dumps(change)}


def answer(db, start, id):
    """Reads on from an entry to the result that names the id."""
    give_up = time.monotonic() + 600
    while time.monotonic() < give_up:
        for _, entries in db.xread({RESULTS: start}, count=100, block=5000):
            for start, fields in entries:
                event = json.loads(fields[b"payload"])  # metadata is MessagePack
                if id in event["data"].get("deliveries", []):
                    return event
    raise TimeoutError(f"no result for {id} after 10 minutes")


url, repo, form = (sys.argv[1:] + ["fields"])[:3]
id = str(uuid.uuid4())
db = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))  # no decode_responses, because metadata is not text
last = db.xrevrange(RESULTS, count=1)  # current end of the stream
start = last[0][0] if last else "0-0"
fields = {"id": id, "url": url, "repo": repo, "ref": "refs/heads/main"}
db.xadd(CHANGES, cloud_event(id, url, repo) if form == "cloudevent" else fields)
print("published", id, flush=True)
event = answer(db, start, id)
if event["type"] != "lockstep.result.synced.v1":
    sys.exit(f"{event['type']}: {event['data'].get('error')}")
print("synced", event["data"]["after"], "in", event["data"]["tree"])
