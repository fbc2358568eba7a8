// Open an image of the report, and listen.

const open = async (index) => {
  find("#wait").hidden = false;
  image = openImage(data.images[index]);
  const chosen = ["left", "right"].map((side) => document.body.dataset[side]);
  const preferred = [chosen[0] ?? (data.images[index].picture ? "errors" : "truth"), chosen[1] ?? "edge"];
  const first = ["truth", "prediction", ...preferred].filter(image.has);
  await Promise.all([image.loadPicture(), ...first.map(image.need)]);
  menus.forEach((menu, side) =>
    menu.replaceChildren(...image.choices.map(({ key, name }) => new Option(name, key, false, key === preferred[side]))),
  );
  fit();
  await Promise.all(menus.map((_, side) => showLayer(side)));
  image.summary = summarize();
  unpin();
  makeLegend();
  showWorst();
  makeHistograms();
  clearFilter();
  await image.needPixel(0, 0); // of a small image, all arrays
  find("#wait").hidden = true;
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
