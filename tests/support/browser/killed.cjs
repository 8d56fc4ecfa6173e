// A worker is killed while somebody looks: it leaves the list, and its job is shown as running until its lease ends, then as waiting.
"use strict";

const { check, inspect, open, picture, run, until } = require("./browser.cjs");

const base = process.env.BASE;

run(async (browser) => {
  const page = await open(browser);
  await page.goto(`${base}workers`);
  const worker = page.getByRole("heading", { name: "the doomed" });
  await worker.waitFor();
  await page.getByRole("link", { name: "film-1", exact: true }).waitFor();
  const job = await open(browser);
  await job.goto(`${base}job?queue=films&id=film-1`);
  await job.locator("#live .tag", { hasText: "running" }).waitFor();
  process.kill(Number(process.env.VICTIM), "SIGKILL");
  // Both pages follow without a reload.
  await worker.waitFor({ state: "detached" });
  await page.locator("#gone", { hasText: "the doomed" }).waitFor();
  const found = await inspect(page, "workers that are gone");
  check(found.length === 0, found.join("\n"));
  await picture(page, "gone");
  await job.locator("code", { hasText: "worker_gone" }).waitFor();
  check((await job.locator("#live .tag").first().innerText()) === "running", "the job is not shown as running");
  await job.locator("#live .tag", { hasText: "waiting" }).waitFor();
  await until("the end of the run", async () => (await job.locator("code", { hasText: "worker_gone" }).count()) === 0);
  check(page.problems.length + job.problems.length === 0, [...page.problems, ...job.problems].join("\n"));
});
