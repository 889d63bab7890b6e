// Texts and nodes. Must not: know what the page shows. The scripts are one in the page, in the order of webpage.py.
"use strict";

const MOST_CHARS = 300;
const LEVELS = ["normal", "elevated", "high", "critical", "emergency"];
const WHOLE_CHARS = 16; // the longest action; a word of so many is not broken in a table

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
const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
const clock = () => new Date().toLocaleTimeString([], { hour12: false });
const age = (seconds) => (typeof seconds === "number" ? `${span(seconds)} ago` : "not yet");
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
  rows.forEach((cells, at) => cells.forEach((text, column) => {
    const cell = body.rows[at].cells[column];
    put(cell.firstChild, text);
    cell.className = text.length <= WHOLE_CHARS ? "whole" : "";
  }));
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
