// The browser that the scripts share, and what they do on every page.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { chromium } = require("playwright-core");

const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const LIMIT = 60_000;
// The last requests of the page that was opened last, for a failure.
let latest = [];

async function launch() {
  // On other systems than Linux the package has no browser; then CHROMIUM names one, for example Debian's /usr/bin/chromium.
  const { default: pack } = await import(require.resolve("@sparticuz/chromium"));
  const executablePath = process.env.CHROMIUM || (await pack.executablePath());
  const until = Date.now() + LIMIT;
  for (;;) {
    try {
      return await chromium.launch({ executablePath, args: pack.args, headless: true });
    } catch (error) {
      // The package unpacks the browser at its first use: another test may still be writing the file.
      if (!/ETXTBSY|EACCES/.test(error.message) || Date.now() > until) throw error;
      await new Promise((later) => setTimeout(later, 250));
    }
  }
}

// Opens a page that reports what the browser refuses: errors of scripts, and breaches of the content security policy.
async function open(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, locale: "de-DE", timezoneId: "Europe/Berlin", ...options });
  context.setDefaultTimeout(LIMIT);
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("console", (message) => {
    const text = message.text();
    if (message.type() === "error" && !/Failed to load resource|ERR_|EventSource/.test(text)) page.problems.push(text);
  });
  const traffic = [];
  const note = (what, request, more = "") => {
    traffic.push(`${new Date().toISOString().slice(14, 23)} ${what} ${request.method()} ${new URL(request.url()).pathname} ${more}`);
    if (traffic.length > 40) traffic.shift();
  };
  page.on("request", (request) => note("asked", request));
  page.on("response", (answer) => note("answered", answer.request(), answer.status()));
  page.on("requestfinished", (request) => note("done", request));
  page.on("requestfailed", (request) => note("failed", request, request.failure()?.errorText));
  latest = traffic;
  page.on("dialog", (dialog) => {
    page.problems.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  return page;
}

function check(condition, text) {
  if (!condition) throw new Error(text);
}

// Returns what axe finds, and what has failed on the page.
async function inspect(page, name) {
  // By the debugger's protocol, which the page's policy does not bind.
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const texts = found.violations.map((violation) => `${violation.id}: ${violation.help}: ${violation.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
  return [...texts, ...page.problems.splice(0)].map((text) => `${name}: ${text}`);
}

// Returns what is wrong with the tables of a page: on a wide screen a head that breaks inside a word; on a narrow one a row that is no card, a
// cell without the head of its column, and a link or button outside of the screen.
async function tables(page) {
  return page.evaluate(() => {
    const found = [];
    const width = document.documentElement.clientWidth;
    const isNarrow = window.matchMedia("(max-width: 40rem)").matches;
    const ruler = document.createElement("canvas").getContext("2d");
    for (const table of document.querySelectorAll("table")) {
      const heads = [...table.querySelectorAll("thead th")];
      // The head of the boxes that select rows has only an unseen text.
      const isBroken = (head) => head.firstChild.nodeType === Node.TEXT_NODE && [...head.textContent.matchAll(/\p{L}+/gu)].some((word) => {
        const range = document.createRange();
        range.setStart(head.firstChild, word.index);
        range.setEnd(head.firstChild, word.index + word[0].length);
        return new Set([...range.getClientRects()].map((line) => line.top)).size > 1;
      });
      if (!isNarrow) {
        found.push(...heads.filter(isBroken).map((head) => `the head ${head.textContent} breaks inside a word`));
        continue;
      }
      if (heads.some((head) => head.getClientRects().length > 0)) found.push("the heads are shown above the cards");
      const hasHead = (cell) => {
        const head = heads[cell.cellIndex].textContent;
        if (cell.tagName === "TH" || /^(Actions?|Select)$/.test(head)) return cell.dataset.label === undefined;
        const style = getComputedStyle(cell, "::before");
        ruler.font = style.font;
        const fits = style.whiteSpace === "nowrap" && ruler.measureText(`${head}: `).width <= cell.clientWidth;
        return cell.dataset.label === head && (cell.getClientRects().length === 0 || fits);
      };
      for (const row of table.tBodies[0].rows) {
        if (getComputedStyle(row).display !== "block") found.push("a row is no card");
        const cells = [...row.cells].filter((cell) => !hasHead(cell));
        found.push(...cells.map((cell) => `the cell ${cell.outerHTML} has not the head ${heads[cell.cellIndex]?.textContent}`));
        const outside = [...row.querySelectorAll("a, button")].filter((place) => {
          const { left, right } = place.getBoundingClientRect();
          return left < 0 || right > width;
        });
        found.push(...outside.map((place) => `outside of the screen: ${place.outerHTML}`));
      }
    }
    return found;
  });
}

// Keeps a picture, if somebody wants it.
async function picture(page, name) {
  const folder = process.env.PICTURES;
  if (folder) await page.screenshot({ path: path.join(folder, `${name}.png`), caret: "initial" });
}

// Asks until the answer is true.
async function until(what, ask) {
  const end = Date.now() + LIMIT;
  while (!(await ask())) {
    check(Date.now() < end, `${what} does not come`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

// Runs a script's work in a browser, and ends the process with the first failure.
async function run(work) {
  const browser = await launch();
  try {
    await work(browser);
  } finally {
    await browser.close();
  }
}

function fail(error) {
  console.error(error, `\nthe last requests of the page:\n${latest.join("\n")}`);
  process.exit(1);
}

module.exports = { check, inspect, open, picture, run: (work) => run(work).catch(fail), tables, until };
