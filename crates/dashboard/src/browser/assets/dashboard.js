// Shows times in the viewer's time zone, and updates the page while it is visible. The pages work without this script.
(() => {
  "use strict";
  const format = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });

  function localise(root) {
    for (const element of root.querySelectorAll("time[datetime]:not([title])")) {
      const at = new Date(element.dateTime);
      if (!Number.isNaN(at.getTime())) {
        element.title = element.textContent;
        element.textContent = format.format(at);
      }
    }
  }

  // The boxes that select all rows of a page work only with this script.
  function showSelectors(root) {
    for (const box of root.querySelectorAll("input[data-all]")) {
      box.hidden = false;
    }
  }

  document.addEventListener("change", (event) => {
    const all = event.target.closest("input[data-all]");
    for (const box of all ? all.closest("table").querySelectorAll("tbody input[type=checkbox]") : []) {
      box.checked = all.checked;
    }
  });

  // A time in a field is shown and typed in the viewer's zone, and sent in UTC. A time that names its zone is sent as it is.
  const namesZone = /(Z|[+-]\d\d:?\d\d)$/i;
  const localTime = /^(\d{4}-\d\d-\d\d)([T ](\d\d:\d\d(:\d\d(\.\d+)?)?))?$/i;
  function localField(field) {
    const at = new Date(field.value);
    if (namesZone.test(field.value) && !Number.isNaN(at.getTime())) {
      const two = (number) => String(number).padStart(2, "0");
      const day = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join("-");
      field.dataset.sent = field.value;
      field.value = `${day} ${[at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":")}`;
      field.dataset.shown = field.value;
    }
    field.placeholder = "2026-11-22 15:00";
    field.form.querySelector(`label[for="${field.id}"] .zone`).textContent = format.resolvedOptions().timeZone;
  }
  function sentTime(field) {
    // The time of a search is more exact than the field shows.
    if (field.value === field.dataset.shown) {
      return field.dataset.sent;
    }
    const text = field.value.trim();
    const [, day, , time = "00:00"] = localTime.exec(text) ?? [];
    const at = new Date(`${day}T${time}`);
    return Number.isNaN(at.getTime()) ? text : at.toISOString();
  }
  document.querySelectorAll("input[data-time]").forEach(localField);
  document.addEventListener("formdata", (event) => {
    for (const field of event.target.querySelectorAll("input[data-time]")) {
      event.formData.set(field.name, sentTime(field));
    }
  });

  const place = document.getElementById("stream");
  const button = document.getElementById("updates");
  let paused = false;

  // A refresh leaves out the payload, so that the server does not read it again each time.
  const refreshed = new URL(window.location.href);
  refreshed.searchParams.delete("show");
  refreshed.searchParams.delete("done");
  refreshed.hash = "";

  // The page, and then each answer to a refresh, decides whether the page goes on: without a stream it is refreshed no more, and with
  // `data-again` only for as many seconds.
  let overSince = null;
  let isOver = false;
  function follow(answer) {
    const again = answer.getElementById("live")?.dataset.again;
    const goesOn = answer.getElementById("stream") && again === undefined;
    overSince = goesOn ? null : (overSince ?? Date.now());
    isOver = overSince !== null && Date.now() >= overSince + 1000 * Number(again ?? 0);
    button.parentElement.hidden = isOver;
  }

  // The server sends an event every 15 seconds or more often. None comes over a connection that was cut while the machine slept, or from a
  // server that hangs, and the browser reports neither.
  const MAX_SILENCE = 60_000;
  let lastEvent = Date.now();
  function createEventSource(url) {
    const source = new EventSource(url, { withCredentials: true });
    for (const event of ["refresh", "alive"]) {
      source.addEventListener(event, () => { lastEvent = Date.now(); });
    }
    return source;
  }
  function reconnect() {
    if (place?.firstElementChild && Date.now() > lastEvent + MAX_SILENCE) {
      isStale("the dashboard has sent nothing for a minute; the page reconnects");
      window.htmx.remove(place.firstElementChild);
      listen();
    }
  }

  // Opens or closes the event stream. Removing its element closes the connection.
  function listen() {
    const wanted = place && window.htmx && !paused && !isOver && document.visibilityState === "visible";
    const current = place && place.firstElementChild;
    if (!wanted && current) {
      window.htmx.remove(current);
    }
    if (wanted && !current) {
      lastEvent = Date.now();
      const stream = document.createElement("div");
      stream.setAttribute("hx-ext", "sse");
      stream.setAttribute("sse-connect", place.dataset.events);
      const refresh = document.createElement("div");
      for (const [name, value] of [
        ["hx-get", refreshed.href], ["hx-trigger", "sse:refresh"], ["hx-select", "#live"], ["hx-target", "#live"],
        ["hx-swap", "outerHTML"],
        // A request without an answer would hold up each later refresh.
        ["hx-sync", "this:drop"], ["hx-request", JSON.stringify({ timeout: 120_000 })],
      ]) {
        refresh.setAttribute(name, value);
      }
      stream.append(refresh);
      place.append(stream);
      window.htmx.process(stream);
    }
  }

  // Returns whether the viewer is using a part of the page, which a refresh would then take away.
  function isInUse(live) {
    const active = document.activeElement;
    const selection = window.getSelection();
    return (active && active !== document.body && live.contains(active) && active.matches("a, button, input, select, textarea, summary"))
      || (selection && !selection.isCollapsed && live.contains(selection.anchorNode))
      || live.querySelector("details[open]") !== null
      || [...live.querySelectorAll("input, textarea")].some((field) => field.value !== field.defaultValue || field.checked !== field.defaultChecked);
  }

  // Tells the viewer that the page is no longer updated.
  const stale = document.getElementById("stale");
  let updated = new Date();
  function isStale(reason) {
    stale.textContent = `Not updated since ${format.format(updated)}: ${reason}.`;
    stale.hidden = false;
  }

  document.addEventListener("htmx:beforeSwap", (event) => {
    const live = document.getElementById("live");
    if (!live || !event.detail.shouldSwap) {
      return;
    }
    if (document.getElementById("failed")) {
      // A refresh would leave the heading of the error, and bring no form of the page.
      event.detail.shouldSwap = false;
      window.location.reload();
      return;
    }
    const answer = new DOMParser().parseFromString(event.detail.serverResponse, "text/html");
    if (!answer.getElementById("live")) {
      // Such as the login page of a proxy.
      event.detail.shouldSwap = false;
      isStale("the answer is no page of the dashboard; reload this one");
      return;
    }
    follow(answer);
    if (isInUse(live)) {
      event.detail.shouldSwap = false;
      isStale(isOver
        ? "the page is refreshed no more; reload it"
        : "updates wait while a link, a field or a text below is selected, or a field is filled in");
    }
  });
  // After the swap, because the element of the request is in the stream.
  document.addEventListener("htmx:afterRequest", listen);
  document.addEventListener("htmx:afterSwap", () => {
    updated = new Date();
    stale.hidden = true;
    // The fields outside of `#live` stay, perhaps with a time that the viewer is typing.
    document.querySelectorAll("#live input[data-time]").forEach(localField);
    localise(document);
    showSelectors(document);
  });
  document.addEventListener("htmx:responseError", (event) => isStale(`the dashboard answered with status ${event.detail.xhr.status}`));
  for (const failure of ["htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(failure, () => isStale("the dashboard does not answer"));
  }
  document.addEventListener("htmx:sseError", () => isStale("the connection to the dashboard is lost; the page reconnects"));
  document.addEventListener("visibilitychange", listen);
  if (place && window.htmx) {
    window.htmx.createEventSource = createEventSource;
    window.setInterval(reconnect, 5_000);
  }
  if (button) {
    follow(document);
    button.addEventListener("click", () => {
      paused = !paused;
      button.setAttribute("aria-pressed", String(paused));
      listen();
    });
  }
  // Removes the notice of a change from the address, so that a reload does not show it again.
  const here = new URL(window.location.href);
  if (here.searchParams.has("done")) {
    here.searchParams.delete("done");
    window.history.replaceState(null, "", here);
  }
  localise(document);
  showSelectors(document);
  listen();
})();
