// Keeps the page true while it is open: waits for events, and fetches again the part of it that changes.
"use strict";

const part = document.getElementById("part");
const LEAST_MS = 1000; // between two fetches of the part
const PATIENCE_MS = 40000; // an answer to the long poll comes within 25 s
const LOG_MS = 1500;
const MOST_LOG = 400000; // letters that are shown; what was printed before is dropped

// ---- connection

let lostSince = null;

function connected() {
  if (lostSince === null) return;
  lostSince = null;
  tellConnection();
  soon();
}

function disconnected() {
  if (lostSince === null) lostSince = new Date();
  tellConnection();
}

function tellConnection() {
  const banner = document.getElementById("lost");
  const live = document.getElementById("live");
  if (!live) return;
  live.textContent = lostSince ? "not live" : "live";
  live.classList.toggle("is-lost", lostSince !== null);
  banner.hidden = lostSince === null;
  if (lostSince) {
    const clock = lostSince.toISOString().slice(11, 19);
    banner.textContent = `The connection to the service is lost since ${clock} UTC. What you see is from then; it goes on by itself.`;
  }
}

// ---- the part that changes

let fetchedAt = 0;
let waiting = null;
let fetching = false;
let again = false;

function soon() {
  // At most once a second, whatever happens; what comes in between is shown by the next fetch.
  if (waiting !== null) return;
  waiting = setTimeout(() => { waiting = null; refetch(); }, Math.max(0, fetchedAt + LEAST_MS - Date.now()));
}

async function refetch() {
  if (!part) return;
  if (fetching) { again = true; return; }
  fetching = true;
  fetchedAt = Date.now();
  try {
    const answer = await ask("/page/fragment" + location.pathname + location.search);
    if (answer.status === 401) { location.assign("/login"); return; }
    if (answer.ok) {
      const fresh = document.createElement("div");
      fresh.innerHTML = await answer.text();
      settle(part, fresh);
      keepAges();
      connected();
    }
  } catch { disconnected(); } finally {
    fetching = false;
    if (again) { again = false; soon(); }
  }
}

function ask(path, options = {}) {
  return fetch(path, { credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS), ...options });
}

// Makes OLD like FRESH, and touches only what differs: focus, selection and what is unfolded stay.
function settle(old, fresh) {
  const named = new Map([...old.childNodes].filter((node) => node.id).map((node) => [node.id, node]));
  const staying = new Set([...fresh.childNodes].map((node) => node.id).filter(Boolean));
  let place = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const same = node.id ? named.get(node.id) : alikeAhead(place, node);
    if (!same) { old.insertBefore(node, place); continue; }
    // What stands before it is gone, or comes later under its own name: what stays is not moved, and so keeps its focus.
    while (place !== same && place && !staying.has(place.id)) { const next = place.nextSibling; place.remove(); place = next; }
    if (same !== place) old.insertBefore(same, place); else place = place.nextSibling;
    change(same, node);
  }
  while (place) { const next = place.nextSibling; place.remove(); place = next; }
}

function alikeAhead(place, node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return place && alike(place, node) ? place : null;
  for (let one = place; one; one = one.nextSibling) if (!one.id && alike(one, node) && looks(one) === looks(node)) return one;
  return null;
}

function looks(node) { return node.getAttribute("class"); }

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName;
}

function change(old, fresh) {
  if (!alike(old, fresh)) { old.replaceWith(fresh); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) { if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue; return; }
  if (old.isEqualNode(fresh)) return;
  if (old.matches("form[data-api]") && (old.contains(document.activeElement) || old.closest("details[open]"))) return; // somebody is at it
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  settle(old, fresh);
}

// ---- events

async function listen() {
  const kinds = (part.dataset.kinds || "").split(" ");
  let after = part.dataset.after; // where the count stood when the page was made
  for (;;) {
    try {
      // Once the connection was lost, an answer at once tells that it is back.
      const answer = await ask(`/api/v1/events?after=${after}${lostSince ? "&wait_s=0" : ""}`);
      if (answer.status === 401) { location.assign("/login"); return; }
      if (!answer.ok) throw new Error(answer.statusText);
      const news = await answer.json();
      connected();
      if (news.events.some((event) => kinds.includes(event.kind))) soon();
      // After a restart the service counts anew.
      after = news.events.length ? news.events[news.events.length - 1].number : news.after;
      if (news.events.length) await pause(200);
    } catch {
      disconnected();
      await pause(2000);
    }
  }
}

function pause(ms) { return new Promise((go) => setTimeout(go, ms)); }

// ---- times

function age(seconds) {
  if (seconds >= 86400) return `${Math.round(seconds / 86400)} d`;
  if (seconds >= 3600) return `${Math.round(seconds / 3600)} h`;
  if (seconds >= 60) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds)} s`;
}

function keepAges() {
  for (const time of document.querySelectorAll("time[data-age]")) {
    const away = (Date.now() - Date.parse(time.dateTime)) / 1000 + ahead;
    const text = away >= 0 ? `${age(away)} ago` : `in ${age(-away)}`;
    if (time.textContent !== text) time.textContent = text;
  }
}

// The service's clock counts: this machine's may be off.
const served = Number(document.body.dataset.now || 0) * 1000;
const ahead = served ? (served - Date.now()) / 1000 : 0;

// ---- buttons and forms

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.api) return;
  event.preventDefault();
  const button = form.querySelector("button");
  const failed = form.querySelector(".failed");
  if (failed) failed.hidden = true;
  button.disabled = true;
  try {
    const answer = await ask(form.dataset.api, {
      method: form.dataset.method || "POST",
      headers: { "Content-Type": "application/json", "X-Wattsmith": "1" },
      body: form.elements.length > 1 ? JSON.stringify(written(form)) : undefined,
    });
    if (answer.ok) await done(form, answer); else tell(form, await reason(answer));
  } catch {
    tell(form, "The service does not answer. Try again in a moment.");
  } finally { button.disabled = false; }
});

function written(form) {
  const fields = [...new FormData(form)].map(([name, value]) => [name, value.trim() === "" ? null : value.trim()]);
  return Object.fromEntries(fields);
}

async function done(form, answer) {
  if (form.dataset.then) { location.assign(form.dataset.then); return; }
  if (form.dataset.thenKey) { location.assign(form.dataset.thenKey + encodeURIComponent((await answer.json()).key)); return; }
  if (form.dataset.shows) {
    const shown = form.querySelector(".shown");
    const code = document.createElement("code");
    code.textContent = (await answer.json()).text;
    shown.replaceChildren(code, document.createElement("br"), "Keep it now: it is shown this once.");
    shown.hidden = false;
    form.reset();
  }
  const fold = form.closest("details");
  if (fold) fold.open = false;
  refetch();
}

async function reason(answer) {
  try {
    const { error } = await answer.json();
    const fields = error.fields.map((one) => `${one.where}${one.line ? `, line ${one.line}` : ""}: ${one.reason}`);
    return fields.length ? fields.join("\n") : error.message;
  } catch { return `The service answered ${answer.status}.`; }
}

function tell(form, message) {
  const failed = form.querySelector(".failed");
  if (!failed) { alert(message); return; }
  failed.textContent = message;
  failed.hidden = false;
}

// ---- the log of a job

async function follow(log) {
  let offset = 0;
  let quiet = 0;
  for (;;) {
    let more = false;
    try {
      const answer = await ask(`${log.dataset.log}&offset=${offset}`);
      if (answer.ok) {
        const text = await answer.text();
        more = answer.headers.get("X-More") === "1";
        offset = Number(answer.headers.get("X-Next-Offset"));
        if (text) print(log, text);
        quiet = text ? 0 : quiet + 1;
      }
    } catch { disconnected(); }
    const over = document.querySelector("h1 .state.done, h1 .state.failed, h1 .state.cancelled, h1 .state.refused");
    if (over && !more && quiet > 1) return;
    if (!more) await pause(LOG_MS);
  }
}

function print(log, text) {
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  const whole = log.textContent + text;
  log.textContent = whole.length > MOST_LOG ? "…\n" + whole.slice(-MOST_LOG) : whole;
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// ---- begin

if (part) {
  listen();
  setInterval(keepAges, 1000);
  const every = Number(part.dataset.every);
  if (every) setInterval(() => { if (!document.hidden && lostSince === null) soon(); }, every * 1000);
  // The long poll may hang on a connection that is dead: what tells that the service is back is a fresh one.
  setInterval(() => { if (lostSince !== null) refetch(); }, 3000);
  window.addEventListener("online", soon);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
}
const log = document.getElementById("log");
if (log) follow(log);
