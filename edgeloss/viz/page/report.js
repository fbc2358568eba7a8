// Open an image of the report, and listen.

let newest; // the image that was chosen last; the one before stays until this one is unpacked

const open = async (index) => {
  find("#wait").hidden = false;
  const opened = (newest = openImage(data.images[index]));
  const first = [data.images[index].picture ? "errors" : "truth", "edge"];
  const preferred = () => menus.map((menu, side) => menu.value || first[side]);
  const missing = () => ["truth", "prediction", ...preferred()].filter((name) => opened.has(name) && !opened.arrays[name]);
  await opened.loadPicture();
  while (missing().length) await Promise.all(missing().map(opened.need)); // the layers may change meanwhile
  if (opened !== newest) return;

  findAll("[data-image]").forEach((part) => (part.hidden = Number(part.dataset.image) !== index));
  const kept = preferred();
  image = opened;
  menus.forEach((menu, side) =>
    menu.replaceChildren(...image.choices.map(({ key, name }) => new Option(name, key, false, key === kept[side]))),
  );
  fit();
  image.summary = summarize();
  unpin();
  makeLegend();
  showWorst();
  makeHistograms();
  clearFilter();
  await Promise.all(menus.map((_, side) => showLayer(side)));
  await image.needPixel(0, 0); // of a small image, all arrays
  if (opened === newest) find("#wait").hidden = true;
};

const start = async () => {
  await open(0);
  showWhole();
  const [pick, slide] = [find("#image"), find("#slide")];
  pick.replaceChildren(...data.images.map(({ name }, index) => new Option(name, String(index))));
  slide.max = data.images.length - 1;
  find("#choice").hidden = data.images.length < 2;
  slide.hidden = data.images.length < 3;
  for (const [chosen, other, event] of [[pick, slide, "change"], [slide, pick, "input"]])
    chosen.addEventListener(event, () => {
      other.value = chosen.value;
      open(Number(chosen.value));
    });
  canvases.forEach(listenToPointer);
  menus.forEach((menu, side) => menu.addEventListener("change", () => showLayer(side)));
  findAll(".largest").forEach((button, side) => button.addEventListener("click", () => goToLargest(side)));
  blends.forEach((blend, side) =>
    blend.addEventListener("input", () => {
      opacities[kindOf(drawn[side])] = blend.value;
      blends.forEach((other, k) => (other.value = opacities[kindOf(drawn[k])]));
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
