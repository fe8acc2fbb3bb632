// usage: node publish.mjs URL REPO [fields|cloudevent]
// Publishes a change, and waits for its result in a consumer group.
import { randomUUID } from 'node:crypto';
import { createClient } from 'redis';

const changes = 'lockstep:{0}:changes', results = 'lockstep:{0}:results';
const [url, repo, form = 'fields'] = process.argv.slice(2);
const id = randomUUID();
const giveUp = Date.now() + 600_000;

const redis = await createClient({ url: process.env.REDIS_URL }).connect();
const group = `publish-${id}`; // of this one wait
await redis.xGroupCreate(results, group, '$', { MKSTREAM: true }); // before the change: its result comes later
try {
  await redis.xAdd(changes, '*', form === 'cloudevent' ? cloudEvent() : { id, url, repo, ref: 'refs/heads/main' });
  console.log('published', id);
  const { type, data } = await answer();
  if (type === 'lockstep.result.synced.v1') console.log('synced', data.after, 'in', data.tree);
  else throw new Error(`${type}: ${data.error}`);
} finally {
  await redis.xGroupDestroy(results, group); // until here, the tree that the result names stays
  await redis.close();
}

// A CloudEvents document in Watermill's wire format, whose field "metadata" may be left out.
function cloudEvent() {
  const change = {
    specversion: '1.0', id, source: '/examples/publish', type: 'lockstep.change.pushed.v1', time: new Date().toISOString(),
    data: { repo, url, ref: 'refs/heads/main' },
  };
  return { _watermill_message_uuid: id, payload: JSON.stringify(change) };
}

// The result that names the id. Others are acknowledged; that one is pending until the group goes.
async function answer() {
  while (Date.now() < giveUp) {
    const read = await redis.xReadGroup(group, 'one', { key: results, id: '>' }, { COUNT: 10, BLOCK: 5000 });
    for (const entry of read?.[0].messages ?? []) {
      const event = JSON.parse(entry.message.payload); // not metadata: that is MessagePack
      if (event.data.deliveries?.includes(id)) return event;
      await redis.xAck(results, group, entry.id);
    }
  }
  throw new Error(`no result for ${id} after 10 minutes`);
}
