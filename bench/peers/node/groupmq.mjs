// GroupMQ with a group for each repository, as a contestant of bench hot. A group's jobs run in order and one at a time, so it
// needs no lock.
//
//	node groupmq.mjs queue|work --redis URL --prefix PREFIX [--slots N --work-ms N]
import { createRequire } from "node:module";
import { Queue, Worker } from "groupmq";
import { Redis } from "ioredis";
import { flags, report, run, slots, work } from "./protocol.mjs";

const redis = new Redis(flags.redis, { maxRetriesPerRequest: null });
const queue = new Queue({ redis, namespace: flags.prefix });
await redis.ping();

async function open() {
  const worker = new Worker({ queue, concurrency: slots, handler: (job) => work(job.data.event) });
  report(worker);
  return worker;
}

const version = createRequire(import.meta.url)("./package.json").dependencies.groupmq;
await run(version, (event, repo) => queue.add({ groupId: repo, data: { event } }), open);
