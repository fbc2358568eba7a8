"use strict";
// What all parts of a page are made of. Names and titles come from files: insert them as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector, within = document) => within.querySelector(selector);
const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];
const limited = (value, low, high) => Math.min(Math.max(value, low), high);

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

const text = (tag, textContent, className = "") => element(tag, { textContent, className });
// A name that may wrap within its words, where a narrow table has no room for it.
const breakable = (name) =>
  element("span", {}, ...name.split(/(?<=[a-z\d])(?=[A-Z])|(?<=[._/])/).flatMap((part, at) => (at ? [element("wbr"), part] : [part])));
const swatch = (color, shape = "swatch") => element("span", { className: shape, style: `background: ${color}` });

const svg = (tag, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const SUPERSCRIPTS = { "+": "", "-": "⁻", ..."⁰¹²³⁴⁵⁶⁷⁸⁹" };
const number = (value) => {
  const size = Math.abs(value);
  if (!Number.isFinite(value) || size === 0) return String(value);
  if (size >= 1e-3 && size < 1e5) return size < 1000 ? value.toPrecision(3) : value.toFixed(0);
  const [digits, exponent] = value.toExponential(2).split("e");
  return `${digits}×10${[...exponent].map((sign) => SUPERSCRIPTS[sign]).join("")}`;
};
const withUnit = (value, unit) => [value, unit].filter(Boolean).join("\u00a0");
const percent = (value, digits = 1) => (value === null ? "–" : `${(100 * value).toFixed(digits)}\u00a0%`);
const grouped = (count) => count.toLocaleString("en-US"); // its digits in groups

// A cell that is a change says whether it is for the better.
const cellOf = (cell) => (cell?.tone === undefined ? cell : text("span", cell.text, cell.tone));

// Return a table; a cell is text, a change or a list of nodes.
const tableOf = (rows, { id = "", head = [], foot = null, named = false } = {}) => {
  const made = element("table", { id });
  const line = (cells) =>
    element("tr", {}, ...cells.map((cell, column) => {
      const place = element(named && !column ? "th" : "td", { className: Array.isArray(cell) ? "wrap" : "" }, ...[cellOf(cell)].flat());
      if (place.tagName === "TH") place.scope = "row";
      if (/^(NaN|-?Infinity)$/.test(place.textContent)) place.className = "loud";
      return place;
    }));
  if (head.length) made.createTHead().append(element("tr", {}, ...head.map((one) => element("th", { scope: "col" }, one))));
  made.createTBody().append(...rows.map(line));
  if (foot) made.createTFoot().append(line(foot));
  return made;
};

// Show that the page could not be drawn.
const fail = (error) => {
  find("main").append(element("p", { id: "failure", className: "loud", textContent: `This page could not be drawn: ${error.message}` }));
  throw error;
};
