// The worker protocol of ../../README.md, for contestants of bench hot.
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";

const { positionals: [command], values } = parseArgs({
  allowPositionals: true,
  options: {
    redis: { type: "string" },
    prefix: { type: "string" },
    slots: { type: "string", default: "5" },
    "work-ms": { type: "string", default: "20" },
  },
});

export const flags = values;
export const slots = Number(flags.slots);

const worked = new Map(); // by event: when it began and ended

// work pauses for the time of the work on an event.
export async function work(event) {
  const began = process.hrtime.bigint(); // CLOCK_MONOTONIC
  await pause(Number(flags["work-ms"]));
  worked.set(event, { began, ended: process.hrtime.bigint() });
}

// report prints the line of a worker's events.
export function report(worker) {
  const say = (job, settled) => {
    const times = worked.get(job?.data.event);
    if (!times) return;
    process.stdout.write(`${job.data.event} ${times.began} ${times.ended} ${settled}\n`);
    worked.delete(job.data.event);
  };
  worker.on("completed", (job) => say(job, process.hrtime.bigint()));
  worker.on("failed", (job) => say(job, 0n));
  worker.on("error", (err) => console.error(err.message));
}

// run prints ready and the version, and then queues an event for each line of "<event> <repo>", or waits for the start and works until
// standard input ends. add queues an event; open returns a worker.
export async function run(version, add, open) {
  if (command !== "queue" && command !== "work") {
    console.error("want queue or work");
    process.exit(1);
  }
  const worker = command === "work" ? await open() : undefined;
  const lines = createInterface({ input: process.stdin });
  process.stdout.write(`ready ${version}\n`);
  if (!worker) {
    for await (const line of lines) {
      const [event, repo] = line.split(" ");
      await add(Number(event), repo);
    }
    process.exit(0);
  }
  const over = new Promise((resolve) => lines.once("close", resolve));
  await new Promise((resolve) => lines.once("line", resolve));
  worker.run();
  await over;
  await worker.close();
  process.exit(0);
}
