// The legend, which hides classes, and the histograms, which choose ranges of values.

const BINS = 60;

// Apply the filter, and say what it leaves.
const applyFilter = () => {
  image.keep = filtered();
  for (const name of [...image.levels.keys()]) if (!name.startsWith("contour")) image.levels.delete(name);
  const kept = image.keep?.reduce((sum, one) => sum + one, 0);
  const parts = [...filter.ranges].map(([key, { text }]) => `${layerOf(key).name} ${text}`);
  if (filter.pair) parts.push(filter.pair.map((label) => data.names[label] ?? "not finite").join(" → "));
  const about = parts.length ? ` (${parts.join("; ")})` : "";
  find("#filter span").textContent = image.keep ? `${grouped(kept)} of ${grouped(image.keep.length)} pixels are shown${about}.` : "";
  find("#clear").hidden = !image.keep;
  redraw();
};

const filterPair = (pair) => {
  clearFilter();
  filter.pair = pair;
  applyFilter();
};

const clearFilter = () => {
  filter.hidden.clear();
  filter.ranges.clear();
  filter.pair = null;
  updateLegend();
  findAll("#histograms figure").forEach((figure) => figure.reset());
  applyFilter();
};

// -------------------------------------------------------------------------------------------------------------- legend

const updateLegend = () => {
  const entries = findAll("#legend li");
  const visible = entries.filter(({ value }) => !filter.hidden.has(value));
  for (const entry of entries) {
    find("input", entry).checked = visible.includes(entry);
    find("button", entry).ariaPressed = String(visible.length === 1 && entries.length > 1 && visible[0] === entry);
  }
};

const makeLegend = () => {
  const { truth, prediction } = image.arrays;
  const [counts, predicted] = [truth, prediction].map(countsOf);
  const labels = [...data.names.keys()].filter((label) => counts[label] || predicted[label]);
  const total = truth.values.length - counts[truth.none];
  const entries = labels.map((label) => {
    const name = data.names[label];
    const box = element("input", { type: "checkbox", checked: true, ariaLabel: `Show ${name}` });
    const share = element("small", { textContent: `${((100 * counts[label]) / Math.max(total, 1)).toFixed(1)} %` });
    const only = element("button", { ariaPressed: "false", title: "Show this class alone, or all" }, swatch(data.colors[label]), name, share);
    box.addEventListener("change", () => {
      box.checked ? filter.hidden.delete(label) : filter.hidden.add(label);
      updateLegend();
      applyFilter();
    });
    only.addEventListener("click", () => {
      const all = only.ariaPressed === "true";
      filter.pair = null;
      filter.hidden = new Set(all ? [] : labels.filter((other) => other !== label));
      updateLegend();
      applyFilter();
    });
    return element("li", { value: label }, box, only);
  });
  find("#legend").replaceChildren(...entries);
  const others = { right: "right", wrong: "wrong", void: "ignored", nothing: "no edge, zero gradient, far", loud: "not finite" };
  find("#key").replaceChildren(
    ...Object.entries(others).map(([name, meaning]) => element("li", {}, swatch(data.special[name]), meaning)),
  );
};

// ---------------------------------------------------------------------------------------------------------- histograms

// Return the bin of each code, 255 for what has none, the numbers of pixels in the bins, and their borders.
const histogramOf = ({ key, log, nothing }) => {
  const perCode = countsOf(image.arrays[key]);
  const scaled = (code) => (log ? Math.log10(NUMBERS[code]) : NUMBERS[code]);
  const first = log || nothing === "zero" ? FIRST + 1 : FIRST;
  let [low, high] = [Infinity, -Infinity];
  for (let code = first; code < NOT_FINITE; code++)
    if (perCode[code]) [low, high] = [Math.min(low, scaled(code)), Math.max(high, scaled(code))];
  if (!log) low = Math.min(low, 0);
  const width = (high - low) / BINS || 1;
  const [binOf, counts] = [new Uint8Array(65536).fill(255), new Float64Array(BINS)];
  for (let code = first; code < NOT_FINITE; code++)
    if (perCode[code]) counts[(binOf[code] = limited(Math.floor((scaled(code) - low) / width), 0, BINS - 1))] += perCode[code];
  const border = (bin) => (log ? 10 ** (low + bin * width) : low + bin * width);
  return { binOf, counts, border, empty: high < low };
};

// Bars on a log scale, as the path of an SVG of BINS × 1.
const barsOf = (counts, low, high) => {
  const top = Math.log10(1 + Math.max(...counts));
  return [...counts.keys()]
    .filter((bin) => bin >= low && bin <= high && counts[bin])
    .map((bin) => `M${bin} 1V${(1 - Math.log10(1 + counts[bin]) / top).toFixed(4)}H${bin + 0.92}V1Z`)
    .join("");
};

const svg = (tag, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const makeHistogram = (layer) => {
  const { binOf, counts, border, empty } = histogramOf(layer);
  if (empty) return null;
  const name = layer.log ? "|gradient|" : layer.name;
  const all = svg("path", { class: "all", d: barsOf(counts, 0, BINS) });
  const chosen = svg("path", { class: "in" });
  const chart = svg("svg", { viewBox: `0 0 ${BINS} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, all, chosen);
  const slider = (end, value) => element("input", { type: "range", min: 0, max: BINS - 1, value, ariaLabel: `${name}: ${end} of the range` });
  const [from, to] = [slider("low end", 0), slider("high end", BINS - 1)];
  const about = element("span");
  const ends = element("div", { className: "ends" }, ...[0, BINS].map((bin) => element("span", { textContent: number(border(bin)) })));
  const figure = element("figure", {}, element("figcaption", { textContent: name }, about), chart, ends, element("div", { className: "sliders" }, from, to));

  const choose = (first, last) => {
    const [low, high] = [Math.min(first, last), Math.max(first, last)];
    [from.value, to.value] = [low, high];
    const text = `${number(border(low))} – ${number(border(high + 1))}`;
    for (const [input, at] of [[from, low], [to, high + 1]]) input.ariaValueText = number(border(at));
    chosen.setAttribute("d", barsOf(counts, low, high));
    const whole = low === 0 && high === BINS - 1;
    about.textContent = whole ? "" : text;
    whole ? filter.ranges.delete(layer.key) : filter.ranges.set(layer.key, { binOf, low, high, text });
  };
  const apply = (first, last) => {
    choose(first, last);
    filter.pair = null;
    applyFilter();
  };
  for (const input of [from, to]) input.addEventListener("input", () => apply(Number(from.value), Number(to.value)));
  const binAt = ({ clientX }) => {
    const { left, width } = chart.getBoundingClientRect();
    return limited(Math.floor(((clientX - left) / width) * BINS), 0, BINS - 1);
  };
  let start = null;
  chart.addEventListener("pointerdown", (event) => {
    start = binAt(event);
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => start === null || apply(start, binAt(event)));
  for (const end of ["pointerup", "pointercancel"]) chart.addEventListener(end, () => (start = null));
  figure.reset = () => choose(0, BINS - 1);
  figure.reset();
  return figure;
};

const makeHistograms = () => find("#histograms").replaceChildren(...image.layers.map(makeHistogram).filter(Boolean));
