// All pages: axe, dark and narrow, without JavaScript, harmful texts, and a page of another site.
"use strict";

const http = require("node:http");
const { check, inspect, open, picture, run, tables, until } = require("./browser.cjs");

const base = process.env.BASE;
const harmful = encodeURIComponent(process.env.HARMFUL_ID);

const PAGES = {
  overview: "overview",
  queue: "queues/mails",
  "queue-of-films": "queues/films",
  "queue-with-its-keys": "queues/films?groups=1",
  jobs: "queues/mails/jobs",
  "delayed-jobs": "queues/mails/jobs?state=delayed",
  "dead-letters": "queues/mails/dead",
  "all-dead-letters": "dead",
  "job-dead": "job?queue=mails&id=mail-1",
  "job-harmful": `job?queue=mails&id=${harmful}&show=content`,
  "job-running": "job?queue=films&id=film-1",
  workers: "workers",
  day: "throughput",
  schedules: "schedules",
  batches: "batches",
  history: "search",
  "history-of-one": `search?id=${harmful}`,
  send: "send",
  storages: "../all/overview",
  "one-of-several": "../all/staging/overview",
  // The last one, because it has no stream: a browser opens six connections to a host.
  error: "queues/no-such-queue",
};

async function everywhere(browser) {
  const light = await open(browser, { viewport: { width: 1280, height: 800 } });
  const dark = await open(browser, { viewport: { width: 390, height: 844 }, colorScheme: "dark", isMobile: true, deviceScaleFactor: 2 });
  const found = [];
  for (const [name, path] of Object.entries(PAGES)) {
    await light.goto(base + path);
    found.push(...(await inspect(light, name)), ...(await tables(light)).map((text) => `${name}: ${text}`));
    const utc = (await light.locator("main").innerText()).match(/\d{4}-\d\d-\d\dT\d.*|.*\bUTC\b/);
    const heights = await light.evaluate(() => [...document.querySelectorAll("form.fields")].map((form) => {
      const fields = [...form.querySelectorAll("input:not([type=hidden], [type=checkbox]), select")].filter((field) => field.offsetParent);
      return new Set(fields.map((field) => field.offsetHeight)).size;
    }));
    if (heights.some((count) => count > 1)) found.push(`${name} has fields of several heights`);
    if (utc) found.push(`${name} has a time that is not in the viewer's zone: ${utc[0]}`);
    if (["overview", "dead-letters", "schedules"].includes(name)) await picture(light, name);
    await dark.goto(base + path);
    found.push(...(await inspect(dark, `${name}, dark and narrow`)), ...(await tables(dark)).map((text) => `${name} on a phone: ${text}`));
    const width = await dark.evaluate(() => document.documentElement.scrollWidth);
    if (width > 390) found.push(`${name} is ${width} px wide on a phone`);
    if (name === "overview") await picture(dark, "phone");
  }
  check(found.length === 0, found.join("\n"));
  check(await light.evaluate(() => document.querySelector("img[src=x]") === null), "harmful HTML came to life");
}

async function times(browser) {
  const page = await open(browser);
  await page.goto(`${base}schedules`);
  const next = page.locator("tbody time").first();
  check((await next.getAttribute("title")).endsWith("UTC"), "the time in UTC is gone");
  check(/\d (MES?Z|GMT[+][12])$/.test(await next.innerText()), "the time does not name the viewer's zone");
  await page.goto(`${base}job?queue=films&id=film-1`);
  check((await page.locator("#live p", { hasText: "It has been running since" }).locator("time[title]").count()) === 1, "an explanation has no local time");
}

// The bounds of a search are typed and shown in the viewer's zone, and sent in UTC.
async function bounds(browser) {
  const page = await open(browser);
  const search = async (kind, sent) => {
    await page.getByLabel("Kind").fill(kind);
    await page.getByRole("main").getByRole("button", { name: "Search" }).click();
    await page.waitForURL(({ searchParams }) => searchParams.get("kind") === kind && searchParams.get("since") === sent);
  };
  const from = page.getByLabel("From (Europe/Berlin)");
  await page.goto(`${base}search`);
  await from.fill("2026-01-05 15:00");
  await search("mail", "2026-01-05T14:00:00.000Z");
  check((await from.inputValue()) === "2026-01-05 15:00:00", "the bound is not in the viewer's zone");
  await page.goto(`${base}search?since=2026-07-05T12:00:00.123456Z`);
  check((await from.inputValue()) === "2026-07-05 14:00:00", "the bound is not in summer time");
  await search("film", "2026-07-05T12:00:00.123456Z");
  await from.fill("2026-07-05T12:00Z");
  await search("mail", "2026-07-05T12:00Z");
}

async function keyboard(browser) {
  const page = await open(browser);
  await page.goto(`${base}overview`);
  await page.keyboard.press("Tab");
  check((await page.evaluate(() => document.activeElement.textContent)) === "Skip to the content", "the first stop is not the skip link");
  await page.keyboard.press("Enter");
  check((await page.evaluate(() => document.activeElement.id)) === "main", "the skip link does not lead to the content");
}

async function withoutScripts(browser) {
  const page = await open(browser, { javaScriptEnabled: false });
  await page.goto(`${base}schedules`);
  check((await page.locator("tbody time").first().innerText()).endsWith("UTC"), "times are not in UTC without JavaScript");
  await page.goto(`${base}search`);
  check((await page.locator("label[for=since]").innerText()) === "From (UTC)", "a bound is not in UTC without JavaScript");
  await page.goto(`${base}queues/films`);
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await page.getByText("Paused.").waitFor();
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await page.getByText("Resumed.").waitFor();
  await page.goto(`${base}queues/mails/dead?kind=mail&reason=rejected&text=broken`);
  await page.getByRole("button", { name: /Act on all that match/ }).click();
  await page.waitForURL("**/operations/**");
  await until("the count", async () => {
    await page.reload();
    return (await page.locator("main").innerText()).includes("3 match");
  });
  await page.goto(`${base}queues/mails/dead`);
  await page.getByRole("checkbox", { name: "Select mail-1", exact: true }).check();
  await page.getByRole("button", { name: /Act on the selected/ }).click();
  await until("the selected letter", async () => {
    await page.reload();
    return (await page.locator("main").innerText()).includes("1 match");
  });
}

// One box selects all rows of a page, and a refresh does not take the selection away.
async function selected(browser) {
  const page = await open(browser);
  await page.goto(`${base}queues/mails/dead`);
  const count = await page.locator("tbody input[name=selected]").count();
  await page.getByRole("checkbox", { name: "Select all rows of this page" }).check();
  await page.locator("#stale", { hasText: "updates wait" }).waitFor();
  check(count > 1 && (await page.locator("tbody input[name=selected]:checked").count()) === count, "not all rows are selected");
  await page.getByRole("button", { name: /Act on the selected/ }).click();
  await page.getByText(`${count} match`).waitFor();
}

// The form of a refused change has what was typed.
async function refused(browser) {
  const page = await open(browser);
  await page.goto(`${base}send?queue=mails`);
  await page.getByLabel("Kind").fill("mail");
  await page.getByLabel("Payload (JSON)").fill('{"to": broken}');
  await page.locator("main").getByRole("button", { name: "Send" }).click();
  await page.getByRole("button", { name: "Try again" }).waitFor();
  check((await page.getByLabel("Payload (JSON)").inputValue()) === '{"to": broken}', "the payload is gone");
  const found = await inspect(page, "a refused change");
  check(found.length === 0, found.join("\n"));
}

// A page that is no longer refreshed says so, and the notice of a change is shown once.
async function stale(browser) {
  const page = await open(browser);
  await page.goto(`${base}queues/mails?done=resumed`);
  await page.getByText("Resumed.").waitFor();
  check(!page.url().includes("done="), "the notice would be shown again");
  check(!(await page.locator("#stale").isVisible()), "a fresh page calls itself stale");
  // The route stays until the end: a request that is on its way when the last one is removed may get no answer.
  let isDown = true;
  await page.route("**/queues/mails*", (route) => (isDown ? route.fulfill({ status: 502, body: "" }) : route.continue()));
  await page.locator("#stale", { hasText: "status 502" }).waitFor();
  isDown = false;
  await page.locator("#stale").waitFor({ state: "hidden" });
}

// A connection without events, such as one that was cut while the machine slept, is reported and replaced.
async function silent(browser) {
  const page = await open(browser);
  await page.clock.install();
  let isSilent = true;
  await page.route("**/events", (route) => (isSilent ? undefined : route.continue()));
  await page.goto(`${base}queues/mails`);
  await page.locator("#stream > *").waitFor({ state: "attached" });
  check(!(await page.locator("#stale").isVisible()), "a fresh page calls itself stale");
  await page.clock.fastForward("01:10");
  await page.locator("#stale", { hasText: "nothing for a minute" }).waitFor();
  isSilent = false;
  await page.clock.fastForward("01:10");
  await page.locator("#stale").waitFor({ state: "hidden" });
}

// What was typed stays, also after the field has lost the focus: the button acts with it.
async function typed(browser) {
  const page = await open(browser);
  await page.goto(`${base}queues/films`);
  const length = page.getByLabel("For (empty: until it is resumed)");
  await length.fill("2h");
  await page.locator("h1").click();
  const refreshed = () => page.waitForResponse((answer) => answer.url().endsWith("queues/films"));
  await refreshed();
  await refreshed();
  check((await length.inputValue()) === "2h", "a refresh has emptied a field");
  await length.fill("");
  await page.locator("h1").click();
  await page.locator("#stale").waitFor({ state: "hidden" });
}

// The answer to a refresh decides whether the page goes on.
async function over(browser) {
  const [page, other] = [await open(browser), await open(browser)];
  let refreshes = 0;
  await page.goto(`${base}job?queue=films&id=film-1`);
  await page.route("**/job?*", async (route) => {
    refreshes += 1;
    const answer = await route.fetch();
    await route.fulfill({ response: answer, body: (await answer.text()).replace('id="stream"', "") });
  });
  await page.locator("#stream > *").waitFor({ state: "detached" });
  await other.goto(`${base}queues/films`);
  for (let look = 0; look < 3; look += 1) await other.waitForResponse((answer) => answer.url().endsWith("queues/films"));
  check(refreshes === 1, `the page was refreshed ${refreshes} times, though its job had ended`);
  check(!(await page.locator("#updates").isVisible()), "updates that have ended can be paused");
}

// A page that could not be shown comes as a whole, with its heading.
async function recovered(browser) {
  const page = await open(browser);
  let isRefused = false;
  const refuse = async (route) => {
    if (isRefused) return route.continue();
    isRefused = true;
    const answer = await route.fetch();
    const body = (await answer.text()).replace("<h1>", '<h1 id="failed">Service Unavailable: ');
    await route.fulfill({ response: answer, status: 503, body });
  };
  await page.route("**/queues/mails", refuse);
  await page.goto(`${base}queues/mails`);
  await page.locator("#failed").waitFor({ state: "detached" });
  await page.getByRole("heading", { name: "Queue mails", exact: true }).waitFor();
}

// A page of another site makes the browser send a form with whatever the browser adds by itself.
async function forged(browser) {
  const form = `<form method="post" action="${base}do/pause"><input name="queue" value="mails"></form><script>document.forms[0].submit()</script>`;
  const server = http.createServer((_, answer) => answer.setHeader("content-type", "text/html").end(form)).listen(0, "localhost");
  await new Promise((resolve) => server.once("listening", resolve));
  const page = await open(browser);
  await page.goto(`http://localhost:${server.address().port}/`);
  await page.getByText(/refused: this change does not come/).waitFor();
  server.close();
  await page.goto(`${base}queues/mails`);
  check((await page.locator("#live .tag", { hasText: "paused" }).count()) === 0, "a page of another site has paused the queue");
}

run(async (browser) => {
  for (const part of [everywhere, times, bounds, keyboard, withoutScripts, stale, silent, typed, selected, refused, over, recovered, forged]) {
    await part(browser);
    // Each visible page holds a connection, and the browser opens six to a server.
    for (const page of browser.contexts().flatMap((context) => context.pages())) await page.goto("about:blank");
  }
});
