// The wells of a plate: what their columns hold, which are shown and which are selected, the table.
// Texts of users stand in JSON and are shown as text, never as HTML.

const plate = content.plate;
const ROWS = 50; // of the table at a time

// --- columns ---------------------------------------------------------------------------------

const columns = new Map(plate.columns.map((row) => {
  const column = {key: row.key, name: row.name, unit: row.unit, meaning: row.meaning, log: row.log === true};
  if (row.numbers !== undefined) column.numbers = new Float64Array(bytes(row.numbers));
  else if (row.at !== undefined) {
    column.different = row.words;
    const at = counts(row.at);
    column.words = Array.from(at, (k) => row.words[k]);
  } else column.words = row.words;
  return [row.key, column];
}));
const QUALITIES = ["ok", "check", "failed"]; // those with a color and a mark
const QUALITY = "quality", REASON = "reason", MISFIT = "page misfit", DISTANCE = "page distance";
const wordOf = (key, k) => (columns.has(key) && columns.get(key).words ? columns.get(key).words[k] : "");
const numberOf = (key, k) => (columns.has(key) && columns.get(key).numbers ? columns.get(key).numbers[k] : NaN);
const titleOf = (column) => (column.unit ? `${column.name} (${column.unit})` : column.name);

const different = (words) => [...new Set(words)].sort((a, b) => compare(a, b));

const RAISED = {"-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹"};

// A number with a few digits; a dash where there is none.
function short(value, digits = 4) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text = value.toPrecision(digits);
  if (size >= 1e-4 && size < 10 ** Math.max(digits, 6)) text = String(Number(text));
  else {
    const [head, power] = value.toExponential(digits - 1).split("e");
    text = `${Number(head)}×10${Array.from(power.replace("+", ""), (c) => RAISED[c]).join("")}`;
  }
  return text.replaceAll("-", "−");
}

function cellText(column, k) {
  return column.numbers ? short(column.numbers[k]) : column.words[k];
}

function intervalText(key, k) {
  const low = numberOf(`${key}_lower`, k), high = numberOf(`${key}_upper`, k);
  if (Number.isNaN(low) || Number.isNaN(high)) return "";
  const end = (value) => (Number.isFinite(value) ? short(value, 3) : "open");
  return `${end(low)} to ${end(high)}`;
}

function median(values) {
  const sorted = Float64Array.from(values).sort();
  const n = sorted.length;
  return n ? (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2 : NaN;
}

// Where the values of a column lie over the whole plate, on the scale on which they are judged.
const known = new Map();
function judged(key) {
  if (!known.has(key)) {
    const values = columns.get(key).numbers.filter(Number.isFinite);
    const log = values.length > 0 && values.every((x) => x > 0);
    const scaled = log ? values.map(Math.log) : values;
    const middle = median(scaled);
    const spread = 1.4826 * median(scaled.map((x) => Math.abs(x - middle)));
    let low = Infinity, high = -Infinity;
    for (const x of scaled) { low = Math.min(low, x); high = Math.max(high, x); }
    known.set(key, {log, middle, spread, low, high});
  }
  return known.get(key);
}

// --- what is shown, and what is selected -----------------------------------------------------

const state = {
  shown: new Uint8Array(plate.n).fill(1),
  chosen: new Set(),
  active: -1, // the well that is shown large
  hovered: -1,
};
const after = {filter: [], choice: [], hover: []};
const qualityOf = (k) => wordOf(QUALITY, k);
const markOf = (k) => (QUALITIES.includes(qualityOf(k)) ? qualityOf(k) : "");

// Selects some wells instead of those before, or in addition to them; the last becomes the large one.
function choose(wells, add = false) {
  if (!add) state.chosen.clear();
  for (const k of wells) {
    if (add && wells.length === 1 && state.chosen.has(k)) state.chosen.delete(k);
    else state.chosen.add(k);
  }
  if (wells.length) state.active = wells[0];
  nameChosen();
  after.choice.forEach((act) => act());
  if (find("only").checked) filter();
}

function nameChosen() {
  const n = state.chosen.size;
  const names = Array.from(state.chosen).slice(0, 4).map((k) => plate.labels[k]).join(", ");
  find("chosen").replaceChildren(...(n ? [bdi(`${n > 1 ? `${n} selected: ` : "selected: "}${names}${n > 4 ? ", …" : ""}`)] : []));
  find("clear").disabled = n === 0;
}

function hover(k) {
  if (state.hovered === k) return;
  state.hovered = k;
  after.hover.forEach((act) => act(k));
}

function filter() {
  const qualities = new Set(Array.from(find("qualities").querySelectorAll("input:checked"), (one) => one.value));
  const words = find("find").value.trim().toLowerCase();
  const only = find("only").checked;
  let n = 0;
  for (let k = 0; k < plate.n; k++) {
    let fits = qualities.has(qualityOf(k)) || (qualityOf(k) === "" && qualities.size > 0);
    fits = fits && (!only || state.chosen.has(k));
    fits = fits && (!words || searched(k).includes(words));
    state.shown[k] = fits ? 1 : 0;
    n += state.shown[k];
  }
  find("count").textContent = `${n.toLocaleString("en")} of ${plate.n.toLocaleString("en")} wells shown`;
  after.filter.forEach((act) => act());
}

function searched(k) {
  return [plate.labels[k], wordOf(REASON, k), wordOf("file", k), ...plate.metadata.map((name) => wordOf(name, k))]
    .join(" ").toLowerCase();
}

function inOrder(order) {
  return Array.from(order).filter((k) => state.shown[k]);
}

// Whether a well is added to the selection: the key that was down at the last click or press.
let adding = false;
for (const name of ["pointerdown", "keydown"]) {
  window.addEventListener(name, (event) => { adding = event.shiftKey || event.ctrlKey || event.metaKey; }, true);
}

function beginFilter() {
  for (const name of plate.qualities) {
    let n = 0;
    for (let k = 0; k < plate.n; k++) n += qualityOf(k) === name;
    const label = make("label", undefined, "choice");
    const box = make("input");
    box.type = "checkbox";
    box.checked = true;
    box.value = name;
    box.autocomplete = "off";
    box.addEventListener("change", filter);
    const words = make("span", undefined, `quality ${QUALITIES.includes(name) ? name : ""}`);
    words.append(bdi(`${name} ${n.toLocaleString("en")}`));
    label.append(box, words);
    find("qualities").append(label);
  }
  let waiting = 0;
  find("find").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 120); });
  find("only").addEventListener("change", filter);
  find("clear").addEventListener("click", () => choose([]));
  window.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.chosen.size) choose([]);
  });
  for (const button of document.querySelectorAll("button[data-reason]")) {
    button.addEventListener("click", () => {
      choose(plate.reasons[Number(button.dataset.reason)]);
      find("map").scrollIntoView();
    });
  }
}

// Choices of a select: pairs of a key and a text, in named groups.
function fill(select, groups, chosen) {
  for (const [label, rows] of groups) {
    if (!rows.length) continue;
    const group = label ? make("optgroup") : select;
    if (label) { group.label = label; select.append(group); }
    for (const [key, text] of rows) group.append(new Option(text, key, false, key === chosen));
  }
}

// Columns of numbers in the groups in which a reader looks for them.
function numericGroups() {
  const named = (keys) => keys.filter((key) => columns.has(key) && columns.get(key).numbers)
    .map((key) => [key, titleOf(columns.get(key))]);
  return [
    ["Parameters", named(plate.parameters)],
    ["Measures", named([MISFIT, DISTANCE, ...plate.measures])],
    ["Recordings", named(plate.metadata)],
    ["Others", named(plate.others)],
  ];
}

// --- the table -------------------------------------------------------------------------------

const table = {page: 0, by: null, sign: 1, order: [], heads: []};

function tableColumns() {
  const which = find("columns").value;
  if (which === "all") return [...columns.values()].filter((one) => one.key !== "well");
  const keys = [QUALITY, ...plate.metadata.slice(0, 6), ...plate.parameters, "rms", "noise", MISFIT, DISTANCE, REASON];
  return keys.filter((key, at) => columns.has(key) && keys.indexOf(key) === at).map((key) => columns.get(key));
}

function drawHeads() {
  const own = [{key: "well", name: "Well", unit: "", meaning: "the name of the well"}, ...tableColumns()];
  table.heads = own;
  find("wells").tHead.rows[0].replaceChildren(...own.map((column) => {
    const head = make("th", undefined, column.words ? "word" : "");
    head.scope = "col";
    const button = make("button");
    button.type = "button";
    button.append(bdi(titleOf(column)));
    if (column.meaning) button.title = column.meaning;
    button.addEventListener("click", () => sortBy(column.key));
    head.append(button);
    return head;
  }));
  drawTable();
}

function sortBy(key) {
  table.sign = table.by === key ? -table.sign : [MISFIT, DISTANCE, "cost", "rms"].includes(key) ? -1 : 1;
  table.by = key;
  table.page = 0;
  drawTable();
}

function sorted() {
  const wells = inOrder(order);
  if (table.by === null) return wells;
  const column = columns.get(table.by);
  const values = table.by === "well" ? plate.labels : column.numbers || column.words;
  return wells.sort((a, b) => compare(values[a], values[b], table.sign));
}

function drawTable() {
  const wells = sorted();
  const pages = Math.max(1, Math.ceil(wells.length / ROWS));
  table.page = Math.max(0, Math.min(table.page, pages - 1));
  const first = table.page * ROWS, here = wells.slice(first, first + ROWS);
  table.order = wells;
  find("rows-of").textContent = wells.length
    ? `wells ${first + 1} to ${first + here.length} of ${wells.length.toLocaleString("en")}` : "no wells";
  find("table-back").disabled = table.page === 0;
  find("table-on").disabled = table.page === pages - 1;
  const heads = find("wells").tHead.rows[0].cells;
  table.heads.forEach((column, at) => {
    if (table.by === column.key) heads[at].setAttribute("aria-sort", table.sign > 0 ? "ascending" : "descending");
    else heads[at].removeAttribute("aria-sort");
  });
  const withIntervals = find("columns").value === "intervals";
  find("wells").tBodies[0].replaceChildren(...here.map((k) => {
    const line = make("tr");
    line.dataset.well = k;
    const button = make("button", undefined, "name");
    button.type = "button";
    button.append(bdi(plate.labels[k]));
    line.append(rowHead(button));
    for (const column of table.heads.slice(1)) line.append(tableCell(column, k, withIntervals));
    return line;
  }));
  markRows();
}

function tableCell(column, k, withIntervals) {
  if (column.key === QUALITY) {
    const cell = make("td", undefined, "word");
    cell.append(qualityTag(k));
    return cell;
  }
  if (column.words) {
    const cell = make("td", undefined, "word long");
    cell.append(bdi(column.words[k]));
    if (column.words[k].length > 40) cell.title = column.words[k];
    return cell;
  }
  const cell = make("td", cellText(column, k));
  const interval = withIntervals && plate.parameters.includes(column.key) ? intervalText(column.key, k) : "";
  if (interval) cell.append(" ", make("span", `(${interval})`, "fact"));
  return cell;
}

function qualityTag(k) {
  const tag = make("span", undefined, `quality ${markOf(k)}`);
  tag.append(bdi(qualityOf(k) || "–"));
  return tag;
}

function markRows() {
  for (const line of find("wells").tBodies[0].rows) {
    const chosen = state.chosen.has(Number(line.dataset.well));
    if (chosen) line.dataset.chosen = "yes"; else delete line.dataset.chosen;
    line.cells[0].firstChild.setAttribute("aria-pressed", String(chosen));
  }
}

function beginTable() {
  find("wells").tBodies[0].addEventListener("click", (event) => {
    const line = event.target.closest("tr");
    const marking = !event.target.closest("button") && String(window.getSelection()); // text to copy
    if (line && !marking) choose([Number(line.dataset.well)], adding);
  });
  find("columns").addEventListener("change", drawHeads);
  find("table-back").addEventListener("click", () => { table.page -= 1; drawTable(); });
  find("table-on").addEventListener("click", () => { table.page += 1; drawTable(); });
  after.filter.push(() => { table.page = 0; drawTable(); });
  after.choice.push(() => {
    const at = table.order.indexOf(state.active);
    const page = Math.floor(at / ROWS);
    if (state.chosen.size && at >= 0 && page !== table.page && !document.activeElement.closest("#wells")) {
      table.page = page;
      drawTable();
    } else markRows();
  });
  drawHeads();
}

const order = counts(plate.order); // outliers first
const onPlate = counts(plate.on_plate);
