// The cards: what /status says of the machine and of a target, its plot over the last minutes, its figures.
// Must not: ask, or keep more than the last minutes. Words as in edgeguardctl (cli/remarks.py).
"use strict";

const KEPT_MS = 5 * 60 * 1000;
const KEPT_POINTS = 400; // of each plot; one a second makes 300
const MARKS = ["elevated", "high", "critical"];
const RELIEF = {
  resting: "memory.high as it was set",
  asked: "memory.high is being lifted",
  lifted: "memory.high is lifted for the trim",
  returning: "memory.high is being put back",
  unavailable: "memory.high cannot be lifted",
};

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
    name: "The whole machine", level: machine.level, reason: reasonOf(machine), facts, marks: {},
    state: machine.degraded ? [`cannot be read: ${visible(machine.degraded)}`] : [],
    used: sample ? sample.total_bytes - sample.available_bytes : null, usedWord: "in use",
    limit: sample ? sample.total_bytes : null, limitWord: "all",
  };
}

// The figures in a reason are of the time when the level came to be, and not of now.
function reasonOf(row) {
  if (row.level === "normal" || typeof row.level_age_s !== "number" || !row.reason) return row.reason;
  const now = row.calls && row.calls !== row.reason ? `; now: ${row.calls}` : "";
  return `since ${age(row.level_age_s)}: ${row.reason}${now}`;
}

function targetGauge(target, servers) {
  const marks = {};
  for (const mark of MARKS) if (target.marks) marks[mark] = target.marks[mark + "_bytes"];
  return {
    name: target.name, level: target.level, reason: reasonOf(target), state: targetState(target, servers), marks,
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
  const shares = [];
  if (target.limit_bytes && typeof target.needed_bytes === "number") {
    shares.push(`${percent(target.needed_bytes / target.limit_bytes)} of the limit`);
  }
  if (typeof target.used_ratio === "number") shares.push(`${percent(target.used_ratio)} of what can grow`);
  const facts = [
    ["Needed", size(target.needed_bytes) + (shares.length ? ` (${shares.join(", ")})` : "")],
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
  if (target.watchers) facts.push(["Told of pressure", count(target.watchers, "program")]);
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
