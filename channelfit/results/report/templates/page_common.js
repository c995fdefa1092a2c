"use strict";
// What all pages do beside showing text: they unpack numbers, embed Bokeh's figures and paint them in
// the colors of the page, light or dark. Nothing here evaluates text, and nothing is fetched.

const told = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let model = null; // Bokeh's document, once it is there

// --- numbers ---------------------------------------------------------------------------------

function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) out[k] = raw.charCodeAt(k);
  return out.buffer;
}
const floats = (text) => new Float32Array(bytes(text));
const counts = (text) => new Uint32Array(bytes(text));

// The least and the largest of some lines, with room on either side.
function ends(lines, share) {
  let low = Infinity, high = -Infinity;
  for (const line of lines) {
    for (const y of line) {
      if (y < low) low = y;
      if (y > high) high = y;
    }
  }
  if (low > high) return null;
  const room = share * (high - low) || 0.1 * Math.abs(high) || 1;
  return {start: low - room, end: high + room};
}

// --- colors ----------------------------------------------------------------------------------

function styles() {
  const css = getComputedStyle(document.documentElement);
  const of = (name) => css.getPropertyValue(name).trim();
  return {
    ink: of("--ink"), muted: of("--muted"), rule: of("--rule"),
    data: of("--data"), hidden: of("--hidden"),
    runs: [0, 1, 2, 3, 4, 5].map((k) => of(`--run${k}`)),
  };
}

function colorOf(tag, noted) {
  if (tag === "data") return noted.ink;
  if (tag === "muted" || tag === "zero") return noted.muted;
  return noted.runs[Number(tag.slice(3)) % noted.runs.length];
}

// Paints axes, grids, and all that has a tag.
function paintFigures(noted) {
  for (const plot of model.roots()) {
    for (const part of [...plot.below, ...plot.left]) {
      part.setv({
        axis_label_text_color: noted.ink, major_label_text_color: noted.ink,
        axis_line_color: noted.muted, major_tick_line_color: noted.muted,
      });
    }
    for (const part of plot.center) {
      if (part.type === "Grid") part.grid_line_color = noted.rule;
      if (part.type === "Span") part.line_color = noted.muted;
    }
    for (const renderer of plot.renderers) {
      if (!renderer.tags.length) continue;
      const color = colorOf(renderer.tags[0], noted);
      const filled = renderer.glyph.type === "Scatter" ? {fill_color: null} : {};
      renderer.glyph.setv({line_color: color, ...filled});
    }
  }
}

// --- figures ---------------------------------------------------------------------------------

// Bokeh's figures take the focus, but no key does anything there: the inputs beside them do.
function unfocusable(root) {
  for (const part of root.querySelectorAll("*")) {
    if (part.tabIndex >= 0 && part.classList.contains("bk-events")) part.tabIndex = -1;
    if (part.shadowRoot) unfocusable(part.shadowRoot);
  }
}

const plotOf = (place) =>
  (Object.entries(told.items[0].roots).find(([, element]) => element === place) || [])[0];

// Embeds the figures of Bokeh; `filled` is called once they are there, and `paint` then and whenever
// the page turns dark or light.
async function embedFigures(filled, paint) {
  if (!told.items.length) return;
  if (window.matchMedia("(pointer: coarse)").matches) {
    // a finger that scrolls the page must not draw boxes
    for (const one of Object.values(told.docs)) {
      for (const root of one.roots) delete root.attributes.toolbar;
    }
  }
  await Bokeh.embed.embed_items(told.docs, told.items);
  model = Bokeh.documents[0];
  filled();
  paint();
  // Bokeh lays out its figures once more when it has seen their sizes
  const calm = () => document.querySelectorAll(".plot").forEach(unfocusable);
  calm();
  requestAnimationFrame(() => requestAnimationFrame(calm));
  dark.addEventListener("change", paint);
}

// Tells whoever waits for the page that it is complete, and after how many milliseconds it was.
function ready() {
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

for (const button of document.querySelectorAll("button[data-copies]")) {
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copies);
    window.getSelection().selectAllChildren(source);
    const said = button.nextElementSibling;
    try {
      await navigator.clipboard.writeText(source.textContent);
      said.textContent = "Copied.";
    } catch (refused) {
      said.textContent = "Selected: copy it with the keyboard.";
    }
  });
}
