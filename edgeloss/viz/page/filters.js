// The legend, which hides classes, and the histograms, which choose ranges of values.

// Apply the filter, and say what it leaves.
const applyFilter = () => {
  image.keep = filtered();
  for (const name of [...image.levels.keys()]) if (!name.startsWith("contour")) image.levels.delete(name);
  const kept = image.keep?.reduce((sum, one) => sum + one, 0);
  const limits = [...filter.ranges].map(([key, { text }]) => `${layerOf(key).name} ${text}`);
  if (filter.pair) limits.push(filter.pair.map(nameOf).join(" → "));
  const about = limits.length ? ` (${limits.join("; ")})` : "";
  const all = grouped(image.rows * image.columns);
  find("#filter span").textContent = image.keep ? `${grouped(kept)} of ${all} pixels are shown${about}.` : `All ${all} pixels are shown.`;
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

// One stop of the Tab key for all controls of the legend; the arrow keys go from one to the next.
find("#legend")?.addEventListener("keydown", (event) => {
  const controls = findAll("#legend :is(input, button)");
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const next = controls[limited(controls.indexOf(event.target) + by, 0, controls.length - 1)];
  for (const one of controls) one.tabIndex = one === next ? 0 : -1;
  next.focus();
});

const updateLegend = () => {
  const entries = findAll("#legend li");
  const visible = entries.filter(({ value }) => !filter.hidden.has(value));
  for (const entry of entries) {
    find("input", entry).checked = visible.includes(entry);
    find("button", entry).ariaPressed = String(visible.length === 1 && entries.length > 1 && visible[0] === entry);
  }
};

const makeLegend = () => {
  const entries = image.occurs.map(([label, count]) => {
    const box = element("input", { type: "checkbox", checked: true, ariaLabel: `Show ${names[label]}` });
    const share = text("small", percent(count / Math.max(image.pixels.valid, 1)));
    const only = element("button", { ariaPressed: "false", title: "Show this class alone, or all" }, swatch(colors[label]), names[label], share);
    box.addEventListener("change", () => {
      box.checked ? filter.hidden.delete(label) : filter.hidden.add(label);
      updateLegend();
      applyFilter();
    });
    only.addEventListener("click", () => {
      const all = only.ariaPressed === "true";
      filter.pair = null;
      filter.hidden = new Set(all ? [] : image.occurs.map(([other]) => other).filter((other) => other !== label));
      updateLegend();
      applyFilter();
    });
    return element("li", { value: label }, box, only);
  });
  find("#legend").replaceChildren(...entries);
  findAll("#legend :is(input, button)").forEach((one, at) => (one.tabIndex = at ? -1 : 0));
};

// ---------------------------------------------------------------------------------------------------------- histograms

// Return the code of the least number that is not below a value.
const codeOf = (value) => {
  const code = NUMBERS.findIndex((one, at) => at >= FIRST && one >= value);
  return code < 0 ? NOT_FINITE : code;
};

// Bars on a log scale, as the path of an SVG as wide as there are bins.
const barsOf = (counts, low, high) => {
  const top = Math.log10(1 + Math.max(...counts));
  return [...counts.keys()]
    .filter((bin) => bin >= low && bin <= high && counts[bin])
    .map((bin) => `M${bin} 1V${(1 - Math.log10(1 + counts[bin]) / top).toFixed(4)}H${bin + 0.92}V1Z`)
    .join("");
};

const makeHistogram = (layer) => {
  const { histogram } = image.packed[layer.key];
  if (!histogram) return null;
  const { low: lowest, width: step, counts } = histogram;
  const most = counts.length - 1;
  const border = (bin) => (layer.log ? 10 ** (lowest + bin * step) : lowest + bin * step);
  const { name, unit } = layer;
  const title = [name, unit].filter(Boolean).join(", ");
  const all = svg("path", { class: "all", d: barsOf(counts, 0, most) });
  const chosen = svg("path", { class: "in" });
  const chart = svg("svg", { viewBox: `0 0 ${most + 1} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, all, chosen);
  const slider = (end, value) => element("input", { type: "range", min: 0, max: most, value, ariaLabel: `${name}: ${end} of the range` });
  const [from, to] = [slider("low end", 0), slider("high end", most)];
  const about = element("span");
  const ends = element("div", { className: "ends" }, ...[0, most + 1].map((bin) => element("span", { textContent: number(border(bin)) })));
  const figure = element("figure", {}, element("figcaption", { textContent: title }, about), chart, ends, element("div", { className: "sliders" }, from, to));

  const choose = (first, last) => {
    const [low, high] = [Math.min(first, last), Math.max(first, last)];
    [from.value, to.value] = [low, high];
    const text = withUnit(`${number(border(low))} – ${number(border(high + 1))}`, unit);
    for (const [input, at] of [[from, low], [to, high + 1]]) input.ariaValueText = number(border(at));
    chosen.setAttribute("d", barsOf(counts, low, high));
    const whole = low === 0 && high === most;
    about.textContent = whole ? `up to ${grouped(Math.max(...counts))} in a bar` : text;
    if (whole) filter.ranges.delete(layer.key);
    else filter.ranges.set(layer.key, { first: low ? codeOf(border(low)) : FIRST + layer.log, end: high < most ? codeOf(border(high + 1)) : NOT_FINITE, text });
  };
  const apply = async (first, last) => {
    const about = image;
    await image.need(layer.key);
    if (image !== about) return; // another was chosen since
    choose(first, last);
    filter.pair = null;
    applyFilter();
  };
  for (const input of [from, to]) input.addEventListener("input", () => apply(Number(from.value), Number(to.value)));
  const binAt = ({ clientX }) => {
    const { left, width } = chart.getBoundingClientRect();
    return limited(Math.floor(((clientX - left) / width) * (most + 1)), 0, most);
  };
  let start = null;
  chart.addEventListener("pointerdown", (event) => {
    start = binAt(event);
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => start === null || apply(start, binAt(event)));
  for (const end of ["pointerup", "pointercancel"]) chart.addEventListener(end, () => (start = null));
  figure.reset = () => choose(0, most);
  figure.reset();
  return figure;
};

const makeHistograms = () => find("#histograms").replaceChildren(...image.layers.map(makeHistogram).filter(Boolean));
