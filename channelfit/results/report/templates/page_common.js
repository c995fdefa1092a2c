"use strict";
// What all pages do beside showing text: they unpack numbers, make elements, embed Bokeh's figures and
// paint them in the colors of the page, light or dark. Nothing here evaluates text, and nothing is fetched.

const stored = document.getElementById("page-data");
const content = stored && JSON.parse(stored.textContent); // null in a page that asks a server
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let model = null; // Bokeh's document, once it is there

// --- elements --------------------------------------------------------------------------------

const find = (id) => document.getElementById(id);

function make(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== "") made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// A name of a user; marks in it that turn text around do not reach beyond it.
const bdi = (text) => make("bdi", text);

// The cell that names a row of a table.
function rowHead(...parts) {
  const head = make("th");
  head.scope = "row";
  head.append(...parts);
  return head;
}

// A name and what it stands for, in a list of definitions.
function definition(name, ...parts) {
  const pair = make("div"), term = make("dt"), text = make("dd");
  term.append(bdi(name));
  text.append(...parts);
  pair.append(term, text);
  return pair;
}

// The range of a parameter, the interval in it, and a mark at its value; from 0 to 1.
function rangeBar(at, ends) {
  const bar = make("span", undefined, "bar"), mark = make("span", undefined, "at");
  bar.setAttribute("aria-hidden", "true");
  if (ends) {
    const reach = make("span", undefined, "reach");
    reach.style.left = `${100 * ends[0]}%`;
    reach.style.width = `${100 * (ends[1] - ends[0])}%`;
    bar.append(reach);
  }
  mark.style.left = `${100 * at}%`;
  bar.append(mark);
  return bar;
}

// A colored square before a name, in a list that tells colors.
function keyItem(name, color) {
  const item = make("li"), mark = make("span", undefined, "mark");
  mark.style.background = color;
  mark.setAttribute("aria-hidden", "true");
  item.append(mark, " ", bdi(name));
  return item;
}

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

// Texts in the order of a reader: well 2 before well 10.
const inWords = new Intl.Collator("en", {numeric: true});
const isMissing = (value) => value === null || value === "" || Number.isNaN(value);

// Compares two values of a column, for an order with sign 1 or -1; missing values come last.
function compare(a, b, sign = 1) {
  if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
  return sign * (typeof a === "string" ? inWords.compare(a, b) : a - b || 0);
}

// --- colors ----------------------------------------------------------------------------------

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function styles() {
  return {
    ink: css("--ink"), muted: css("--muted"), rule: css("--rule"),
    data: css("--data"), hidden: css("--hidden"),
    runs: [0, 1, 2, 3, 4, 5].map((k) => css(`--run${k}`)),
  };
}

function colorOf(role, noted) {
  if (role === "data") return noted.ink;
  if (role === "muted" || role === "zero") return noted.muted;
  return noted.runs[Number(role.slice(3)) % noted.runs.length];
}

// Paints axes, grids, and all glyphs that have a role.
function paintPlot(plot, noted) {
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

const paintFigures = (noted) => model.roots().forEach((plot) => paintPlot(plot, noted));

// --- figures ---------------------------------------------------------------------------------

// Bokeh's figures take the focus, but no key does anything there: the inputs beside them do.
function unfocusable(root) {
  for (const part of root.querySelectorAll("*")) {
    if (part.tabIndex >= 0) part.tabIndex = -1;
    if (part.shadowRoot) unfocusable(part.shadowRoot);
  }
}

const plotOf = (place) =>
  (Object.entries(content.items[0].roots).find(([, element]) => element === place) || [])[0];

// Lets two inputs show and set the ends of a range of time, and a button show the whole of it. `changed`
// is called after each change, and once for both ends, which Bokeh changes one after the other.
function joinRange(range, [from, to, button], [first, last], step, changed) {
  const digits = Math.max(0, Math.ceil(-Math.log10(step)) + 1);
  const fill = () => {
    from.value = String(Number(range.start.toFixed(digits)));
    to.value = String(Number(range.end.toFixed(digits)));
  };
  let waiting = false;
  for (const end of ["start", "end"]) {
    range.properties[end].change.connect(() => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        fill();
        changed();
      });
    });
  }
  for (const input of [from, to]) {
    input.addEventListener("change", () => {
      const [start, end] = [from.valueAsNumber, to.valueAsNumber]; // NaN where an input is empty
      if (start < end) range.setv({start, end}); else fill();
    });
  }
  button.addEventListener("click", () => range.setv({start: first, end: last}));
  fill();
}

// Embeds the figures of Bokeh; `filled` is called once they are there, and `paint` then and whenever
// the page turns dark or light.
async function embedFigures(filled, paint) {
  if (!content.items.length) return;
  if (window.matchMedia("(pointer: coarse)").matches) {
    // a finger that scrolls the page must not draw boxes
    for (const one of Object.values(content.docs)) {
      for (const root of one.roots) delete root.attributes.toolbar;
    }
  }
  await Bokeh.embed.embed_items(content.docs, content.items);
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
