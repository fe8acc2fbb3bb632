// usage: REDIS_URL=redis://127.0.0.1:6379 LOCKSTEP_ROOT=/srv/repos node consume.mjs
// Follows the results in a consumer group; see docs/recipes.md.
import { lstat, readFile, readdir } from 'node:fs/promises';
import { hostname } from 'node:os';
import path from 'node:path';
import { createClient } from 'redis';

const results = 'lockstep:{0}:results', group = 'node', consumer = `${hostname()}-${process.pid}`;
const own = 'node:{0}:'; // keys of this program: the results' hash tag, so that MULTI works on Redis Cluster too
const root = process.env.LOCKSTEP_ROOT ?? 'repos';
const idle = Number(process.env.IDLE_MS ?? 60_000); // longer than the work on one batch takes
const mostDeliveries = 8;

const redis = await createClient({ url: process.env.REDIS_URL }).connect();
let stopping = false;
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => { stopping = true; });

await redis.xGroupCreate(results, group, '0', { MKSTREAM: true })
  .catch((err) => { if (!err.message.startsWith('BUSYGROUP')) throw err; });
while (!stopping) {
  const lapsed = await redis.xAutoClaim(results, group, consumer, idle, '0-0', { COUNT: 10 });
  const fresh = await redis.xReadGroup(group, consumer, { key: results, id: '>' }, { COUNT: 10, BLOCK: 1000 });
  for (const entry of [...lapsed.messages, ...(fresh?.[0].messages ?? [])]) {
    if (entry) await settle(entry); // null: trimmed away
  }
}
await redis.close();

async function settle({ id, message }) {
  try {
    const event = JSON.parse(message.payload);
    const done = `${own}done:${event.id}`;
    if (!await redis.exists(done)) await follow(event);
    await redis.multi().set(done, '1', { EX: 7 * 24 * 3600 }).xAck(results, group, id).exec();
  } catch (err) {
    const [pending] = await redis.xPendingRange(results, group, id, id, 1);
    console.error(`${id}, delivery ${pending?.deliveriesCounter}: ${err.message}`);
    if (pending?.deliveriesCounter >= mostDeliveries) { // else it stays pending, and is claimed again
      const letter = { id, payload: message.payload ?? '', error: err.message };
      await redis.multi().xAdd(`${own}dead`, '*', letter).xAck(results, group, id).exec();
    }
  }
}

async function follow({ type, data }) {
  const at = `${own}at:${data.repo.toLowerCase()}`; // hash of ref to "fence commit": where this program is
  if (type === 'lockstep.result.removed.v1') {
    console.log(`${data.repo} removed`);
    await redis.del(at);
  }
  if (type !== 'lockstep.result.synced.v1') return;
  const [fence, commit] = (await redis.hGet(at, data.ref))?.split(' ') ?? ['0', undefined];
  if (data.fence < Number(fence)) return; // past
  const tree = path.join(root, data.tree);
  let files = data.files ?? [];
  if (commit !== data.before || data.full || data.truncated) {
    console.log(`${data.repo} anew`);
    files = (await readdir(tree, { recursive: true, withFileTypes: true }))
      .map((entry) => ({ path: path.relative(tree, path.join(entry.parentPath, entry.name)), status: 'added' }))
      .filter((file) => file.path.split('/')[0] !== '.git');
  }
  for (const file of files) {
    const name = path.join(tree, file.path);
    if (file.status === 'deleted') console.log(`${data.repo} deleted ${file.path}`);
    else if ((await lstat(name)).isFile()) console.log(`${data.repo} ${file.status} ${file.path}: ${(await readFile(name)).length} bytes`);
  }
  await redis.hSet(at, data.ref, `${data.fence} ${data.after}`);
}
