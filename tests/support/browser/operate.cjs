// An operator at three in the morning: finds a dead letter, reads why, puts it back and sees it done; pauses and resumes; watches a
// long job and cancels it; finds the dead child that holds a batch up.
"use strict";

const { check, open, picture, run, until } = require("./browser.cjs");

const base = process.env.BASE;

async function text(page, selector = "main") {
  return page.locator(selector).innerText();
}

async function deadLetter(page) {
  await page.goto(base);
  await page.getByRole("navigation").getByRole("link", { name: /Dead letters/ }).click();
  await page.getByRole("link", { name: "mails", exact: true }).click();
  await page.getByText("no such address: bob@nowhere").first().waitFor();
  await page.getByRole("region", { name: "Dead letters" }).getByRole("link", { name: "mail-1", exact: true }).click();
  check((await text(page, "ol.timeline")).includes("no such address: bob@nowhere"), "the timeline does not say why");
  await picture(page, "job");
  await page.getByRole("link", { name: "Show the payload and the checkpoint" }).click();
  check((await text(page, "#payload")).includes('"to": "bob@nowhere"'), "the payload is not shown");
  await page.locator("#redrive").click();
  await page.getByText("1 put back").waitFor();
  // The worker accepts it now; the journal says so.
  await until("the end of the job", async () => {
    await page.goto(`${base}search?id=mail-1&outcome=completed`);
    return (await page.getByRole("cell", { name: "completed" }).count()) > 0;
  });
}

async function send(page, queue, kind, payload) {
  await page.goto(`${base}send?queue=${queue}`);
  await page.getByLabel("Kind").fill(kind);
  await page.getByLabel("Payload (JSON)").fill(payload);
  await page.locator("main").getByRole("button", { name: "Send" }).click();
  await page.getByText("The job was sent.").waitFor();
}

async function pauseAndResume(page) {
  await page.goto(`${base}queues/mails`);
  const colleague = await page.context().newPage();
  await colleague.goto(page.url());
  await page.getByLabel("Note").fill("the bank is down");
  await page.getByLabel(/^For/).fill("2h");
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await page.locator("#live .tag", { hasText: "paused" }).waitFor();
  check(/Until .* By ada. the bank is down/.test(await text(page)), "the page does not say who has paused the queue, and why");
  // Without a reload.
  await colleague.getByRole("button", { name: "Resume", exact: true }).waitFor();
  await colleague.close();
  // A worker that has not noticed yet may still run one.
  await until("a job that waits for the pause", async () => {
    await send(page, "mails", "mail", '{"to":"ada@example.org"}');
    await page.locator("#live .tag").filter({ hasText: /waiting|ended/ }).first().waitFor();
    return (await page.locator(".reasons code", { hasText: "paused" }).count()) > 0;
  });
  const job = page.url();
  await page.goto(`${base}queues/mails`);
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await page.goto(job);
  // Without a reload: the page follows.
  await page.locator("#live .tag", { hasText: "ended" }).waitFor();
}

async function longJob(page) {
  await page.goto(`${base}workers`);
  const bar = page.locator("#live progress").first();
  await bar.waitFor();
  const before = await bar.getAttribute("value");
  await until("progress", async () => (await bar.getAttribute("value")) !== before);
  await picture(page, "workers");
  await page.getByRole("link", { name: "film-1", exact: true }).click();
  await page.locator("#cancel").click();
  await page.locator("#live .tag", { hasText: "dead" }).waitFor();
  check((await text(page, "ol.timeline")).includes("cancelled"), "the timeline does not tell of the cancellation");
}

async function batch(page) {
  await page.goto(`${base}batches`);
  await page.locator("tbody a").first().click();
  await page.locator("#live .tag", { hasText: "dead" }).waitFor();
  check((await text(page)).includes("this part is broken"), "the page does not say what holds the batch up");
  await picture(page, "batch");
}

async function everything(page) {
  await page.goto(`${base}queues/mails/dead`);
  await picture(page, "errors");
  await page.getByRole("button", { name: /Act on these.*this address is broken/ }).click();
  await page.getByText("3 match").waitFor();
  await picture(page, "preview");
  await page.getByLabel(/Type the name of the queue/).fill("mails");
  await page.getByRole("button", { name: "Purge 3" }).click();
  await page.getByText("3 deleted").waitFor();
}

run(async (browser) => {
  const page = await open(browser);
  await longJob(page);
  await deadLetter(page);
  await pauseAndResume(page);
  await batch(page);
  await everything(page);
  check(page.problems.length === 0, page.problems.join("\n"));
});
