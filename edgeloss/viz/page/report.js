// The report: unpack the numbers, paint the layers, and show the values of the pixel under the pointer.

const views = document.getElementById("views");
const pane = [...document.querySelectorAll(".pane")];
const menu = pane.map((part) => part.querySelector("select"));
const panel = document.getElementById("pixel");
const hint = panel.innerHTML;

// Labels are stored as they are, floats as the high and low bytes of exponent and significand.
const decode = async ({ kind, shape, data: text }) => {
  const bytes = await unpack(text);
  const [rows, columns] = shape;
  if (kind === "uint8") return { rows, columns, values: bytes, none: 255 };
  if (kind === "uint16") return { rows, columns, values: new Uint16Array(bytes.buffer), none: 65535 };
  const count = bytes.length / 2;
  const bits = new Uint32Array(count);
  for (let i = 0; i < count; i++) bits[i] = ((bytes[i] << 8) | bytes[count + i]) << 15;
  return { rows, columns, values: new Float32Array(bits.buffer) };
};

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const colors = data.colors.map(rgb);
const scale = data.scale.map(rgb);
const special = Object.fromEntries(Object.entries(data.special).map(([name, hex]) => [name, rgb(hex)]));

let image; // the current one: arrays, layers, pictures painted so far
let pinned = null; // the pixel that was clicked, [row, column]
let shown = null; // the pixel whose values are shown

// ------------------------------------------------------------------------------------------------------------- layers

const labelColor = (label, none, absent) => (label === none ? absent : colors[label]);

const mapColor = (layer, value, at) => {
  const { truth, edge_mask: mask } = image.arrays;
  const same = layer.rows === truth.rows && layer.columns === truth.columns;
  if (same && truth.values[at] === truth.none) return special.void;
  if (layer.nothing === "far" && value === Infinity) return special.nothing;
  if (!Number.isFinite(value)) return special.loud;
  if (layer.nothing === "zero" && value === 0) return special.nothing;
  if (layer.nothing === "off the edges" && !mask.values[at]) return special.nothing;
  const part = ((layer.log ? Math.log10(value) : value) - layer.low) / (layer.high - layer.low);
  return scale[Math.min(Math.max(Math.floor(part * scale.length), 0), scale.length - 1)];
};

const paint = (key) => {
  const { rows, columns, values, none } = image.arrays[key];
  const layer = { ...image.layers.find((one) => one.key === key), rows, columns };
  const absent = key === "truth" ? special.void : special.loud;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  for (let i = 0, at = 0; at < values.length; at++) {
    const color = none === undefined ? mapColor(layer, values[at], at) : labelColor(values[at], none, absent);
    pixels.data[i++] = color[0];
    pixels.data[i++] = color[1];
    pixels.data[i++] = color[2];
    pixels.data[i++] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
};

// The non-finite pixels, to mark them: one in a million is hard to see.
const failures = (key) => {
  const { columns, values, none } = image.arrays[key];
  const layer = image.layers.find((one) => one.key === key);
  const positions = [];
  for (let at = 0; at < values.length && positions.length < 2000; at++) {
    const failed = none === undefined ? !Number.isFinite(values[at]) : key === "prediction" && values[at] === none;
    if (failed && !(layer && layer.nothing === "far")) positions.push([Math.floor(at / columns), at % columns]);
  }
  return positions;
};

const show = async (side, key) => {
  const { rows, columns } = image.arrays.truth;
  if (!image.pictures[key]) image.pictures[key] = paint(key);
  const { rows: ownRows, columns: ownColumns } = key === "picture" ? { rows, columns } : image.arrays[key];
  const [dx, dy] = [columns / ownColumns, rows / ownRows]; // a gradient may have lower resolution
  const marks = key === "picture" ? [] : failures(key);
  const place = { dx: [dx], dy: [dy], x0: [(dx - 1) / 2], y0: [(dy - 1) / 2] };
  await Plotly.restyle(views, { source: [image.pictures[key]], ...place }, [2 * side]);
  const [x, y] = [marks.map((mark) => mark[1] * dx + (dx - 1) / 2), marks.map((mark) => mark[0] * dy + (dy - 1) / 2)];
  await Plotly.restyle(views, { x: [x], y: [y] }, [2 * side + 1]);

  const layer = image.layers.find((one) => one.key === key);
  const bar = pane[side].querySelector(".bar");
  bar.classList.toggle("on", Boolean(layer));
  pane[side].querySelector(".largest").hidden = !layer;
  pane[side].querySelector(".stats").textContent = layer ? layer.stats : "";
  if (layer) {
    const [low, high] = bar.querySelectorAll("span");
    low.textContent = (layer.extend === "min" || layer.extend === "both" ? "≤ " : "") + number(layer.low);
    high.textContent = (layer.extend === "max" || layer.extend === "both" ? "≥ " : "") + number(layer.high);
    bar.querySelector("i").style.background = `linear-gradient(to right, ${data.scale.join(",")})`;
  }
  views.dataset[side ? "right" : "left"] = key; // for scripts that read the page
};

// -------------------------------------------------------------------------------------------------- the pixel's values

const number = (value) => {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  return size < 1e-3 || size >= 1e5 ? value.toExponential(2) : size < 1000 ? value.toPrecision(3) : value.toFixed(0);
};

const named = (parent, label, none, absent) => {
  const swatch = element("span", "", parent, "swatch");
  swatch.style.background = label === none ? data.special[absent] : data.colors[label];
  parent.append(label === none ? (absent === "void" ? "ignored" : "not finite") : data.names[label]);
};

const row = (table, ...cells) => {
  const line = element("tr", "", table);
  for (const cell of cells) {
    const place = element("td", typeof cell === "string" ? cell : "", line);
    if (typeof cell === "function") cell(place);
    if (/^(NaN|-?Infinity)$/.test(place.textContent)) place.className = "loud";
  }
  return line;
};

const table = (parent, id, ...head) => {
  const made = element("table", "", parent);
  made.id = id;
  if (head.length) for (const name of head) element("th", name, made.tHead?.rows[0] ?? made.createTHead().insertRow());
  return made.createTBody();
};

// The neighbors of an edge pixel; edge pixels are stored in the order of the image.
const neighbors = (at) => {
  const arrays = image.arrays;
  const place = image.rank[at];
  const { columns } = arrays.truth;
  const list = [];
  for (let k = 0; place >= 0 && k < data.maxNeighbors; k++) {
    const [down, right] = ["down", "right"].map((way) => arrays[`${way}_${k}`].values[place] - data.reach);
    if (!down && !right) continue; // it has fewer neighbors
    const [given, nll, share] = ["given", "nll", "share"].map((name) => arrays[`${name}_${k}`].values[place]);
    const label = arrays.truth.values[at + down * columns + right];
    list.push({ down, right, label, same: label === arrays.truth.values[at], given, nll, share });
  }
  return list;
};

const showPixel = (y, x) => {
  shown = [y, x];
  const arrays = image.arrays;
  const { truth, prediction, edge_mask: mask } = arrays;
  const at = y * truth.columns + x;
  const valid = truth.values[at] !== truth.none;
  panel.replaceChildren();
  element("h2", `Row ${y}, column ${x}${pinned ? " (pinned)" : ""}`, panel);

  const labels = table(panel, "labels");
  row(labels, "truth", (cell) => named(cell, truth.values[at], truth.none, "void"));
  row(labels, "prediction", (cell) => named(cell, prediction.values[at], prediction.none, "loud"));

  element("h3", "Most probable", panel);
  const likely = table(panel, "likely");
  for (let k = 0; arrays[`probability_${k}`]; k++) {
    const { values, none } = k ? arrays[`class_${k}`] : prediction;
    if (values[at] === none) continue;
    row(likely, (cell) => named(cell, values[at], none, "loud"), number(arrays[`probability_${k}`].values[at]));
  }

  element("h3", valid ? "Terms" : "Terms: none, the pixel is ignored", panel);
  const terms = table(panel, "terms");
  for (const { key, name, log } of image.layers) {
    const { rows, columns, values } = arrays[key];
    const own = Math.floor((y * rows) / truth.rows) * columns + Math.floor((x * columns) / truth.columns);
    const off = ["same_side", "other_side", "edge"].includes(key) && !mask.values[at];
    row(terms, log ? "|gradient|" : name, off ? "no edge" : number(values[own])).dataset.key = key;
  }

  const around = neighbors(at);
  if (around.length) {
    element("h3", `Neighbors and their probability of “${data.names[truth.values[at]]}”`, panel);
    const list = table(panel, "neighbors", "down, right", "side", "class", "prob.", "loss", "share");
    for (const { down, right, label, same, given, nll, share } of around) {
      const line = row(
        list,
        `${down}, ${right}`,
        same ? "same" : "other",
        (cell) => named(cell, label, truth.none, "void"),
        number(given),
        number(nll),
        `${(100 * share).toFixed(0)} %`,
      );
      line.title = "prob.: of the class of this pixel; loss: of this neighbor alone; share: of the gradient of its side's term";
    }
  }
  outline(y, x, around);
};

const outline = (y, x, around) => {
  const box = (down, right, color, width) =>
    ["", "2"].map((axis) => ({
      type: "rect",
      xref: `x${axis}`,
      yref: `y${axis}`,
      x0: x + right - 0.5,
      x1: x + right + 0.5,
      y0: y + down - 0.5,
      y1: y + down + 0.5,
      line: { color, width },
    }));
  const boxes = around.flatMap(({ down, right, same }) => box(down, right, same ? "#00c8ff" : "#ff7f0e", 1));
  Plotly.relayout(views, { shapes: [...boxes, ...box(0, 0, "#ff0000", 2)] });
};

const forget = () => {
  pinned = shown = null;
  panel.innerHTML = hint;
  Plotly.relayout(views, { shapes: [] });
};

const zoomTo = (y, x) => {
  const { columns } = image.arrays.truth;
  const reach = Math.min(24, columns / 2);
  const across = views.clientHeight / (views.clientWidth * 0.495);
  const ranges = {
    "xaxis.range": [x - reach, x + reach],
    "yaxis.range": [y + reach * across, y - reach * across],
  };
  return Plotly.relayout(views, ranges);
};

// --------------------------------------------------------------------------------------------------------------- start

const open = async (index) => {
  const packed = data.images[index];
  const names = Object.keys(packed.arrays);
  const decoded = await Promise.all(names.map((name) => decode(packed.arrays[name])));
  const arrays = Object.fromEntries(names.map((name, k) => [name, decoded[k]]));
  const rank = new Int32Array(arrays.edge_mask.values.length).fill(-1);
  for (let at = 0, count = 0; at < rank.length; at++) if (arrays.edge_mask.values[at]) rank[at] = count++;
  const layerKeys = views.dataset;
  image = { arrays, rank, layers: packed.layers, pictures: packed.picture ? { picture: packed.picture } : {} };
  forget();

  const choices = [
    ...(packed.picture ? [["picture", "image"]] : []),
    ["truth", "ground truth"],
    ["prediction", "prediction"],
    ...packed.layers.map(({ key, name }) => [key, name]),
  ];
  const before = [layerKeys.left ?? choices[0][0], layerKeys.right ?? "edge"];
  for (const side of [0, 1]) {
    menu[side].replaceChildren(...choices.map(([key, name]) => new Option(name, key, false, key === before[side])));
    await show(side, menu[side].value);
  }

  const key = document.getElementById("key");
  key.replaceChildren();
  const present = new Set([...arrays.truth.values, ...arrays.prediction.values]);
  [...present]
    .filter((label) => label !== arrays.truth.none)
    .sort((a, b) => a - b)
    .forEach((label) => named(element("span", "", key), label, -1, ""));
  for (const [name, meaning] of [["void", "ignored"], ["nothing", "no edge, zero gradient, far"], ["loud", "not finite"]]) {
    const entry = element("span", "", key);
    element("span", "", entry, "swatch").style.background = data.special[name];
    entry.append(meaning);
  }
};

const fit = () => {
  const { rows, columns } = image.arrays.truth;
  const height = (views.clientWidth * 0.495 * rows) / columns;
  return Plotly.relayout(views, { height: Math.min(Math.max(height, 240), 0.78 * window.innerHeight) });
};

const limited = (value, count) => Math.min(Math.max(value, 0), count - 1);

const move = (event) => {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (event.key === "Escape") forget();
  if (!pinned || !steps[event.key] || event.target.tagName === "SELECT") return;
  event.preventDefault();
  const { rows, columns } = image.arrays.truth;
  pinned = [limited(pinned[0] + steps[event.key][0], rows), limited(pinned[1] + steps[event.key][1], columns)];
  showPixel(...pinned);
};

const largest = (side) => {
  const { rows, columns, values } = image.arrays[menu[side].value];
  const { truth } = image.arrays;
  const worst = failures(menu[side].value)[0];
  let best = worst ? worst[0] * columns + worst[1] : 0; // non-finite values first
  if (!worst)
    for (let at = 0; at < values.length; at++)
      if (Number.isFinite(values[at]) && !(values[best] >= values[at])) best = at;
  const y = Math.floor(((Math.floor(best / columns) + 0.5) * truth.rows) / rows);
  const x = Math.floor((((best % columns) + 0.5) * truth.columns) / columns);
  pinned = [y, x];
  zoomTo(y, x).then(() => showPixel(y, x));
};

const start = async () => {
  document.getElementById("wait").remove();
  await Plotly.newPlot(views, data.view.data, data.view.layout, { ...plotting, scrollZoom: true });
  await open(0);
  await fit();
  // A double click returns to these ranges, the whole image.
  const { rows, columns } = image.arrays.truth;
  await Plotly.relayout(views, { "xaxis.range": [-0.5, columns - 0.5], "yaxis.range": [rows - 0.5, -0.5] });

  const pick = document.getElementById("image");
  pick.replaceChildren(...data.images.map((_, index) => new Option(String(index), String(index))));
  document.getElementById("choice").hidden = data.images.length < 2;
  pick.addEventListener("change", () => open(Number(pick.value)));
  menu.forEach((one, side) => one.addEventListener("change", () => show(side, one.value)));
  pane.forEach((one, side) => one.querySelector(".largest").addEventListener("click", () => largest(side)));
  const pixel = (y, x) => {
    const { rows, columns } = image.arrays.truth;
    return [limited(Math.round(y), rows), limited(Math.round(x), columns)];
  };
  views.on("plotly_hover", ({ xvals, yvals }) => {
    // The position of the pointer, not Plotly's point, which in a layer of lower resolution is the middle of a cell.
    const pointed = pixel(yvals[0], xvals[0]);
    if (!pinned && !(shown && shown[0] === pointed[0] && shown[1] === pointed[1])) showPixel(...pointed);
  });
  // Not plotly_click, which a click soon after a movement does not trigger. A drag also ends with a click.
  let pressed = null;
  views.addEventListener("pointerdown", (event) => (pressed = event), true);
  views.addEventListener("click", ({ target, clientX, clientY }) => {
    if (!target.matches(".nsewdrag")) return;
    if (Math.hypot(clientX - pressed.clientX, clientY - pressed.clientY) > 4) return;
    const { left, top } = target.getBoundingClientRect();
    const { xaxis, yaxis } = views._fullLayout; // the axes of the other view have the same ranges
    pinned = pixel(yaxis.p2d(clientY - top), xaxis.p2d(clientX - left));
    showPixel(...pinned);
  });
  document.addEventListener("keydown", move);
  window.addEventListener("resize", fit);
};

begin(start);
