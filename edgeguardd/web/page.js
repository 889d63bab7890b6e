// Asks /status again and again and shows what it says.
// Must not: make markup of text (every name comes from a stranger: textContent only), load anything from elsewhere,
// ask while nobody looks, or keep more than the last minutes. Upstream: pages.py. The same facts: edgeguardctl watch.
"use strict";

const POLL_MS = 1000;
const ANSWER_MS = 5000; // as edgeguardctl waits for an answer
const BACKOFF_MOST_MS = 30000;
const REST_FACTOR = 10; // a daemon that takes long to answer is asked at most a tenth of the time
const KEPT_MS = 5 * 60 * 1000;
const KEPT_POINTS = 400; // of each plot; one a second makes 300
const SHOWN = { targets: 64, subscribers: 100, changes: 30 };
const MOST_CHARS = 300;
const LEVELS = ["normal", "elevated", "high", "critical", "emergency"];
const MARKS = ["elevated", "high", "critical"];
const RELIEF = {
  resting: "memory.high as it was set",
  asked: "memory.high is being lifted",
  lifted: "memory.high is lifted for the trim",
  returning: "memory.high is being put back",
  unavailable: "memory.high cannot be lifted",
};

const byId = (id) => document.getElementById(id);

// Text and figures. Sizes and spans read as in edgeguardctl.

function visible(text) {
  const whole = String(text);
  const cut = whole.length > MOST_CHARS ? whole.slice(0, MOST_CHARS - 1) + "…" : whole;
  // What cannot be seen, turns the direction of writing, or is half a character is spelled out.
  return cut.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (char) => "\\u{" + char.codePointAt(0).toString(16) + "}");
}

function size(bytes) {
  if (typeof bytes !== "number") return "unknown";
  const sign = bytes < 0 ? "−" : "";
  let rest = Math.abs(bytes);
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (rest < 1024) return sign + rest.toFixed(unit === "B" ? 0 : 1) + " " + unit;
    rest /= 1024;
  }
  return sign + rest.toFixed(1) + " TiB";
}

function span(seconds) {
  if (typeof seconds !== "number") return "unknown";
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  for (const [limit, divisor, unit] of [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) {
    if (seconds < limit) return (seconds / divisor).toFixed(unit === "s" && seconds < 10 ? 1 : 0) + " " + unit;
  }
  return Math.round(seconds / 86400) + " d";
}

const percent = (ratio) => Math.round(ratio * 100) + " %";
const clock = () => new Date().toLocaleTimeString([], { hour12: false });
const levelName = (level) => (LEVELS.includes(level) ? level : "unknown");

function rate(bytesPerS) {
  if (typeof bytesPerS !== "number") return "unknown";
  // Less than a page or so a second is a smoothed average coming to rest.
  return Math.abs(bytesPerS) < 4096 ? "none" : (bytesPerS > 0 ? "+" : "") + size(bytesPerS) + "/s";
}

// The document: nodes are kept and their text changed, so that focus, selection and screen readers stay where they are.

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function show(node, text) {
  node.hidden = !text;
  put(node, text || "");
}

function make(tag, text, role) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (role) node.setAttribute("role", role);
  return node;
}

function resize(parent, length, makeChild) {
  while (parent.children.length > length) parent.lastElementChild.remove();
  while (parent.children.length < length) parent.append(makeChild());
}

// A table of texts. On a phone it has no header row in sight, so each cell brings its label.
function fillTable(table, header, rows) {
  table.hidden = rows.length === 0;
  if (!table.tHead) {
    const head = make("tr", undefined, "row");
    head.append(...header.map((label) => make("th", label, "columnheader")));
    const group = make("thead", undefined, "rowgroup");
    group.append(head);
    table.append(group, make("tbody", undefined, "rowgroup"));
  }
  const body = table.tBodies[0];
  resize(body, rows.length, () => {
    const row = make("tr", undefined, "row");
    for (const label of header) {
      const cell = make("td", undefined, "cell");
      cell.dataset.label = label;
      cell.append(make("bdi"));
      row.append(cell);
    }
    return row;
  });
  rows.forEach((cells, at) => cells.forEach((text, column) => put(body.rows[at].cells[column].firstChild, text)));
}

function fillFacts(list, facts) {
  resize(list, facts.length * 2, () => make(list.children.length % 2 ? "dd" : "dt"));
  facts.flat().forEach((text, at) => put(list.children[at], text));
}

function fillLegend(list, lines) {
  resize(list, lines.length, () => byId("key").content.firstElementChild.cloneNode(true));
  lines.forEach(([kind, text], at) => {
    list.children[at].querySelector("path").setAttribute("class", kind);
    put(list.children[at].querySelector("span"), text);
  });
}

// One plot: the last minutes of used bytes against the lines that stood at each moment.

class History {
  constructor() {
    this.points = [];
  }

  add(point) {
    this.points.push(point);
    const oldest = point.at - KEPT_MS;
    // One point beyond the edge stays, so that the line begins at the edge.
    while (this.points.length > KEPT_POINTS || (this.points.length > 1 && this.points[1].at <= oldest)) this.points.shift();
  }

  top() {
    const most = this.points.map((point) => Math.max(point.limit || 0, (point.used || 0) * 1.1));
    return Math.max(1, ...most) * 1.04;
  }

  // The line of one kind as runs of [x, y]; where nobody looked, or nothing was known, a run ends.
  runs(kind, now, top) {
    const runs = [];
    let open = false;
    for (const point of this.points) {
      const value = point[kind];
      if (typeof value !== "number") {
        open = false;
        continue;
      }
      if (!open || point.gap) runs.push([]);
      open = true;
      const x = Math.max(0, 300 * (1 - (now - point.at) / KEPT_MS));
      runs[runs.length - 1].push([x.toFixed(1), (100 * (1 - value / top)).toFixed(1)]);
    }
    return runs;
  }
}

// A run as the d of a path. A run of one point is a dot's width long, or it would not be drawn.
const straight = (run) => "M" + run.map(([x, y]) => `${x} ${y}`).join("L") + (run.length === 1 ? "h0.2" : "");
const stepped = (run) => `M${run[0][0]} ${run[0][1]}` + run.map(([x, y]) => `H${x}V${y}`).join("") + (run.length === 1 ? "h0.2" : "");
const filled = (run) => `M${run[0][0]} 100` + run.map(([x, y]) => `L${x} ${y}`).join("") + `V100Z`;

class GaugeCard {
  constructor(id) {
    this.node = byId("gauge").content.firstElementChild.cloneNode(true);
    this.node.id = id;
    this.history = new History();
  }

  show(gauge, now, gap) {
    const part = (selector) => this.node.querySelector(selector);
    const level = levelName(gauge.level);
    this.node.className = level;
    put(part("h3 bdi"), visible(gauge.name));
    put(part(".level"), visible(gauge.level));
    part(".level").className = "level " + level;
    put(part(".reason"), gauge.reason ? visible(gauge.reason) : "");
    show(part(".state"), gauge.state.join("; "));
    fillFacts(part("dl"), gauge.facts);
    this.history.add({ at: now, gap, used: gauge.used, limit: gauge.limit, ...gauge.marks });
    this.draw(part, gauge, now);
  }

  draw(part, gauge, now) {
    const top = this.history.top();
    const draw = (name, kind, shape) => part("path." + name).setAttribute("d", this.history.runs(kind, now, top).map(shape).join(""));
    for (const kind of [...MARKS, "limit"]) draw(kind, kind, stepped);
    draw("needed", "used", straight);
    draw("needed-area", "used", filled);
    const lines = [["needed", `${gauge.usedWord} ${size(gauge.used)}`]];
    for (const mark of MARKS) if (gauge.marks[mark] !== undefined) lines.push([mark, `${mark} from ${size(gauge.marks[mark])}`]);
    if (typeof gauge.limit === "number") lines.push(["limit", `${gauge.limitWord} ${size(gauge.limit)}`]);
    fillLegend(part(".legend"), lines);
    put(part(".top"), size(top));
    const used = this.history.points.map((point) => point.used).filter((value) => typeof value === "number");
    const range = used.length ? `, between ${size(Math.min(...used))} and ${size(Math.max(...used))}` : "";
    part("svg").setAttribute("aria-label", `${visible(gauge.name)} over the last 5 minutes: ${lines.map((line) => line[1]).join(", ")}${range}`);
  }
}

// What /status says -> what a card shows.

function machineGauge(machine) {
  const sample = machine.sample;
  const facts = [["Available", sample ? `${size(sample.available_bytes)} of ${size(sample.total_bytes)}` : "unknown"]];
  if (sample && sample.swap_total_bytes) facts.push(["Swap free", `${size(sample.swap_free_bytes)} of ${size(sample.swap_total_bytes)}`]);
  for (const device of machine.devices || []) {
    const fault = device.degraded ? `cannot be read: ${visible(device.degraded)}` : "";
    facts.push([visible(device.name), fault || `${size(device.used_bytes)} of ${size(device.total_bytes)} in use`]);
  }
  if (machine.wanted_bytes) facts.push(["Wanted back", size(machine.wanted_bytes)]);
  facts.push(["Sampled", age(machine.sample_age_s)]);
  return {
    name: "The whole machine", level: machine.level, reason: machine.reason, facts, marks: {},
    state: machine.degraded ? [`cannot be read: ${visible(machine.degraded)}`] : [],
    used: sample ? sample.total_bytes - sample.available_bytes : null, usedWord: "in use",
    limit: sample ? sample.total_bytes : null, limitWord: "all",
  };
}

function targetGauge(target, servers) {
  const marks = {};
  for (const mark of MARKS) if (target.marks) marks[mark] = target.marks[mark + "_bytes"];
  return {
    name: target.name, level: target.level, reason: target.reason, state: targetState(target, servers), marks,
    facts: targetFacts(target, servers), used: target.needed_bytes, usedWord: "needed", limit: target.limit_bytes,
    limitWord: limitName(target),
  };
}

// What is unusual; as edgeguardctl words it.
function targetState(target, servers) {
  const state = [];
  if (!target.present) state.push("no such cgroup yet");
  if (target.degraded) state.push(`cannot be read: ${visible(target.degraded)}`);
  if (target.exhausted) state.push("nothing left to ask for");
  if (!servers.has(target.name)) state.push("nobody subscribed: nobody can be asked");
  const kills = target.counters && target.counters.oom_kill;
  if (kills) state.push(`${kills} process${kills === 1 ? "" : "es"} killed by the kernel so far`);
  return state;
}

function targetFacts(target, servers) {
  const used = typeof target.used_ratio === "number" ? ` (${percent(target.used_ratio)} of what can grow)` : "";
  const facts = [
    ["Needed", size(target.needed_bytes) + used],
    ["Limit", typeof target.limit_bytes === "number" ? `${size(target.limit_bytes)}, ${limitName(target)}` : "none"],
    ["Headroom", size(target.headroom_bytes)],
    ["Growth", rate(target.growth_bytes_per_s)],
    ["At rest", size(target.static_bytes)],
    ["With page cache", size(target.current_bytes)],
    ["Restricted to", restrictions(target.in_force || {})],
  ];
  for (const command of target.outstanding || []) {
    const who = servers.names.get(command.subscriber);
    facts.push([`Asked #${command.seq}`, `${visible(command.action)}, ${visible(command.status)} ` +
      `${age(command.age_s)}${who === undefined ? "" : ` by ${visible(who)}`}`]);
  }
  facts.push(["Relief", RELIEF[target.relief] || visible(target.relief)]);
  facts.push(["Last resort", lastResort(target.last_resort || {})]);
  facts.push(["Sampled", `${age(target.sample_age_s)}${target.watch === "epoll" ? ", woken by the kernel" : ""}`]);
  return facts;
}

function limitName(target) {
  const own = !target.limit_path || target.limit_path === target.path;
  return visible(target.limit_kind || "limit") + (own ? "" : ` of ${visible(target.limit_path)}`);
}

function restrictions(force) {
  const found = [];
  if (force.max_batch_ratio < 1) found.push(`batch at most ${percent(force.max_batch_ratio)}`);
  if (force.accept_requests === false) found.push("no new requests");
  if (force.model_loaded === false) found.push("model unloaded");
  return found.join(", ") || "nothing";
}

function lastResort(resort) {
  const parts = [];
  if (resort.running) parts.push("being carried out");
  if (resort.last) parts.push(`${visible(resort.last.action)} ${visible(resort.last.outcome)} ${age(resort.last.age_s)}` +
    (resort.last.message ? `: ${visible(resort.last.message)}` : ""));
  return parts.join("; ") || (resort.configured ? "configured, not used yet" : "not configured");
}

const age = (seconds) => (typeof seconds === "number" ? `${span(seconds)} ago` : "not yet");

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
  const config = status.config && status.config.path;
  put(byId("daemon"), `edgeguardd ${visible(status.version)}, up ${span(status.uptime_s)}, ` +
    `configuration ${config ? visible(config) : "defaults"}. The page keeps the last 5 minutes while it is open.`);
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

const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
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
