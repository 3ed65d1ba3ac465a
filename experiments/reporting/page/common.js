"use strict";
// What is shown is in the element "data"; nothing is asked for from anywhere. Text is set as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// ---- numbers ----

const digits = (value, count = 3) => {
  if (value === 0) return "0";
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 9));
};
function time(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size >= 1) return `${digits(seconds)} s`;
  if (size >= 1e-3) return `${digits(seconds * 1e3)} ms`;
  return size >= 1e-6 ? `${digits(seconds * 1e6)} us` : `${digits(seconds * 1e9)} ns`;
}
function bytes(count) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let value = count, unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return unit ? `${value.toFixed(2)} ${units[unit]}` : `${value} bytes`;
}
const microBatches = (count, size) => `${count} micro-batch${count === 1 ? "" : "es"} of ${size}`;
const devices = (count, kind) => `${count} ${kind}${kind === "core" && count > 1 ? "s" : ""}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;
function count(value) {
  for (const [size, word] of [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]]) {
    if (value >= size) return `${digits(value / size)} ${word}`;
  }
  return Math.round(value).toLocaleString("en");
}
function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found[found.length - 1];
    if (last && last[1] + 1 === number) last[1] = number;
    else found.push([number, number]);
  }
  const shown = found.slice(0, 6).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
  return found.length > 6 ? `${shown}, …` : shown;
}
const plural = (word, numbers) => `${word}${numbers.length === 1 ? "" : "s"} ${ranges(numbers)}`;
const color = (name) => `var(--${name})`;

// ---- what is under the pointer ----

const tip = byId("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, window.innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + height > window.innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}
const hideTip = () => { tip.hidden = true; };
function withTip(element, text) {
  element.addEventListener("pointermove", (event) => showTip(event, text));
  element.addEventListener("pointerleave", hideTip);
  return element;
}

// ---- tables ----

function table(head, rows, numbers = []) {
  const cell = (tag, content, i) => make(tag, numbers.includes(i) ? { class: "number" } : {}, content);
  const body = rows.map((row) => (row instanceof Node ? row : make("tr", {}, ...row.map((c, i) => cell("td", c, i)))));
  const top = head ? [make("thead", {}, make("tr", {}, ...head.map((c, i) => cell("th", c, i))))] : [];
  return make("div", { class: "scroll" }, make("table", {}, ...top, make("tbody", {}, ...body)));
}
