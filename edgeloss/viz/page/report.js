// Open an image of the report, and listen.

const open = async (index) => {
  image = openImage(data.images[index]);
  image.failures = {};
  const chosen = ["left", "right"].map((side) => document.body.dataset[side]);
  const preferred = [chosen[0] ?? (data.images[index].picture ? "errors" : "truth"), chosen[1] ?? "edge"];
  const first = ["truth", "prediction", "edge_mask", ...preferred].filter((key) => key in data.images[index].arrays);
  await Promise.all([image.loadPicture(), image.needAll(first)]);
  menus.forEach((menu, side) =>
    menu.replaceChildren(...image.choices.map(({ key, name }) => new Option(name, key, false, key === preferred[side]))),
  );
  fit();
  await Promise.all(menus.map((_, side) => showLayer(side)));
  find("#wait").hidden = true;
  image.summary = summarize();
  unpin();
  makeLegend();
  await image.needAll();
  const { edge_mask: mask } = image.arrays;
  image.rank = new Int32Array(mask.values.length).fill(-1);
  for (let at = 0, count = 0; at < mask.values.length; at++) if (mask.values[at]) image.rank[at] = count++;
  image.complete = true;
  showWorst();
  makeHistograms();
  clearFilter();
};

const start = async () => {
  await open(0);
  showWhole();
  const pick = find("#image");
  pick.replaceChildren(...data.images.map((_, index) => new Option(`${index + 1} of ${data.images.length}`, String(index))));
  find("#choice").hidden = data.images.length < 2;
  pick.addEventListener("change", () => open(Number(pick.value)));
  canvases.forEach(listenToPointer);
  menus.forEach((menu, side) => menu.addEventListener("change", () => showLayer(side)));
  findAll(".largest").forEach((button, side) => button.addEventListener("click", () => goToLargest(side)));
  blends.forEach((blend, side) =>
    blend.addEventListener("input", () => {
      opacities[kindOf(menus[side].value)] = blend.value;
      blends.forEach((other, k) => (other.value = opacities[kindOf(menus[k].value)]));
      redraw();
    }),
  );
  for (const name of ["truth", "prediction"]) {
    const button = find(`#${name}-contours`);
    button.addEventListener("click", () => {
      contours.has(name) ? contours.delete(name) : contours.add(name);
      button.ariaPressed = String(contours.has(name));
      redraw();
    });
  }
  find("#in").addEventListener("click", () => zoomBy(1.5));
  find("#out").addEventListener("click", () => zoomBy(1 / 1.5));
  find("#whole").addEventListener("click", showWhole);
  find("#clear").addEventListener("click", clearFilter);
  document.addEventListener("keydown", listenToKeys);
  new ResizeObserver(fit).observe(find(".panes"));
};

begin(start);
