// Asks /status again and again and shows what it says.
// Must not: make markup of text (every name comes from a stranger: textContent only), load anything from elsewhere,
// or ask while nobody looks. Upstream: pages.py. The same facts: edgeguardctl watch.
"use strict";

const POLL_MS = 1000;
const ANSWER_MS = 5000; // as edgeguardctl waits for an answer
const BACKOFF_MOST_MS = 30000;
const REST_FACTOR = 10; // a daemon that takes long to answer is asked at most a tenth of the time
const SHOWN = { targets: 64, subscribers: 100, changes: 30 };

// The whole page.

const cards = new Map();
let cardsMade = 0;
let lastStatus = null;

function render(status, gap) {
  const now = performance.now();
  const servers = serversOf(status);
  const gauges = status.targets.slice(0, SHOWN.targets).map((target) => ["t " + target.name, targetGauge(target, servers)]);
  if (status.machine && status.machine.enabled !== false) gauges.unshift(["m", machineGauge(status.machine)]);
  for (const key of [...cards.keys()]) if (!gauges.some(([kept]) => kept === key)) {
    cards.get(key).node.remove();
    cards.delete(key);
  }
  gauges.forEach(([key, gauge], at) => {
    if (!cards.has(key)) cards.set(key, new GaugeCard("g" + cardsMade++));
    const card = cards.get(key);
    card.show(gauge, now, gap);
    if (byId("gauges").children[at] !== card.node) byId("gauges").insertBefore(card.node, byId("gauges").children[at] || null);
  });
  byId("no-targets").hidden = status.targets.length > 0;
  show(byId("more-targets"), more(status.targets.length - SHOWN.targets));
  renderHead(status);
  renderSubscribers(status.subscribers || []);
  renderCommands(status.last_commands || [], servers);
  noteChanges(status);
  lastStatus = status;
}

function serversOf(status) {
  const names = new Map((status.subscribers || []).map((row) => [row.subscriber, row.name]));
  const targets = new Set((status.subscribers || []).filter((row) => row.role === "inference").map((row) => row.target));
  return { names, has: (target) => targets.has(target) };
}

function renderHead(status) {
  const raised = status.targets.filter((target) => target.level !== "normal");
  put(byId("summary"), `Worst level ${visible(status.worst_level)}. ${count(status.targets.length, "target")}, ` +
    `${count((status.subscribers || []).length, "subscriber")}.`);
  document.title = `${visible(status.worst_level)} – edgeguardd ${location.host}`;
  byId("raised").hidden = raised.length === 0;
  const list = byId("raised").querySelector("span");
  resize(list, Math.min(raised.length, SHOWN.targets), () => make("a"));
  raised.slice(0, SHOWN.targets).forEach((target, at) => {
    const card = cards.get("t " + target.name);
    const link = list.children[at];
    if (card) link.setAttribute("href", "#" + card.node.id);
    else link.removeAttribute("href");
    put(link, `${visible(target.name)} (${visible(target.level)})${at + 1 < raised.length ? ", " : ""}`);
  });
  const doubts = [];
  if (!status.ready) doubts.push("The daemon is not ready.");
  if (typeof status.stale_s === "number") doubts.push(`The daemon's last sample is ${span(status.stale_s)} old: it sees nothing any more.`);
  show(byId("doubt"), doubts.join(" "));
  show(byId("kills"), kernelKills(status.kernel_log || {}));
  const config = status.config && status.config.path;
  put(byId("daemon"), `edgeguardd ${visible(status.version)}, up ${span(status.uptime_s)}, ` +
    `configuration ${config ? visible(config) : "defaults"}. The page keeps the last 5 minutes while it is open.`);
}

function kernelKills(log) {
  const last = log.last_report;
  if (!last) return "";
  const victim = `${visible(last.comm)}${last.target ? ` of ${visible(last.target)}` : ""}`;
  return `OOM reports of the kernel so far: ${log.reports}; the last killed ${victim}: ${visible(last.why)}; ${visible(last.remedy)}`;
}

function renderSubscribers(rows) {
  byId("no-subscribers").hidden = rows.length > 0;
  fillTable(byId("subscribers"),
    ["Name", "Number", "Role", "Target", "Process", "User", "Connected", "Last heard", "Unsent", "Carries out"],
    rows.slice(0, SHOWN.subscribers).map((row) => [
      visible(row.name), String(row.subscriber), visible(row.role), row.target === null ? "all" : visible(row.target),
      row.pid === null ? "unknown" : String(row.pid), row.uid === null ? "unknown" : String(row.uid),
      span(row.connected_s), age(row.silent_s), String(row.outbox_lines), (row.supports || []).map(visible).join(", ") || "nothing",
    ]));
  show(byId("more-subscribers"), more(rows.length - SHOWN.subscribers));
}

function renderCommands(ended, servers) {
  byId("no-commands").hidden = ended.length > 0;
  fillTable(byId("commands"), ["Number", "Target", "Action", "Outcome", "Ended", "Took", "Claimed", "Freed", "By"],
    [...ended].reverse().map((command) => [
      "#" + command.seq, visible(command.target), visible(command.action),
      visible(command.outcome) + (command.message ? `: ${visible(command.message)}` : ""),
      age(command.age_s), span(command.took_s), size(command.claimed_bytes), size(command.freed_bytes),
      servers.names.has(command.subscriber) ? visible(servers.names.get(command.subscriber)) : `subscriber ${command.subscriber}, gone`,
    ]));
}

const more = (number) => (number > 0 ? `And ${number} more: edgeguardctl status lists them all.` : "");

function noteChanges(status) {
  if (lastStatus === null) return;
  if (lastStatus.epoch !== status.epoch) note("the daemon was started anew");
  const before = new Map(lastStatus.targets.map((target) => [target.name, target.level]));
  for (const target of status.targets) {
    const was = before.get(target.name);
    if (was !== undefined && was !== target.level) {
      note(`${visible(target.name)}: ${visible(was)} → ${visible(target.level)}${target.reason ? ": " + visible(target.reason) : ""}`);
    }
  }
}

function note(text) {
  byId("no-changes").hidden = true;
  const list = byId("changes");
  list.prepend(make("li", `${clock()} ${text}`));
  while (list.children.length > SHOWN.changes) list.lastElementChild.remove();
}

// Asking: at rest once a second, more slowly while there is no answer, not at all while the page is out of sight.

let failures = 0;
let lastAnswer = null; // when, as the clock on the wall says
let gap = true; // whether the next point of the plots follows on the one before
let asking = false;
let timer = null;
let nextAt = 0;

async function ask() {
  const answer = await fetch("status", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
  if (!answer.ok) throw new Error(`the answer is ${answer.status}`);
  const status = await answer.json();
  if (typeof status !== "object" || status === null || !Array.isArray(status.targets)) throw new Error("the answer is no status of edgeguardd");
  return status;
}

async function look() {
  if (asking || document.hidden) return;
  asking = true;
  const began = performance.now();
  let status = null;
  try {
    status = await ask();
  } catch (error) {
    lost(error.name === "TimeoutError" ? `no answer within ${ANSWER_MS / 1000} s` : visible(error.message));
  }
  if (status !== null) {
    found();
    display(status);
  }
  asking = false;
  const now = performance.now();
  const pause = failures === 0 ? REST_FACTOR * (now - began) : POLL_MS * 2 ** (failures - 1);
  nextAt = now + Math.min(Math.max(POLL_MS, pause), BACKOFF_MOST_MS);
  tick();
}

// An answer that this page does not understand (a newer daemon's, say) is no lost connection, and is said as what it is.
function display(status) {
  try {
    render(status, gap);
    gap = false;
  } catch (error) {
    gap = true;
    show(byId("doubt"), `This page cannot show all of the daemon's answer (${visible(error.message)}); reload it, or use edgeguardctl watch.`);
  }
}

function found() {
  if (failures > 0) note("connected again");
  failures = 0;
  lastAnswer = clock();
  byId("lost").hidden = true;
  document.body.classList.remove("stale");
}

function lost(why) {
  failures += 1;
  gap = true;
  document.title = `connection lost – edgeguardd ${location.host}`;
  if (failures > 1) return;
  byId("lost").hidden = false;
  document.body.classList.add("stale");
  const since = lastAnswer === null ? "No answer from the daemon so far" : `Connection lost; all below is as it was at ${lastAnswer}`;
  put(byId("lost-alert"), `${since} (${why}).`);
  note("connection lost");
}

// Once a second while waiting: for the countdown, and for the next look when its time has come.
function tick() {
  clearTimeout(timer);
  if (document.hidden) return;
  const left = nextAt - performance.now();
  if (left <= 0) {
    look();
    return;
  }
  put(byId("lost-next"), `Next try in ${Math.ceil(left / 1000)} s.`);
  timer = setTimeout(tick, Math.min(left, 1000));
}

function lookNow() {
  nextAt = 0;
  tick();
}

put(byId("host"), location.host);
byId("retry").addEventListener("click", lookNow);
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) gap = true;
  else lookNow();
});
lookNow();
