// GroupMQ with a group for each repository, as a contestant of bench hot. A group's jobs run in order and one at a time, so it
// needs no lock. It speaks the worker protocol of ../../README.md.
//
//	node groupmq.mjs queue|work --redis URL --prefix PREFIX [--slots N --work-ms N]
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Queue, Worker } from "groupmq";
import { Redis } from "ioredis";

const { positionals: [command], values: flags } = parseArgs({
  allowPositionals: true,
  options: {
    redis: { type: "string" },
    prefix: { type: "string" },
    slots: { type: "string", default: "5" },
    "work-ms": { type: "string", default: "20" },
  },
});

const redis = new Redis(flags.redis, { maxRetriesPerRequest: null });
const queue = new Queue({ redis, namespace: flags.prefix });
const version = createRequire(import.meta.url)("./package.json").dependencies.groupmq;

// add prints ready, and adds a job for each line of "<event> <repo>".
async function add() {
  await redis.ping();
  process.stdout.write(`ready ${version}\n`);
  for await (const line of createInterface({ input: process.stdin })) {
    const [event, repo] = line.split(" ");
    await queue.add({ groupId: repo, data: { event: Number(event) } });
  }
  process.exit(0);
}

// work prints ready, waits for the start, and works until standard input ends.
async function work() {
  const worked = new Map(); // by event: when it began and ended
  const say = (job, settled) => {
    const times = worked.get(job.data.event);
    if (!times) return;
    process.stdout.write(`${job.data.event} ${times.began} ${times.ended} ${settled}\n`);
    worked.delete(job.data.event);
  };
  const worker = new Worker({
    queue,
    concurrency: Number(flags.slots),
    handler: async (job) => {
      const began = process.hrtime.bigint(); // CLOCK_MONOTONIC
      await pause(Number(flags["work-ms"]));
      worked.set(job.data.event, { began, ended: process.hrtime.bigint() });
    },
  });
  worker.on("completed", (job) => say(job, process.hrtime.bigint()));
  worker.on("failed", (job) => say(job, 0n));
  worker.on("error", (err) => console.error(err.message));

  await redis.ping();
  process.stdout.write(`ready ${version}\n`);
  const lines = createInterface({ input: process.stdin });
  const over = new Promise((resolve) => lines.once("close", resolve));
  await new Promise((resolve) => lines.once("line", resolve));
  worker.run();
  await over;
  await worker.close(1000);
  process.exit(0);
}

const commands = { queue: add, work };
if (!commands[command]) {
  console.error("want queue or work");
  process.exit(1);
}
await commands[command]();
