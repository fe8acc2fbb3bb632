// usage: node publish.mjs URL REPO [fields|cloudevent]
// Publishes a change and waits for its result in a consumer group.
import { randomUUID } from 'node:crypto';
import { createClient } from 'redis';

const changes = 'lockstep:{0}:changes', results = 'lockstep:{0}:results';
const [url, repo, form = 'fields'] = process.argv.slice(2);
const id = randomUUID();
const giveUp = Date.now() + 600_000;

const redis = await createClient({ url: process.env.REDIS_URL }).connect();
const group = `publish-${id}`; // only for this program
await redis.xGroupCreate(results, group, '$', { MKSTREAM: true }); // before the change, so that it receives the result
try {
  await redis.xAdd(changes, '*', form === 'cloudevent' ? cloudEvent() : { id, url, repo, ref: 'refs/heads/main' });
  console.log('published', id);
  const { type, data } = await answer();
  if (type === 'lockstep.result.synced.v1') console.log('synced', data.after, 'in', data.tree);
  else throw new Error(`${type}: ${data.error}`);
} finally {
  await redis.xGroupDestroy(results, group); // the group kept the tree of the result until here
  await redis.close();
}

// A CloudEvents document in Watermill's wire format. The field "metadata" is optional.
function cloudEvent() {
  const change = {
    specversion: '1.0', id, source: '/examples/publish', type: 'lockstep.change.pushed.v1', time: new Date().toISOString(),
    data: { repo, url, ref: 'refs/heads/main' },
  };
  return { _watermill_message_uuid: id, payload: JSON.stringify(change) };
}

// Returns the result of the change. It acknowledges other results; this one stays pending until the group is destroyed.
async function answer() {
  while (Date.now() < giveUp) {
    const read = await redis.xReadGroup(group, 'one', { key: results, id: '>' }, { COUNT: 10, BLOCK: 5000 });
    for (const entry of read?.[0].messages ?? []) {
      const event = JSON.parse(entry.message.payload); // metadata is MessagePack
      if (event.data.deliveries?.includes(id)) return event;
      await redis.xAck(results, group, entry.id);
    }
  }
  throw new Error(`no result for ${id} after 10 minutes`);
}
