// Incidents at three in the morning: for each what an operator clicks and types, from the first page on, and what the page says then. None
// takes more than four clicks, on a wide screen and on a phone, with and without JavaScript.
"use strict";

const { check, open, picture, run, tables, until } = require("./browser.cjs");

const { BASE: base, WIDTH, SCRIPTS, SINCE, UNTIL } = process.env;
const [width, hasScripts] = [Number(WIDTH), SCRIPTS === "true"];

const main = (page) => page.getByRole("main");
const nav = (name) => ({ click: (page) => page.getByRole("navigation").getByRole("link", { name }) });
const link = (name) => ({ click: (page) => main(page).getByRole("link", { name, exact: true }).first() });
const button = (name) => ({ click: (page) => main(page).getByRole("button", { name }) });
const type = (label, text) => ({ into: (page) => main(page).getByLabel(label), text });
const letters = [nav(/Dead letters/), link("mails")];
const letter = { click: (page) => page.getByRole("region", { name: "Dead letters" }).getByRole("link").first() };
const found = (id) => ({ click: (page) => main(page).getByRole("link", { name: new RegExp(`^(${id}|Explain where it may be)$`) }) });
const job = (id) => [nav("History"), type("Job id", id), type("Queue", "films"), button("Search"), found(id)];

const INCIDENTS = [
  ["which errors 5,000 dead letters have", [...letters, button(/^Act on all/)], [/5.000 match/, /the file is empty\s+rejected\s+3.000/, /invalid symbol in line #\s+rejected\s+2.000/]],
  ["what is in one of them", [...letters, letter, link("Show the payload and the checkpoint")], [/"text": "(line \d+)?"/]],
  ["those without a cure are purged", [...letters, button(/^Act on these.*the file is empty/), type(/Type the name of the queue/, "mails"), button(/^Purge 3.000/)], [/3.000 deleted/]],
  ["the others are put back after a deploy", [...letters, button(/^Act on all/), button(/^Redrive 2.000/)], [/2.000 put back/, /2.000 wait or run/]],
  ["jobs wait because somebody has paused their queue", [link("letters"), { see: /By ada. the bank is down/ }, button("Resume")], [/Resumed/]],
  ["a job waits because no worker knows its kind", job("typo"), [/unknown_kind/]],
  ["a delayed job is not wanted any more", [...job("delayed"), { see: /delayed_until/ }, button("Cancel the job")], [/Cancellation was requested by ada/]],
  ["a job was never sent", job("lost"), [/not_found/]],
  ["a running job is cancelled", [nav("Workers"), link("film"), button("Cancel the job")], [/Dead-lettered: cancelled/]],
  ["a worker is gone", [nav("Workers")], [/Without a record for three intervals[^]*the doomed/]],
  ["what ended yesterday", [nav("History"), type("From", SINCE), type("Until", UNTIL), button("Search")], [/of-yesterday/]],
];

// Waits for something on the page, which follows the storage by its scripts; without them the operator reloads it.
async function wait(page, what, ask) {
  await until(what, async () => (await ask()) || (!hasScripts && (await page.reload()) && false));
}

async function perform(page, [name, steps, shown]) {
  await page.goto(base);
  for (const step of [...steps, ...shown.map((see) => ({ see }))]) {
    if (step.see) {
      await wait(page, `${name}: ${step.see}`, async () => step.see.test(await main(page).innerText()));
      continue;
    }
    const place = (step.click || step.into)(page);
    await wait(page, `${name}: ${place}`, async () => (await place.count()) > 0);
    await (step.click ? place.click() : place.fill(step.text));
  }
  const clicks = steps.filter((step) => step.click).length;
  check(clicks <= 4, `${name}: ${clicks} clicks`);
  const needed = await page.evaluate(() => document.documentElement.scrollWidth);
  check(needed <= width, `${name}: the page is ${needed} px wide`);
  const wrong = await tables(page);
  check(wrong.length === 0, `${name}: ${wrong.join("\n")}`);
  await picture(page, `${name}-${width}`);
}

run(async (browser) => {
  const page = await open(browser, { viewport: { width, height: 844 }, javaScriptEnabled: hasScripts });
  for (const incident of INCIDENTS) await perform(page, incident);
  check(!(await main(page).innerText()).includes("of-today"), "the history of yesterday has a job of today");
  check(page.problems.length === 0, page.problems.join("\n"));
});
