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

parts.heading = ({ title, about }) => [text("h2", title, "section"), ...(about ? [text("p", about, "hint")] : [])];

parts.tiles = ({ title, values, changes, about }) => {
  const shown = ([name, value]) => {
    const change = changes[name] ? [" ", text("small", changes[name].text, changes[name].tone)] : [];
    return element("dd", { className: /^(nan|inf)$/.test(value) ? "loud" : "" }, value, ...change);
  };
  const tiles = values.map((one) => element("div", {}, text("dt", one[0]), shown(one)));
  const lines = [element("dl", { className: "tiles rows" }, ...tiles), ...(about ? [text("p", about, "hint")] : [])];
  return [...(title ? [text("h2", title)] : []), ...lines];
};

parts.key = ({ entries }) => [element("ul", { className: "key" }, ...entries.map(([name, color]) => element("li", {}, swatch(color), name)))];

parts.folded = ({ title, text: content }) => {
  const made = element("details", {}, text("summary", title), text("pre", content));
  addEventListener("beforeprint", () => (made.open = true));
  return [element("section", { className: "card" }, made)];
};

// -------------------------------------------------------------------------------------------------------------- tables

// Cells are compared as numbers where they are numbers; a dash, which means no value, comes last.
const compared = (first, second, sign) => {
  const [a, b] = [first, second].map((cell) => parseFloat(cell.replace("−", "-")));
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

// A picture, over the photograph of its row where it is transparent. Its space is reserved before it is decoded.
const pictureOf = ({ source, base, size: [width, height], caption }, photo) => {
  const made = element("span", { className: `picture${Math.max(width, height) < 256 ? " pixels" : ""}` });
  made.style.aspectRatio = `${width} / ${height}`;
  const layers = [...(base && photo ? [[photo, base]] : []), ...(source ? [[source, ""]] : [])];
  layers.forEach(([src, className], at) => made.append(element("img", { src, className, alt: at ? "" : caption, width, height })));
  return made;
};

// The pictures of an image, each of which can be enlarged; some of them are shown in a gallery.
const picturesOf = (image, places = image.figures.keys(), className = "figures") => {
  const made = element("div", { className });
  for (const at of places) {
    const { caption } = image.figures[at];
    const picture = pictureOf(image.figures[at], image.photo);
    const shown = picture.childElementCount ? element("button", { type: "button", className: "enlarge" }, picture) : picture;
    shown.addEventListener("click", () => enlarge(made, at));
    made.append(element("figure", {}, shown, element("figcaption", {}, caption)));
  }
  imageOf.set(made, image);
  return made;
};

// Rows of pictures, each with a title: of an image of the gallery, or with its own.
parts.figures = ({ title, text: content, rows }) => {
  const { items } = data.parts.find(({ kind }) => kind === "gallery") ?? {};
  const shown = rows.flatMap(({ item, about, change, ...own }) => {
    const image = item === undefined ? own : items[item];
    const tone = change ? [" ", text("small", `(${change.text})`, change.tone)] : [];
    const head = element("h3", {}, image.name, " ", element("span", { className: "of-name" }, about, ...tone));
    return [head, picturesOf({ ...image, about })];
  });
  return [element("section", { className: "card" }, text("h2", title), ...(content ? [text("p", content, "hint")] : []), ...shown)];
};
