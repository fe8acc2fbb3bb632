// BullMQ with redlock, as a contestant of bench hot. It speaks the worker protocol of
// ../../README.md.
//
//	node bullmq.mjs queue|work --redis URL --prefix PREFIX [--slots N --work-ms N]
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";
import Redlock from "redlock";

const name = "changes";
const attempts = { attempts: 5, backoff: { type: "exponential", delay: 1000 } };
const polling = { retryDelay: 2000 }; // and redlock's own 10 tries more, within 100 ms of it
const lease = 10_000; // ms

const { positionals: [command], values: flags } = parseArgs({
  allowPositionals: true,
  options: {
    redis: { type: "string" },
    prefix: { type: "string" },
    slots: { type: "string", default: "5" },
    "work-ms": { type: "string", default: "20" },
  },
});

// connect makes a client as BullMQ wants it.
const connect = () => new Redis(flags.redis, { maxRetriesPerRequest: null });

// queue prints ready, and adds a job for each line of "<event> <repo>".
async function queue() {
  const connection = connect();
  const q = new Queue(name, { connection, prefix: flags.prefix });
  await q.waitUntilReady();
  process.stdout.write("ready\n");
  for await (const line of createInterface({ input: process.stdin })) {
    const [event, repo] = line.split(" ");
    await q.add("change", { event: Number(event), repo }, attempts);
  }
  await q.close();
  await connection.quit();
}

// work prints ready, waits for the start, and works until standard input ends.
async function work() {
  const connection = connect();
  const locks = new Redis(flags.redis);
  const redlock = new Redlock([locks], polling);
  redlock.on("error", () => {}); // one for each try that finds the lock held

  const worked = new Map(); // by job: when it began and ended
  const say = (job, settled) => {
    const { began, ended } = worked.get(job.id);
    process.stdout.write(`${job.data.event} ${began} ${ended} ${settled}\n`);
    worked.delete(job.id);
  };
  const worker = new Worker(name, async (job) => {
    const lock = await redlock.acquire([`${flags.prefix}:lock:${job.data.repo}`], lease);
    try {
      const began = process.hrtime.bigint(); // CLOCK_MONOTONIC
      await pause(Number(flags["work-ms"]));
      worked.set(job.id, { began, ended: process.hrtime.bigint() });
    } finally {
      await lock.release();
    }
  }, { connection, prefix: flags.prefix, concurrency: Number(flags.slots), autorun: false });
  worker.on("completed", (job) => say(job, process.hrtime.bigint()));
  worker.on("failed", (job) => worked.has(job?.id) && say(job, 0n));
  worker.on("error", (err) => console.error(err.message));

  await worker.waitUntilReady();
  await locks.ping();
  const { bullmq, redlock: redlockVersion } = createRequire(import.meta.url)("./package.json").dependencies;
  process.stdout.write(`ready ${bullmq}, redlock ${redlockVersion}\n`);

  const lines = createInterface({ input: process.stdin });
  const over = new Promise((resolve) => lines.once("close", resolve));
  await new Promise((resolve) => lines.once("line", resolve));
  worker.run();
  await over;
  await worker.close();
  connection.disconnect();
  locks.disconnect();
}

const commands = { queue, work };
if (!commands[command]) {
  console.error("want queue or work");
  process.exit(1);
}
await commands[command]();
