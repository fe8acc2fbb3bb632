// BullMQ with redlock, as a contestant of bench hot.
//
//	node bullmq.mjs queue|work --redis URL --prefix PREFIX [--slots N --work-ms N]
import { createRequire } from "node:module";
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";
import Redlock from "redlock";
import { flags, report, run, slots, work } from "./protocol.mjs";

const name = "changes";
const attempts = { attempts: 5, backoff: { type: "exponential", delay: 1000 } };
const polling = { retryDelay: 2000 }; // and redlock's own 10 tries more, within 100 ms of it
const lease = 10_000; // ms

const { bullmq, redlock: redlockVersion } = createRequire(import.meta.url)("./package.json").dependencies;
const connection = new Redis(flags.redis, { maxRetriesPerRequest: null }); // as BullMQ wants it
const queue = new Queue(name, { connection, prefix: flags.prefix });
await queue.waitUntilReady();

async function open() {
  const locks = new Redis(flags.redis);
  const redlock = new Redlock([locks], polling);
  redlock.on("error", () => {}); // one for each try that finds the lock held
  const worker = new Worker(name, async (job) => {
    const lock = await redlock.acquire([`${flags.prefix}:lock:${job.data.repo}`], lease);
    try {
      await work(job.data.event);
    } finally {
      await lock.release();
    }
  }, { connection, prefix: flags.prefix, concurrency: slots, autorun: false });
  report(worker);
  await worker.waitUntilReady();
  await locks.ping();
  return worker;
}

await run(`${bullmq}, redlock ${redlockVersion}`, (event, repo) => queue.add("change", { event, repo }, attempts), open);
