// Next to the views: the values of a pixel or, while none is chosen, what goes wrong most, and the worst places.

const panel = find("#pixel");

const swatch = (color) => {
  const made = element("span", { className: "swatch" });
  made.style.background = color;
  return made;
};
const named = (label, absent) => {
  const name = data.names[label] ?? (absent === "void" ? "ignored" : "not finite");
  return [element("span", { className: "label" }, swatch(data.colors[label] ?? data.special[absent]), name)];
};

const nameOf = (label) => data.names[label] ?? "not finite";

// Return a table; a cell is text or a list of nodes.
const tableOf = (id, rows, head = []) => {
  const made = element("table", { id });
  if (head.length) made.createTHead().append(element("tr", {}, ...head.map((name) => element("th", { scope: "col", textContent: name }))));
  const line = (cells) => {
    const places = cells.map((cell) => element("td", { className: Array.isArray(cell) ? "wrap" : "" }, ...[cell].flat()));
    for (const place of places) if (/^(NaN|-?Infinity)$/.test(place.textContent)) place.className = "loud";
    return element("tr", {}, ...places);
  };
  made.createTBody().append(...rows.map(line));
  return made;
};
const title = (text) => element("h3", { textContent: text });

const neighbors = (y, x) =>
  image
    .neighborsAt(y, x)
    .map(({ down, right, ...codes }) => {
      const [given, nll, share] = [codes.given, codes.nll, codes.share].map((code) => NUMBERS[code]);
      return { down: down - data.reach, right: right - data.reach, given, nll, share };
    })
    .filter(({ down, right }) => down || right) // others fill the row of a pixel with fewer neighbors
    .map((one) => {
      const label = labelAt("truth", y + one.down, x + one.right);
      return { ...one, label, same: label === labelAt("truth", y, x) };
    });

const likely = (y, x) => {
  const rows = [];
  for (let k = 0; image.has(`probability_${k}`); k++) {
    const label = image.valueAt(k ? `class_${k}` : "prediction", y, x);
    if (label !== image.arrays.prediction.none) rows.push([named(label, "loud"), number(NUMBERS[image.valueAt(`probability_${k}`, y, x)])]);
  }
  return rows;
};

const terms = (y, x) =>
  image.layers.map(({ key, name }) => {
    const code = image.valueAt(key, y, x);
    return [name, code === OFF_EDGES ? "no edge" : code === IGNORED ? "–" : number(NUMBERS[code])];
  });

const NEIGHBOR_HEAD = ["offset", "side", "class", "prob.", "loss", "share"];
const showPixel = async (y, x) => {
  shown = [y, x];
  const [about, loading] = [image, image.needPixel(y, x)];
  if (loading) {
    around = [];
    redraw();
    await loading;
    if (image !== about || shown?.[0] !== y || shown[1] !== x) return; // another pixel by now
  }
  const { truth, prediction } = image.arrays;
  const at = y * truth.columns + x;
  const valid = truth.values[at] !== truth.none;
  around = neighbors(y, x);
  panel.replaceChildren(
    element("h2", { textContent: `Row ${y}, column ${x}${pinned ? " (pinned)" : ""}` }),
    tableOf("labels", [
      ["truth", named(truth.values[at], "void")],
      ["prediction", named(prediction.values[at], "loud")],
    ]),
    title("Most probable"),
    tableOf("likely", likely(y, x)),
    title(valid ? "Terms" : "Terms: none, the pixel is ignored"),
    tableOf("terms", terms(y, x)),
  );
  if (around.length) {
    const rows = around.map(({ down, right, label, same, given, nll, share }) => [
      `${down}, ${right}`,
      same ? "same" : "other",
      named(label, "void"),
      number(given),
      number(nll),
      `${(100 * share).toFixed(0)} %`,
    ]);
    panel.append(
      title(`Neighbors and their probability of “${data.names[truth.values[at]]}”`),
      tableOf("neighbors", rows, NEIGHBOR_HEAD),
      element("p", { className: "hint", textContent: "offset: rows down, columns right; prob.: of the class of this pixel; loss: of this neighbor alone; share: of the gradient of its side’s term" }),
    );
  }
  redraw();
};

// Show the summary again.
const forget = () => {
  shown = null;
  around = [];
  panel.replaceChildren(...image.summary);
  redraw();
};

// ------------------------------------------------------------------------------------------------------------- summary

// Count the wrong pixels of a part of the image by [true class, predicted class], the most frequent first.
const countMistakes = (top = 0, left = 0, bottom = Infinity, right = Infinity) => {
  const { truth, prediction } = image.arrays;
  const pairs = new Map();
  let [valid, wrong] = [0, 0];
  for (let y = Math.max(top, 0); y < Math.min(bottom, truth.rows); y++)
    for (let x = Math.max(left, 0); x < Math.min(right, truth.columns); x++) {
      const at = y * truth.columns + x;
      if (truth.values[at] === truth.none) continue;
      valid++;
      if (truth.values[at] === prediction.values[at]) continue;
      wrong++;
      const pair = truth.values[at] * 65536 + prediction.values[at];
      pairs.set(pair, (pairs.get(pair) ?? 0) + 1);
    }
  const most = [...pairs].sort((a, b) => b[1] - a[1]).slice(0, 6);
  return { valid, wrong, most: most.map(([pair, count]) => [Math.floor(pair / 65536), pair % 65536, count]) };
};

const summarize = () => {
  const { valid, wrong, most } = countMistakes();
  const share = valid ? `${((100 * wrong) / valid).toFixed(1)} % of ${grouped(valid)} labeled pixels are wrong.` : "All pixels are ignored.";
  const buttons = most.map(([true_, found, count]) => {
    const made = element("button", { className: "pair" }, element("span", {}, ...named(true_, "void"), " → ", ...named(found, "loud")), grouped(count));
    made.addEventListener("click", () => filterPair([true_, found]));
    return made;
  });
  const hint = "Point at a pixel to see its values, and click to pin it.";
  return [
    element("h2", { textContent: "This image" }),
    element("p", { className: "hint", textContent: share }),
    element("p", { className: "hint", textContent: hint }),
    ...(buttons.length ? [title("Most frequent mistakes, truth → prediction"), ...buttons] : []),
  ];
};

// -------------------------------------------------------------------------------------------------------- worst places

const showWorst = () => {
  const { rows, columns } = image.arrays.truth;
  const { layer, places } = image.worst;
  const { name } = layerOf(layer);
  find("#worst-about").textContent = places.length
    ? `Where the sum of the ${name} is largest; wrong pixels in red. Press one to go there.`
    : "There is no loss anywhere.";
  const buttons = places.map(({ row, column, size, sum }) => {
    const canvas = element("canvas", { width: 160, height: 160, ariaHidden: "true" });
    const across = Math.min(1.8 * size, columns, rows);
    const top = Math.round(limited(row + 0.5 - across / 2, 0, rows - across));
    const left = Math.round(limited(column + 0.5 - across / 2, 0, columns - across));
    drawLayer(canvas.getContext("2d"), { left, top, dots: 160 / across }, "errors", { opacity: 0.55 });
    const [mistake] = countMistakes(top, left, Math.round(top + across), Math.round(left + across)).most;
    const names = mistake ? `${nameOf(mistake[0])} → ${nameOf(mistake[1])}` : nameOf(labelAt("truth", row, column));
    const text = element("span", {}, names, element("small", { textContent: sum === null ? " not finite" : ` ${number(sum)}` }));
    const made = element("button", { title: `Row ${row}, column ${column}` }, canvas, text);
    made.addEventListener("click", () => {
      zoomTo(row, column, 1.8 * size);
      pin(row, column);
    });
    return made;
  });
  find("#worst").replaceChildren(...buttons);
};
