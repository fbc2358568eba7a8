// Curves over the epochs of a run; the values of an epoch are shown under the pointer, or by the arrow keys.

const DASHES = ["none", "8 5", "0.1 5", "10 5 0.1 5"]; // tell curves apart without their colors
const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [202, 46, 12, 14, 28];

// The ends of an axis: those of the values and a little more, so that differences are seen; 0 where that is near.
const endsOf = (values) => {
  const [lowest, highest] = [Math.min(...values), Math.max(...values)];
  const margin = 0.06 * (highest - lowest || Math.abs(highest) || 1);
  return [lowest >= 0 && lowest < highest / 4 ? 0 : lowest - margin, highest + margin];
};

// Round numbers in a range, three to six of them.
const ticksOf = (low, high) => {
  const rough = (high - low) / 6 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((by) => by * power).find((by) => by >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => (first + k) * step);
};

// A line that is interrupted where there is no value; a value between two gaps is a dot.
const pathOf = (xs, ys) =>
  ys.map((y, k) => (y === null ? "" : `${k && ys[k - 1] !== null ? "L" : "M"}${xs[k].toFixed(1)} ${y.toFixed(1)}h.01`)).join("");

const lineOf = (k) => `stroke: var(--series-${k}); stroke-dasharray: ${DASHES[k]}`;

const drawCurves = (card, { title, about, share, epochs, best, series }) => {
  const [low, high] = endsOf(series.flatMap((one) => one.values).filter((value) => value !== null));
  const shown = (value) => (share || value === null ? percent(value) : number(value));
  const [first, last] = [epochs[0], epochs[epochs.length - 1]];
  const up = (value) => (value === null ? null : HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM));
  const label = (text, x, y, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);
  const chart = svg("svg", { role: "img", tabindex: 0 });
  const names = series.map(({ name, values: all }) => `${name} from ${shown(all.find((v) => v !== null))} to ${shown(all.findLast((v) => v !== null))}`);
  chart.setAttribute("aria-label", `${title} by epoch: ${names.join("; ")}`);
  const now = svg("path", { class: "now" });
  const entries = series.map(() => element("li"));
  const when = label("", 0, TOP - 3, "middle");

  // Text above a line begins or ends there, so that it stays within the picture.
  const sideOf = (x) => (x > (width + LEFT) / 2 ? "end" : "start");

  // Drawn in the width that it is shown in: its text has one size.
  let [width, xs] = [0, []];
  const draw = (wide) => {
    if (wide === width) return;
    width = wide;
    const across = (epoch) => LEFT + ((epoch - first) / (last - first || 1)) * (width - LEFT - RIGHT);
    xs = epochs.map(across);
    chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    chart.replaceChildren();
    for (const tick of ticksOf(low, high)) {
      chart.append(svg("path", { class: "grid", d: `M${LEFT} ${up(tick)}H${width - RIGHT}` }));
      chart.append(label(share ? `${Number((100 * tick).toPrecision(6))}\u00a0%` : String(Number(tick.toPrecision(6))), LEFT - 6, up(tick) + 4, "end"));
    }
    const whole = ticksOf(first, last).filter(Number.isInteger);
    for (const epoch of whole) chart.append(label(String(epoch), across(epoch), HEIGHT - 6, "middle"));
    chart.append(label("epoch", LEFT - 8, HEIGHT - 6, "end"));
    if (best && epochs.length > 1) {
      const x = across(best.epoch);
      chart.append(svg("path", { class: "best", d: `M${x} ${TOP}V${HEIGHT - BOTTOM}` }), label(best.name, x, TOP - 3, sideOf(x)));
    }
    series.forEach((one, k) => {
      chart.append(svg("path", { d: pathOf(xs, one.values.map(up)), style: lineOf(k) }));
    });
    chart.append(now, when);
  };
  draw(360);
  new ResizeObserver(() => draw(Math.max(chart.clientWidth, 200))).observe(chart);

  let at = epochs.length - 1;
  const show = (index, moved = true) => {
    at = limited(index, 0, epochs.length - 1);
    now.setAttribute("d", moved ? `M${xs[at]} ${TOP}V${HEIGHT - BOTTOM}` : "");
    // The epoch takes the place of the name of the best one.
    when.textContent = moved ? `epoch ${epochs[at]}` : "";
    for (const [name, value] of Object.entries({ x: xs[at], "text-anchor": sideOf(xs[at]) })) when.setAttribute(name, value);
    find(".best + text", chart)?.setAttribute("visibility", moved ? "hidden" : "visible");
    series.forEach(({ name, values: all }, k) => {
      const line = svg("svg", { class: "stroke", viewBox: "0 0 28 4", "aria-hidden": "true" }, svg("path", { d: "M1 2H27", style: lineOf(k) }));
      entries[k].replaceChildren(line, `${name} ${shown(all[at])}`);
    });
  };
  show(at, false);
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    show(xs.reduce((best, place, k) => (Math.abs(place - x) < Math.abs(xs[best] - x) ? k : best), 0));
  });
  for (const end of ["pointerleave", "blur"]) chart.addEventListener(end, () => show(epochs.length - 1, false));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(at + step);
  });
  card.append(text("h3", title), text("p", about, "hint"), element("ul", {}, ...entries), chart);
};

parts.curves = ({ title, about, curves, notes }) => {
  const cards = curves.map((curve) => {
    const card = element("div", { className: "card" });
    drawCurves(card, curve);
    return card;
  });
  return [element("section", {}, ...parts.heading({ title, about }), element("div", { className: "curves rows filled" }, ...cards), foldedOf("What these figures mean", notesOf(notes)))];
};
