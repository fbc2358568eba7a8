// The parts of a page by their kind: each function returns the elements of one.

const parts = {};

parts.note = ({ text: content }) => [text("p", content, "hint")];

// Lay out what has the class "rows" in the fewest rows that fit, all about as full: if that can be, no element is alone.
const arrangeRows = () => {
  for (const grid of findAll(".rows")) {
    const count = grid.children.length;
    const [gap, least] = ["column-gap", "--least"].map((name) => parseFloat(getComputedStyle(grid).getPropertyValue(name)));
    const most = limited(Math.floor((grid.clientWidth + gap) / (least + gap)), 1, count);
    for (let rows = Math.ceil(count / most), columns = 2; columns > 1; rows++) {
      columns = Math.ceil(count / rows);
      if (columns > 2 && count % columns === 1) columns--;
      grid.style.gridTemplateColumns = `repeat(${columns}, minmax(auto, 1fr))`;
      if (grid.scrollWidth <= grid.clientWidth) break;
    }
  }
};
addEventListener("resize", arrangeRows);

parts.tiles = ({ title, values, changes }) => {
  const shown = ([name, value]) => {
    const change = changes[name] ? [" ", text("small", changes[name])] : [];
    return element("dd", { className: /^(nan|inf)$/.test(value) ? "loud" : "" }, value, ...change);
  };
  const tiles = values.map((one) => element("div", {}, text("dt", one[0]), shown(one)));
  return [...(title ? [text("h2", title)] : []), element("dl", { className: "tiles rows" }, ...tiles)];
};

parts.key = ({ entries }) => [element("ul", { className: "key" }, ...entries.map(([name, color]) => element("li", {}, swatch(color), name)))];

parts.folded = ({ title, text: content }) => [
  element("section", { className: "card" }, element("details", {}, text("summary", title), text("pre", content))),
];

// -------------------------------------------------------------------------------------------------------------- tables

// Cells are compared as numbers where they are numbers; a dash, which means no value, comes last.
const compared = (first, second, sign) => {
  const [a, b] = [first, second].map((cell) => parseFloat(cell));
  if (Number.isNaN(a) && Number.isNaN(b)) return sign * first.localeCompare(second);
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return sign * (a - b);
};

// A table that its columns sort, in a frame that scrolls; the first cell of a row may be a name and its color.
parts.table = ({ head, rows, foot, label }) => {
  const named = rows.map(([first, ...others]) => [Array.isArray(first) ? [swatch(first[1]), first[0]] : first, ...others]);
  const buttons = head.map((name) => element("button", { type: "button", textContent: name }));
  const table = Object.assign(tableOf(named, { head: buttons, foot, named: true }), { className: "sortable" });
  const heads = findAll("thead th", table);
  buttons.forEach((button, column) =>
    button.addEventListener("click", () => {
      const falls = heads[column].ariaSort ? heads[column].ariaSort === "ascending" : column > 0;
      for (const other of heads) other.removeAttribute("aria-sort");
      heads[column].ariaSort = falls ? "descending" : "ascending";
      const cell = (row) => row.cells[column].textContent;
      const sorted = [...table.tBodies[0].rows].sort((a, b) => compared(cell(a), cell(b), falls ? -1 : 1));
      table.tBodies[0].append(...sorted);
    }),
  );
  return [element("div", { className: "scroll", role: "region", ariaLabel: label, tabIndex: 0 }, table)];
};

parts.tables = ({ title, tables }) => {
  const shown = tables.map((one) => element("div", {}, text("h3", one.title), ...parts.table(one)));
  return [element("section", { className: "card" }, text("h2", title), element("div", { className: "tables" }, ...shown))];
};

// ------------------------------------------------------------------------------------------------------------ pictures

const figureOf = ({ source, caption, name = "", id = "", alt = "", width, height }) => {
  const made = element("figure", { id }, element("img", { src: source, alt, ...(width ? { width, height } : {}) }));
  if (id) made.tabIndex = -1; // a place to jump to
  const lines = [...(name ? [text("b", name), element("br")] : []), caption];
  if (caption) made[name ? "prepend" : "append"](element("figcaption", {}, ...lines));
  return made;
};

// Large pictures, in rows with a title each.
parts.figures = ({ title, text: content, rows, wide }) => {
  const shown = rows.flatMap((row) => [
    ...(row.title ? [text("h3", row.title)] : []),
    element("div", { className: wide ? "figures wide" : "figures" }, ...row.figures.map(figureOf)),
  ]);
  return [element("section", { className: "card" }, text("h2", title), ...(content ? [text("p", content)] : []), ...shown)];
};
