// Next to the views: the values of a pixel or, while none is chosen, what goes wrong most, and the worst places.

const panel = find("#pixel");
const nameOf = (label, absent = "not finite") => names[label] ?? absent;
const named = (label, absent) => {
  const color = colors[label] ?? data.special[absent];
  return [element("span", { className: "label" }, swatch(color), nameOf(label, absent === "void" ? "ignored" : undefined))];
};

// The neighbors of an edge pixel. Those of others fill the row of a pixel that has fewer.
const neighbors = (y, x) =>
  image
    .neighborsAt(y, x)
    .map(({ down, right, nll, share }) => ({ down, right, nll: NUMBERS[nll], share: NUMBERS[share] }))
    .filter(({ down, right }) => down || right)
    .map((one) => {
      const label = labelAt("truth", y + one.down, x + one.right);
      const same = label === labelAt("truth", y, x);
      return { ...one, label, same, given: same ? Math.exp(-one.nll) : -Math.expm1(-one.nll) };
    });

const likely = (y, x) => {
  const rows = [];
  for (let k = 0; image.has(`probability_${k}`); k++) {
    const label = image.codeAt(k ? `class_${k}` : "prediction", y, x) - FIRST;
    if (label >= 0) rows.push([named(label, "loud"), number(NUMBERS[image.codeAt(`probability_${k}`, y, x)])]);
  }
  return rows;
};

const NOTHING_IS = { "off the edges": "no edge", zero: "0", far: "Infinity" };
const terms = (y, x) =>
  image.layers.map(({ key, name, nothing, most }) => {
    const code = image.codeAt(key, y, x);
    return [name, code === IGNORED ? "–" : code === NOTHING ? NOTHING_IS[nothing] : number(code === most[0] ? most[1] : NUMBERS[code])];
  });

const NEIGHBOR_HEAD = ["offset", "side", "class", "prob.", "loss", "share"];
const ABOUT_NEIGHBORS = "offset: rows down, columns right; prob.: of the class of this pixel; loss: of this neighbor alone; share: of the gradient of its side’s term";
const showPixel = async (y, x) => {
  shown = [y, x];
  const [about, loading] = [image, image.needPixel(y, x)];
  if (loading) {
    around = [];
    redraw();
    await loading;
    if (image !== about || shown?.[0] !== y || shown[1] !== x) return; // another pixel by now
  }
  const [truth, prediction] = ["truth", "prediction"].map((key) => labelAt(key, y, x));
  around = neighbors(y, x);
  const rows = around.map(({ down, right, label, same, given, nll, share }) => [
    `${down}, ${right}`,
    same ? "same" : "other",
    named(label, "void"),
    number(given),
    number(nll),
    percent(share, 0),
  ]);
  const close = element("button", { type: "button", textContent: "Close", title: "Close (Esc)" });
  close.addEventListener("click", unpin);
  const title = text("h2", `Row ${y}, column ${x}${pinned ? " (pinned)" : ""}`);
  const ofLabels = element("div", {},
    tableOf([["truth", named(truth, "void")], ["prediction", named(prediction, "loud")]], { id: "labels" }),
    text("h3", "Most probable"),
    tableOf(likely(y, x), { id: "likely" }),
  );
  const ofTerms = element("div", {},
    text("h3", truth < 0 ? "Terms: none, the pixel is ignored" : "Terms"),
    tableOf(terms(y, x), { id: "terms" }),
  );
  const ofNeighbors = element("div", {},
    text("h3", `Neighbors and their probability of “${names[truth]}”`),
    tableOf(rows, { id: "neighbors", head: NEIGHBOR_HEAD }),
    text("p", ABOUT_NEIGHBORS, "hint"),
  );
  const head = element("div", { className: "head" }, title, ...(pinned ? [close] : []));
  panel.replaceChildren(head, ofLabels, ofTerms, ...(around.length ? [ofNeighbors] : []));
  panel.classList.toggle("pinned", pinned);
  redraw();
  if (pinned) reveal(y);
};

// Scroll until a view shows the row of the pinned pixel, where the values of narrow screens do not lie over it.
const reveal = (y) => {
  const end = innerHeight - (getComputedStyle(panel).position === "sticky" ? panel.offsetHeight : 0);
  const offsets = canvases.map((canvas) => canvas.getBoundingClientRect().top + (y + 0.5 - frameOf(canvas).top) * view.zoom - end / 2);
  const least = offsets.reduce((best, one) => (Math.abs(one) < Math.abs(best) ? one : best));
  if (Math.abs(least) > end / 2 - 8) scrollBy(0, least);
};

// Show the summary again.
const forget = () => {
  shown = null;
  around = [];
  panel.replaceChildren(...summarize());
  panel.classList.remove("pinned");
  redraw();
};

const summarize = () => {
  const { valid, wrong } = image.pixels;
  const share = valid ? `${percent(wrong / valid)} of ${grouped(valid)} labeled pixels are wrong.` : "All pixels are ignored.";
  const buttons = image.mistakes.map(([true_, found, count]) => {
    const label = element("span", {}, ...named(true_, "void"), " → ", ...named(found, "loud"));
    const made = element("button", { className: "pair" }, label, withUnit(grouped(count), "px"));
    made.addEventListener("click", () => filterPair([true_, found]));
    return made;
  });
  const most = buttons.length ? [text("h3", "Most frequent mistakes, truth → prediction"), ...buttons] : [];
  return [text("h2", "This image"), text("p", share, "hint"), ...most];
};

const WORST_DOTS = 240; // of the pictures of the worst places
const showWorst = () => {
  const { layer, places } = image.worst;
  find("#worst-about").textContent = places.length
    ? `Where the sum of the ${layerOf(layer).name} is largest. Press one to go there.`
    : "There is no loss anywhere.";
  const buttons = places.map(({ row, column, across, sum, labels }) => {
    const canvas = element("canvas", { width: WORST_DOTS, height: WORST_DOTS, ariaHidden: "true" });
    const size = text("small", sum === null ? " not finite" : ` ${withUnit(number(sum), layerOf(layer).unit)}`);
    const label = element("span", {}, labels.map(nameOf).join(" → "), size);
    const made = element("button", { title: `Row ${row}, column ${column}` }, canvas, label);
    made.addEventListener("click", () => {
      zoomTo(row, column, across);
      pin(row, column);
    });
    return made;
  });
  find("#worst-key").hidden = !places.length;
  find("#worst").replaceChildren(...buttons);
};

const drawWorst = () =>
  findAll("#worst canvas").forEach((canvas, at) => {
    const { top, left, across } = image.worst.places[at];
    const frame = { left, top, dots: WORST_DOTS / across };
    drawLayer(canvas.getContext("2d"), frame, image.picture ? "picture" : "truth", { contours: ["truth", "prediction"] });
  });
