"use strict";
// Shared by all pages. Names and titles come from files: insert them as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector, within = document) => within.querySelector(selector);
const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];
const limited = (value, low, high) => Math.min(Math.max(value, low), high);

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

const svg = (tag, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const number = (value) => {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  return size < 1e-3 || size >= 1e5 ? value.toExponential(2) : size < 1000 ? value.toPrecision(3) : value.toFixed(0);
};

// A count, with its digits in groups.
const grouped = (count) => count.toLocaleString("en-US");

// Cells are compared as numbers where they are numbers; a dash, which means no value, comes last.
const compared = (first, second, sign) => {
  const [a, b] = [first, second].map((text) => parseFloat(text));
  if (Number.isNaN(a) && Number.isNaN(b)) return sign * first.localeCompare(second);
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return sign * (a - b);
};

const makeSortable = (table) => {
  const heads = findAll("thead th", table);
  heads.forEach((head, column) =>
    find("button", head).addEventListener("click", () => {
      const falls = head.ariaSort ? head.ariaSort === "ascending" : column > 0;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.ariaSort = falls ? "descending" : "ascending";
      const text = (row) => row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows].sort((a, b) => compared(text(a), text(b), falls ? -1 : 1));
      table.tBodies[0].append(...rows);
    }),
  );
};

// Run the script of a page, and show errors.
const begin = async (start = () => {}) => {
  try {
    findAll(".sortable").forEach(makeSortable);
    await start();
    document.body.dataset.ready = "true";
    performance.mark("ready"); // for benchmarks
  } catch (error) {
    const text = `This page could not be drawn: ${error.message}`;
    find("main").append(element("p", { id: "failure", className: "loud", textContent: text }));
    throw error;
  }
};
