// The plate as a map, one well in words beside it, and the beginning of all.

const STEEP = 0.02; // share of the values at either end that the colors do not tell apart

const map = {cells: new Map(), grids: []};

// --- colors ----------------------------------------------------------------------------------

function ramp(share) {
  const at = Math.max(0, Math.min(1, share)) * (plate.ramp.length - 1);
  return plate.ramp[Math.round(at)];
}

// What the chosen column colors: a color for each well (null where there is no value), and a legend.
function coloring() {
  const column = columns.get(find("color").value);
  if (column.words) {
    const names = different(column.words);
    const own = (name) => (column.key === QUALITY && QUALITIES.includes(name)
      ? `var(--${name === "failed" ? "none" : `${name}-cell`})` : `var(--run${names.indexOf(name) % 6})`);
    return {color: (k) => (column.words[k] ? own(column.words[k]) : null), names: names.filter(Boolean), own};
  }
  const values = Float64Array.from(column.numbers.filter(Number.isFinite)).sort();
  if (!values.length) return {color: () => null, names: [], own: () => ""};
  const low = quantile(values, STEEP), high = quantile(values, 1 - STEEP);
  const on = column.log ? Math.log : (x) => x, [a, b] = [on(low), on(high)];
  const share = (x) => (b > a ? (on(x) - a) / (b - a) : 0.5);
  return {
    color: (k) => (Number.isFinite(column.numbers[k]) ? ramp(share(column.numbers[k])) : null),
    low, high, column, middle: column.log ? Math.sqrt(low * high) : (low + high) / 2,
    below: values[0] < low, above: values[values.length - 1] > high,
  };
}

function paintMap() {
  const how = coloring();
  for (const [k, cell] of map.cells) {
    const color = how.color(k);
    cell.style.backgroundColor = color || "";
    cell.classList.toggle("nothing", color === null);
  }
  const byQuality = find("color").value === QUALITY;
  find("key-ok").hidden = !byQuality;
  if (byQuality) find("legend").replaceChildren();
  else if (how.names) {
    const list = make("ul", undefined, "key");
    list.setAttribute("aria-label", "Colors of the map");
    list.append(...how.names.slice(0, 24).map((name) => keyItem(name, how.own(name))));
    find("legend").replaceChildren(list);
  } else find("legend").replaceChildren(...colorStrip(how));
}

function colorStrip(how) {
  const title = make("div"), strip = make("div", undefined, "strip"), ends = make("div", undefined, "ends");
  title.append(bdi(titleOf(how.column)), how.column.log ? ", logarithmic" : "");
  strip.style.background = `linear-gradient(90deg, ${plate.ramp.join(", ")})`;
  ends.append(make("span", `${how.below ? "≤ " : ""}${short(how.low, 3)}`), make("span", short(how.middle, 3)),
    make("span", `${how.above ? "≥ " : ""}${short(how.high, 3)}`));
  return [title, strip, ends];
}

// --- cells -----------------------------------------------------------------------------------

function drawGrid(one) {
  const holder = make("div", undefined, "plate");
  holder.style.setProperty("--columns", String(one.columns));
  const several = plate.grids.filter((other) => !other.loose).length > 1;
  const name = one.loose ? one.name : several ? `Plate ${one.name}` : "";
  if (name) { const title = make("h3"); title.append(bdi(name)); holder.append(title); }
  const grid = make("div", undefined, `grid${one.loose ? " loose" : ""}${one.columns > 30 ? " dense" : ""}`);
  grid.setAttribute("role", "grid");
  grid.setAttribute("aria-multiselectable", "true");
  grid.setAttribute("aria-label", name || `Plate of ${one.rows * one.columns} wells`);
  if (one.columns > 30) grid.style.setProperty("--gap", "1px");
  const at = new Map(one.wells.map(([row, column, k]) => [row * one.columns + column, k]));
  const every = one.columns > 30 ? 10 : one.columns > 12 && one.loose ? 4 : 1;
  const head = rowOf(grid);
  head.append(headOf("", "columnheader", "head", "row"));
  for (let c = 0; c < one.columns; c++) {
    const shown = every === 1 || c === 0 || (c + 1) % every === 0;
    head.append(headOf(shown ? String(c + 1) : "", "columnheader", "head", String(c + 1)));
  }
  for (let r = 0; r < one.rows; r++) {
    const line = rowOf(grid);
    const sparse = one.rows > 40 && r % 10;
    const side = one.loose ? String(r * one.columns + 1) : plate.rows[r];
    line.append(headOf(sparse ? "" : side, "rowheader", "head side", side));
    for (let c = 0; c < one.columns; c++) {
      const k = at.get(r * one.columns + c);
      const cell = make("div", undefined, "cell");
      cell.setAttribute("role", "gridcell");
      if (k === undefined) cell.classList.add("empty");
      else {
        cell.dataset.well = k;
        cell.tabIndex = -1;
        if (markOf(k)) cell.classList.add(markOf(k));
        map.cells.set(k, cell);
      }
      line.append(cell);
    }
  }
  holder.append(grid);
  beginGrid(grid, one, at);
  map.grids.push(grid);
  return holder;
}

function rowOf(grid) {
  const line = make("div");
  line.setAttribute("role", "row");
  grid.append(line);
  return line;
}

function headOf(text, role, kind, label) {
  const head = make("div", text, kind);
  head.setAttribute("role", role);
  if (label && !text) head.append(make("span", label, "unseen"));
  return head;
}

// What a screen reader says of a cell, made when it gets the focus.
function nameCell(cell) {
  const k = Number(cell.dataset.well), column = columns.get(find("color").value);
  const parts = [plate.labels[k], qualityOf(k), wordOf(REASON, k)];
  if (column.key !== QUALITY) parts.push(`${column.name} ${cellText(column, k)} ${column.unit}`.trim());
  cell.setAttribute("aria-label", parts.filter(Boolean).join(", "));
}

function beginGrid(grid, one, at) {
  const wellAt = (event) => {
    const cell = event.target.closest(".cell[data-well]");
    return cell ? Number(cell.dataset.well) : -1;
  };
  const first = one.wells.length ? map.cells.get(one.wells[0][2]) : null;
  if (first) { first.tabIndex = 0; nameCell(first); }
  const go = (cell) => {
    for (const other of grid.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    cell.tabIndex = 0;
    nameCell(cell);
    cell.focus();
  };
  grid.addEventListener("pointerover", (event) => hover(wellAt(event)));
  grid.addEventListener("pointerleave", () => hover(-1));
  grid.addEventListener("focusin", (event) => { nameCell(event.target); hover(wellAt(event)); });
  grid.addEventListener("focusout", () => hover(-1));
  grid.addEventListener("click", (event) => {
    const k = wellAt(event);
    if (k < 0) return;
    choose([k], adding);
    go(map.cells.get(k));
  });
  const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  const places = new Map(one.wells.map(([row, column, k]) => [k, [row, column]]));
  grid.addEventListener("keydown", (event) => {
    const k = wellAt(event);
    if (k < 0) return;
    let [row, column] = places.get(k), to;
    if (event.key === "Enter" || event.key === " ") choose([k], event.key === " " || adding);
    else if (event.key === "Home" || event.key === "End") {
      const own = one.wells.filter(([r]) => event.ctrlKey || r === row);
      to = own[event.key === "Home" ? 0 : own.length - 1][2];
    } else if (steps[event.key]) {
      do { // over places without a well
        row += steps[event.key][0];
        column += steps[event.key][1];
        to = at.get(row * one.columns + column);
      } while (to === undefined && row >= 0 && row < one.rows && column >= 0 && column < one.columns);
      if (row < 0 || row >= one.rows || column < 0 || column >= one.columns) to = undefined;
    } else return;
    event.preventDefault();
    if (to !== undefined) go(map.cells.get(to));
  });
}

function markCells() {
  for (const [k, cell] of map.cells) {
    const chosen = state.chosen.has(k);
    cell.classList.toggle("chosen", chosen);
    if (chosen) cell.setAttribute("aria-selected", "true");
    else cell.removeAttribute("aria-selected");
  }
}

function dimCells() {
  for (const [k, cell] of map.cells) cell.classList.toggle("aside", !state.shown[k]);
}

// --- a well in words -------------------------------------------------------------------------

function readOut() {
  const k = state.hovered >= 0 ? state.hovered : state.active;
  if (k < 0) return;
  find("readout-title").replaceChildren("Well ", bdi(plate.labels[k]));
  const rows = [];
  const add = (name, ...parts) => rows.push(definition(name, ...parts));
  add("quality", qualityTag(k));
  if (wordOf(REASON, k)) add("reason", bdi(wordOf(REASON, k)));
  for (const key of plate.metadata) add(columns.get(key).name, bdi(withUnit(columns.get(key), k)));
  for (const key of plate.parameters) {
    const interval = intervalText(key, k);
    add(columns.get(key).name, bdi(withUnit(columns.get(key), k)), interval ? " " : "", interval ? make("span", `(${interval})`, "fact") : "");
  }
  for (const key of [...plate.measures, MISFIT, DISTANCE]) {
    if (Number.isFinite(numberOf(key, k))) add(columns.get(key).name, bdi(withUnit(columns.get(key), k)));
  }
  find("readout").replaceChildren(...rows);
}

function withUnit(column, k) {
  const text = cellText(column, k);
  return column.unit && text !== "–" ? `${text} ${column.unit}` : text;
}

// --- begin -----------------------------------------------------------------------------------

function beginMap() {
  const words = [...columns.values()].filter((one) => one.different && one.different.length <= 24 &&
    one.key !== QUALITY && plate.metadata.includes(one.key)).map((one) => [one.key, one.name]);
  const [parameters, measures, recordings, others] = numericGroups();
  const first = columns.has(QUALITY) ? [[QUALITY, "quality"]] : [];
  fill(find("color"), [["", first], parameters, measures, ["Recordings", [...words, ...recordings[1]]], others]);
  find("color").value = columns.has(QUALITY) ? QUALITY : find("color").value;
  find("color").addEventListener("change", paintMap);
  find("plates").append(...plate.grids.map(drawGrid));
  after.choice.push(markCells, readOut);
  after.filter.push(dimCells);
  after.hover.push(readOut);
  paintMap();
}

let painted = false;

function paint() {
  paintFigures(styles());
  if (painted) paintMultiples();
  painted = true;
  if (plate.spreads.length) drawGroups();
  drawWell();
}

beginFilter();
filter();
beginMap();
beginTable();
beginMultiples();
embedFigures(() => { beginWell(); beginGroups(); }, paint).then(() => {
  readOut();
  ready();
});
