// Fill the page.

const pane = (side) => {
  const made = find("#pane").content.cloneNode(true);
  findAll(".unseen", made).forEach((name) => name.append(`, ${side}`));
  return made;
};

parts.viewer = () => {
  const made = find("#viewer-parts").content.cloneNode(true);
  find(".panes", made).append(pane("left"), pane("right"));
  find("#how", made).textContent = matchMedia("(hover: none)").matches ? "Tap a pixel to see its values." : "Point at a pixel to see its values, and click to pin it.";
  return [made];
};

try {
  find("h1").textContent = data.title;
  find(".kind").textContent = data.kind;
  find(".subtitle").textContent = data.subtitle;
  find(".lead").textContent = data.lead;
  find("nav").append(...data.links.map(([name, href]) => element("a", { href, textContent: name, rel: name.startsWith("←") ? "prev" : name.endsWith("→") ? "next" : "" })));
  if (data.links.length) find("nav").append(text("small", "Links lead to other files: move them together with this one."));
  for (const part of data.parts) if (part.text !== "" || part.rows) find(part.kind === "tiles" ? "header" : "main").append(...parts[part.kind](part));
  find("footer").textContent = data.footer;
  arrangeRows();
} catch (error) {
  fail(error);
}
