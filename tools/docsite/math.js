// Formulas are in the page as TeX; KaTeX, which is part of the site, draws them.
for (const element of document.querySelectorAll(".arithmatex")) {
  const tex = element.textContent.trim();
  katex.render(tex.slice(2, -2), element, { displayMode: tex.startsWith("\\["), throwOnError: false });
}
