// The worst images of a run. Narrow screens show image, labels, prediction and wrong pixels, and the maps when asked.

parts.worst = ({ title, text: content, key, first, rows }) => {
  const shown = rows.flatMap((image) => {
    const figures = picturesOf(image, first, image.figures.keys(), "figures worst");
    return [element("h3", {}, image.name, " ", text("span", image.about, "of-name")), figures, unfold(figures)];
  });
  return [element("section", { className: "card" }, text("h2", title), text("p", content, "hint"), ...parts.key({ entries: key }), ...shown)];
};
