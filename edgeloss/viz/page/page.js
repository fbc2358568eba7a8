"use strict";
// Shared by all pages: unpack Plotly and draw the figures.
// Names and titles come from files: insert them as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);

const unpack = async (text) => {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

const element = (tag, text = "", parent = null, name = "") => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  if (parent) parent.append(made);
  return made;
};

// Only these buttons: a default button of Plotly can send the figure to a server.
const plotting = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};

// Run the script of a page after Plotly and before the figures, and show errors.
const begin = async (start = () => {}) => {
  try {
    const library = document.createElement("script");
    library.textContent = new TextDecoder().decode(await unpack(document.getElementById("library").textContent));
    document.head.append(library);
    await start();
    for (const [id, figure] of Object.entries(data.figures ?? {}))
      await Plotly.newPlot(id, figure.data, figure.layout, plotting);
    document.body.dataset.ready = "true";
  } catch (error) {
    const message = element("p", `This page could not be drawn: ${error.message}`, document.querySelector("main"), "loud");
    message.id = "failure";
    throw error;
  }
};

