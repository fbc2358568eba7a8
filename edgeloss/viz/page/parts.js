// The parts of a page by their kind: each function returns the elements of one.

const parts = {};

parts.note = ({ text: content }) => [text("p", content, "hint")];

// Lay out what has the class "rows": as many columns as fit, or up to a third fewer where that leaves fewer free places.
// What fills its rows has no free place: its first element takes them.
const arrangeRows = () => {
  for (const grid of findAll(".rows")) {
    const shown = [...grid.children].filter((one) => one.getClientRects().length);
    const [gap, least] = ["column-gap", "--least"].map((name) => parseFloat(getComputedStyle(grid).getPropertyValue(name)));
    const most = limited(Math.floor((grid.clientWidth + gap) / (least + gap)), 1, Math.max(shown.length, 1));
    const free = (columns) => (columns - (shown.length % columns)) % columns;
    const choices = Array.from({ length: most - Math.ceil((2 * most) / 3) + 1 }, (_, fewer) => most - fewer);
    const columns = choices.reduce((best, one) => (free(one) < free(best) ? one : best));
    grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    if (grid.classList.contains("filled"))
      shown.forEach((one, at) => (one.style.gridColumn = at ? "" : `span ${1 + free(columns)}`));
  }
};
addEventListener("resize", arrangeRows);

parts.heading = ({ title, about }) => [text("h2", title, "section"), ...(about ? [text("p", about, "hint")] : [])];

// Figures: the name of each, its value, and what it is.
const figuresOf = (values, changes, className) => {
  const shown = ([name, value, about]) => {
    const { text: of, tone, but } = changes[name] ?? {};
    const change = [...(of ? [" ", text("small", of, tone)] : []), ...(but ? [" ", text("small", but, "worse")] : [])];
    const [amount, unit] = value.split("\u00a0");
    const units = unit ? [text("span", `\u00a0${unit}`, "unit")] : [];
    const number = element("dd", { className: /^-?(nan|inf)$/.test(amount) ? "loud" : "" }, amount, ...units, ...change);
    return element("div", {}, text("dt", name), number, ...(about ? [text("dd", about, "what")] : []));
  };
  return element("dl", { className }, ...values.map(shown));
};

parts.tiles = ({ title, values, changes, about, more }) => {
  const [shown, hints] = [figuresOf(values, changes, "tiles rows filled"), about ? [text("p", about, "hint")] : []];
  const below = more.length ? [foldedOf("The loss and its terms", ...hints, figuresOf(more, changes, "facts"))] : hints;
  return [...(title ? [text("h2", title)] : []), shown, ...below];
};

const keyOf = (entries) => element("ul", { className: "key" }, ...entries.map(([name, color, shape]) => element("li", {}, swatch(color, shape), name)));
parts.key = ({ entries }) => [keyOf(entries)];

const foldedOf = (title, ...content) => element("details", {}, text("summary", title), ...content);
// On paper nothing is folded.
addEventListener("beforeprint", () =>
  findAll("details:not([open])").forEach((one) => {
    one.open = true;
    addEventListener("afterprint", () => (one.open = false), { once: true });
  }),
);

// What names mean.
const notesOf = (notes) =>
  element("dl", { className: "notes" }, ...notes.map(([name, about]) => element("div", {}, text("dt", name), text("dd", about))));
parts.folded = ({ title, text: content }) => [element("section", { className: "card" }, foldedOf(title, text("pre", content)))];

// -------------------------------------------------------------------------------------------------------------- tables

// Cells are compared as numbers where they are numbers; a dash, which means no value, comes last.
const compared = (first, second, sign) => {
  const [a, b] = [first, second].map((cell) => parseFloat(cell.replace("−", "-").replaceAll(",", "")));
  if (Number.isNaN(a) && Number.isNaN(b)) return sign * first.localeCompare(second);
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return sign * (a - b);
};

// A table that its columns sort if there are several rows to sort, in a frame that scrolls; the first cell of a row may be a name and its color.
parts.table = ({ head, rows, foot, label, notes, bars, sorts = true }) => {
  const nameOfRow = (first) => (Array.isArray(first) ? [swatch(first[1]), first[0]] : breakable(first));
  const named = rows.map(([first, ...others]) => [nameOfRow(first), ...others]);
  const buttons = head.map((name) => (sorts ? element("button", { type: "button" }, breakable(name)) : breakable(name)));
  const table = Object.assign(tableOf(named, { head: buttons, foot, named: true }), { className: "sortable" });
  const heads = findAll("thead th", table);
  if (bars) findAll("td", table).filter((cell) => cell.textContent.endsWith("%")).forEach((cell) => {
    cell.className = "bar-cell";
    cell.style.setProperty("--part", `${parseFloat(cell.textContent)}%`);
  });
  if (sorts) buttons.forEach((button, column) =>
    button.addEventListener("click", () => {
      const falls = heads[column].ariaSort ? heads[column].ariaSort === "ascending" : column > 0;
      for (const other of heads) other.removeAttribute("aria-sort");
      heads[column].ariaSort = falls ? "descending" : "ascending";
      const cell = (row) => row.cells[column].textContent;
      const sorted = [...table.tBodies[0].rows].sort((a, b) => compared(cell(a), cell(b), falls ? -1 : 1));
      table.tBodies[0].append(...sorted);
    }),
  );
  const below = notes.length ? [notesOf(notes)] : [];
  return [element("div", { className: "scroll", role: "region", ariaLabel: label, tabIndex: 0 }, table), ...below];
};

parts.tables = ({ title, about, tables, folded }) => {
  const shown = tables.map((one) => element("div", {}, ...(one.title ? [text("h3", one.title)] : []), ...parts.table({ ...one, sorts: one.rows.length > 5 })));
  const content = [...(about ? [text("p", about, "hint")] : []), element("div", { className: "tables" }, ...shown)];
  return [element("section", { className: "card" }, ...(folded ? [foldedOf(title, ...content)] : [text("h2", title), ...content]))];
};

// ------------------------------------------------------------------------------------------------------------ pictures

// A picture, over the photograph of its row where it is transparent, with frames around parts of it. Its space is reserved
// before it is decoded.
const pictureOf = ({ source, base, size: [width, height], caption, frames = [] }, photo) => {
  const made = element("span", { className: `picture${Math.max(width, height) < 256 ? " pixels" : ""}` });
  made.style.aspectRatio = `${width} / ${height}`;
  const layers = [...(base && photo ? [[photo, base]] : []), ...(source ? [[source, ""]] : [])];
  layers.forEach(([src, className], at) => made.append(element("img", { src, className, alt: at ? "" : caption, width, height })));
  for (const { name, place } of made.childElementCount ? frames : []) {
    const frame = element("span", { className: "frame" }, text("b", name));
    ["left", "top", "width", "height"].forEach((side, at) => (frame.style[side] = `${place[at]}%`));
    made.append(frame);
  }
  return made;
};

// The color bar of a picture.
const barOf = ({ low, high, colors }) => {
  const ramp = element("i");
  ramp.style.backgroundImage = `linear-gradient(to right, ${(colors ?? data.scale).join(",")})`;
  return element("span", { className: "color-bar" }, text("span", low), ramp, text("span", high));
};

const { items = [], keys = {} } = data.parts.find(({ kind }) => kind === "gallery") ?? {};

// A picture below its name, and what is said of it.
const figureOf = ({ caption, about, bar, is_extra: isExtra }, shown) => {
  const below = [...(about ? [text("p", about)] : []), ...(bar ? [barOf(bar)] : [])];
  return element("figure", { className: isExtra ? "extra" : "" }, text("figcaption", caption), element("div", {}, shown, ...below));
};

// The pictures of an image, each of which can be enlarged; a gallery shows some of them.
const picturesOf = (image, places = [...image.figures.keys()], className = "figures") => {
  const made = element("div", { className });
  for (const at of places) {
    const picture = pictureOf(image.figures[at], image.photo);
    const shown = picture.childElementCount ? element("button", { type: "button", className: "enlarge" }, picture) : picture;
    shown.addEventListener("click", () => enlarge(made, at));
    made.append(figureOf(image.figures[at], shown));
  }
  imageOf.set(made, image);
  return made;
};

// Narrow screens show no extra pictures, and everything when asked.
const unfold = (section) => {
  const made = element("button", { type: "button", className: "unfold" });
  const show = (all) => {
    made.textContent = all ? "Show fewer pictures" : "Show all pictures";
    made.ariaExpanded = String(all);
  };
  made.addEventListener("click", () => show(section.classList.toggle("unfolded")));
  show(false);
  section.append(made);
};

// What is said of an image: a text, or the first of its figures in a gallery, and how that changed.
const saidOf = ({ about, lines }) => {
  if (!lines) return [about];
  const [title, value, change] = lines[0];
  return [`${title} ${value}`, ...(change ? [" ", text("small", `(${change.text})`, change.tone)] : [])];
};

// Rows of pictures, the first of which is open, each below a line: of an image of the gallery, or with its own.
parts.figures = ({ title, text: content, key, columns, rows }) => {
  const shown = rows.map((row, at) => {
    const image = items[row.item] ?? row;
    const head = element("h3", {}, image.name, " ", element("span", { className: "of-name" }, ...saidOf(image)));
    // Not in the line: a link within what opens and closes would be no link to a screen reader.
    const page = image.link ? [element("p", {}, element("a", { href: image.link }, `Open ${image.name}, pixel by pixel`))] : [];
    return element("details", { className: "of-image", open: !at }, element("summary", {}, head), ...page, picturesOf(image));
  });
  const above = [...(content ? [text("p", content, "hint")] : []), ...(key ? [keyOf(key)] : [])];
  const section = element("section", { className: "card" }, text("h2", title), ...above, ...shown);
  section.style.setProperty("--columns", columns);
  unfold(section);
  return [section];
};

const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Number(Math.abs(value).toPrecision(6))}`;

// Bars of values from the highest to the lowest, up or down from 0; some of them stand out. The ends are texts below.
parts.bars = ({ title, about, unit, values, strong, ends }) => {
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const chart = svg("svg", { viewBox: `0 0 ${values.length} ${high - low}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
  const barsOf = (sign, isStrong) =>
    values.map((value, at) => (sign * value > 0 && strong.includes(at) === isStrong ? `M${at + 0.1} ${high}h.8v${-value}h-.8z` : "")).join("");
  for (const [tone, sign] of [["better", 1], ["worse", -1]])
    for (const isStrong of [false, true]) chart.append(svg("path", { class: isStrong ? `${tone} strong` : tone, d: barsOf(sign, isStrong) }));
  const axis = ticksOf(low, high).map((tick) => {
    const up = high - tick;
    chart.prepend(svg("path", { class: tick ? "grid" : "zero", d: `M0 ${up}H${values.length}` }));
    return element("span", { className: "tick", style: `top: ${(100 * up) / (high - low)}%` }, signed(tick));
  });
  const plot = element("div", { className: "plot" }, chart, ...axis);
  const below = ends.map(([name, { text: value, tone }]) => element("li", {}, `${name} `, text("strong", value, tone)));
  const content = [text("h2", title), text("p", about, "hint"), text("p", unit, "unit"), plot, element("ul", { className: "ends" }, ...below)];
  return [element("section", { className: "card bars" }, ...content)];
};
