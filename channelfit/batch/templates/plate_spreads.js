// The distributions of parameters, and pairs of columns, divided into groups of wells.

const MOST_INTERVALS = 2000; // of a distribution

// --- colors and groups -----------------------------------------------------------------------

const MARKERS = ["circle", "square", "triangle", "diamond", "inverted_triangle", "hex"];

// What divides the wells, and the color and marker of each well.
function division() {
  const key = find("divide").value;
  if (!key) return {names: [], of: () => 0, color: () => css("--run0"), marker: (k) => (markOf(k) === "check" ? "triangle" : "circle")};
  const column = columns.get(key);
  const named = column.numbers ? Array.from(column.numbers, (x) => (Number.isNaN(x) ? "" : short(x))) : column.words;
  const names = different(named);
  const at = new Map(names.map((name, g) => [name, g]));
  const color = (g) => (key === QUALITY && QUALITIES.includes(names[g])
    ? css(`--${names[g]}`) : css(g < 6 ? `--run${g}` : "--muted"));
  return {names, of: (k) => at.get(named[k]), color, marker: (k) => MARKERS[at.get(named[k]) % MARKERS.length]};
}

function drawKey(groups) {
  find("divide-key").replaceChildren(...groups.names.map((name, g) => keyItem(name || "(none)", groups.color(g))));
}

// --- distributions ---------------------------------------------------------------------------

const quantile = (sorted, share) => sorted[Math.round(share * (sorted.length - 1))];

// The range of an axis that holds nearly all values; lone ones far beyond it are counted instead.
function usualRange(sorted, log) {
  const scaled = log ? sorted.map(Math.log) : sorted;
  const [a, b] = [quantile(scaled, 0.25), quantile(scaled, 0.75)];
  const room = 6 * (b - a) || Math.abs(b) * 0.1 || 1;
  let low = Math.max(scaled[0], a - room), high = Math.min(scaled[scaled.length - 1], b + room);
  const edge = 0.04 * (high - low) || 0.05 * Math.abs(high) || 1;
  low -= edge;
  high += edge;
  return {low, high, back: (x) => (log ? Math.exp(x) : x), on: (x) => (log ? Math.log(x) : x)};
}

function drawSpreads(groups) {
  plate.spreads.forEach((name, at) => drawSpread(name, at, groups));
}

function drawSpread(name, at, groups) {
  const column = columns.get(name), numbers = column.numbers, log = column.log;
  const wells = [];
  for (let k = 0; k < plate.n; k++) if (state.shown[k] && Number.isFinite(numbers[k])) wells.push(k);
  const put = (what, data) => { model.get_model_by_name(`spread-${at}-${what}`).data = data; };
  const plot = model.get_model_by_id(plotOf(`spread-${at}-plot`));
  const words = find(`spread-${at}-words`);
  if (!wells.length) {
    words.textContent = "No well that is shown has a value.";
    put("bars", {left: [], right: [], top: [], bottom: [], color: []});
    put("intervals", {x0: [], x1: [], y: [], color: []});
    put("points", {x: [], y: [], color: [], marker: [], well: []});
    put("rings", {x: [], y: [], color: []});
    return;
  }
  const values = Float64Array.from(wells, (k) => numbers[k]).sort();
  const range = usualRange(values, log);
  plot.x_range.setv({start: range.back(range.low), end: range.back(range.high)});
  setTicks(plot.below[0], range, log, 4);
  const n = Math.max(1, groups.names.length);
  put("bars", histogram(wells, numbers, values, range, groups, n));
  // below the histogram each group has a strip, in which wells stand in the order of their values
  const parts = Array.from({length: n}, () => []);
  for (const k of wells) parts[groups.of(k)].push(k);
  const deep = 1.3, points = {x: [], y: [], color: [], marker: [], well: []};
  const lines = {x0: [], x1: [], y: [], color: []}, seen = parts.filter((part) => part.length).length;
  let top = -0.06;
  parts.forEach((part, g) => {
    if (!part.length) return;
    part.sort((a, b) => numbers[a] - numbers[b]);
    const height = (deep - 0.04 * seen) * (part.length / wells.length * 0.5 + 0.5 / seen);
    const every = Math.max(1, Math.ceil(wells.length / MOST_INTERVALS));
    part.forEach((k, rank) => {
      const y = top - (height * (rank + 0.5)) / part.length;
      points.x.push(numbers[k]); points.y.push(y); points.well.push(k);
      points.color.push(groups.color(g)); points.marker.push(groups.marker(k));
      const a = numberOf(`${name}_lower`, k), b = numberOf(`${name}_upper`, k);
      if (rank % every || Number.isNaN(a) || Number.isNaN(b)) return;
      lines.x0.push(Math.max(a, range.back(range.low))); lines.x1.push(Math.min(b, range.back(range.high)));
      lines.y.push(y); lines.color.push(groups.color(g));
    });
    top -= height + 0.04;
  });
  put("intervals", lines);
  put("points", points);
  plot.y_range.setv({start: top, end: 1.08});
  const beyond = values.filter((x) => range.on(x) < range.low || range.on(x) > range.high).length;
  const unit = column.unit ? ` ${column.unit}` : "";
  words.replaceChildren(bdi(`${wells.length.toLocaleString("en")} wells: median ${short(quantile(values, 0.5))}${unit}, ` +
    `90 % between ${short(quantile(values, 0.05), 3)} and ${short(quantile(values, 0.95), 3)}${unit}` +
    `${beyond ? `; ${beyond} beyond the axis` : ""}`));
  ring(`spread-${at}`);
}

// Up to so many ticks at 1, 2 and 5 times powers of ten, on a linear or a logarithmic axis.
// Bokeh's own are fewer on an axis of one or two decades, and their labels longer: 5.000e−5.
function niceTicks(low, high, log, most) {
  if (log && high / low > 8) {
    const steps = high / low > 10 ** most ? [1] : high / low > 10 ** (most / 2) ? [1, 3] : [1, 2, 5];
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const step of steps) {
        const tick = Number(`${step}e${power}`);
        if (tick >= low && tick <= high) found.push(tick);
      }
    }
    const every = Math.ceil(found.length / (most + 2));
    return found.filter((_, k) => k % every === 0);
  }
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-12); k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function setTicks(axis, range, log, most) {
  const ticks = niceTicks(range.back(range.low), range.back(range.high), log, most);
  axis.ticker.ticks = ticks;
  axis.major_label_overrides = new Map(ticks.map((tick) => [tick, short(tick, 3)]));
}

function histogram(wells, numbers, values, range, groups, n) {
  const width = 2 * (range.on(quantile(values, 0.75)) - range.on(quantile(values, 0.25))) / Math.cbrt(values.length);
  const bins = Math.max(8, Math.min(48, Math.round((range.high - range.low) / width) || 8));
  const tall = Array.from({length: bins}, () => new Uint32Array(n));
  for (const k of wells) {
    const bin = Math.floor((bins * (range.on(numbers[k]) - range.low)) / (range.high - range.low));
    if (bin >= 0 && bin < bins) tall[bin][groups.of(k)] += 1;
  }
  const most = Math.max(1, ...tall.map((counted) => counted.reduce((a, b) => a + b, 0)));
  const data = {left: [], right: [], top: [], bottom: [], color: []};
  tall.forEach((counted, bin) => {
    let bottom = 0;
    const edge = (b) => range.back(range.low + ((range.high - range.low) * b) / bins);
    counted.forEach((count, g) => {
      if (!count) return;
      data.left.push(edge(bin + 0.04)); data.right.push(edge(bin + 0.96));
      data.bottom.push(bottom / most); data.top.push((bottom + count) / most);
      data.color.push(groups.color(g));
      bottom += count;
    });
  });
  return data;
}

// Rings around the points of selected wells.
function ring(name) {
  const {x, y, well} = model.get_model_by_name(`${name}-points`).data;
  const rings = {x: [], y: [], color: []};
  for (let p = 0; p < well.length; p++) {
    if (!state.chosen.has(well[p])) continue;
    rings.x.push(x[p]); rings.y.push(y[p]); rings.color.push(css("--ring"));
  }
  model.get_model_by_name(`${name}-rings`).data = rings;
}

// --- pairs -----------------------------------------------------------------------------------

const PAIR_SCALES = [[false, false], [true, false], [false, true], [true, true]];

function drawPairs(groups) {
  const [across, up] = [columns.get(find("across").value), columns.get(find("up").value)];
  const which = PAIR_SCALES.findIndex(([x, y]) => x === across.log && y === up.log);
  PAIR_SCALES.forEach((_, k) => { find(`pairs-${k}-plot`).hidden = k !== which; });
  const points = {x: [], y: [], color: [], marker: [], well: []};
  const wells = [];
  for (let k = 0; k < plate.n; k++) {
    const x = across.numbers[k], y = up.numbers[k];
    if (!state.shown[k] || !Number.isFinite(x) || !Number.isFinite(y)) continue;
    wells.push(k);
    points.x.push(x); points.y.push(y); points.well.push(k);
    points.color.push(groups.color(groups.of(k))); points.marker.push(groups.marker(k));
  }
  const plot = model.get_model_by_id(plotOf(`pairs-${which}-plot`));
  const hold = (range, axis, values, log) => {
    if (!values.length) return null;
    const usual = usualRange(Float64Array.from(values).sort(), log);
    setTicks(axis, usual, log, 6);
    range.setv({start: usual.back(usual.low), end: usual.back(usual.high)});
    return usual;
  };
  const x = hold(plot.x_range, plot.below[0], points.x, across.log);
  const y = hold(plot.y_range, plot.left[0], points.y, up.log);
  model.get_model_by_name("pairs-points").data = points;
  find("across-name").replaceChildren(bdi(titleOf(across)));
  find("up-name").replaceChildren(bdi(titleOf(up)));
  find(`pairs-${which}-plot`).setAttribute("aria-label",
    `${up.name} against ${across.name}; the numbers are in the table of wells`);
  let beyond = 0;
  if (x && y) {
    points.x.forEach((value, p) => {
      const [a, b] = [x.on(value), y.on(points.y[p])];
      beyond += a < x.low || a > x.high || b < y.low || b > y.high;
    });
  }
  find("pairs-words").textContent = `${wells.length.toLocaleString("en")} wells` +
    `${wells.length > 2 ? `; rank correlation ${short(rankCorrelation(points.x, points.y), 2)}` : ""}` +
    `${beyond ? `; ${beyond} beyond the axes` : ""}. Triangles are wells to be checked, unless the wells are divided.`;
  ringPairs();
}

function ranks(values) {
  const at = Array.from(values.keys()).sort((a, b) => values[a] - values[b]);
  const found = new Float64Array(values.length);
  for (let a = 0; a < at.length;) { // equal values share their mean rank
    let b = a;
    while (b < at.length && values[at[b]] === values[at[a]]) b++;
    for (let k = a; k < b; k++) found[at[k]] = (a + b - 1) / 2;
    a = b;
  }
  return found;
}

function rankCorrelation(x, y) {
  const [a, b] = [ranks(x), ranks(y)], middle = (x.length - 1) / 2;
  let xy = 0, xx = 0, yy = 0;
  for (let k = 0; k < a.length; k++) {
    xy += (a[k] - middle) * (b[k] - middle);
    xx += (a[k] - middle) ** 2;
    yy += (b[k] - middle) ** 2;
  }
  return xy / Math.sqrt(xx * yy);
}

// Rings and intervals of selected wells, or the intervals of all.
function ringPairs() {
  ring("pairs");
  const {x, y, well, color} = model.get_model_by_name("pairs-points").data;
  const all = find("intervals").checked;
  const [across, up] = [find("across").value, find("up").value];
  const put = (name, key, along, other) => {
    const lines = {a: [], b: [], c: [], color: []};
    for (let p = 0; p < well.length; p++) {
      const low = numberOf(`${key}_lower`, well[p]), high = numberOf(`${key}_upper`, well[p]);
      if (!(all || state.chosen.has(well[p])) || !Number.isFinite(low) || !Number.isFinite(high)) continue;
      lines.a.push(columns.get(key).log ? Math.max(low, 1e-12 * along[p]) : low);
      lines.b.push(high); lines.c.push(other[p]);
      lines.color.push(state.chosen.has(well[p]) ? css("--ring") : color[p]);
    }
    model.get_model_by_name(`pairs-${name}`).data = lines;
  };
  put("across", across, x, y);
  put("along", up, y, x);
}

// --- both ------------------------------------------------------------------------------------

function drawGroups() {
  const groups = division();
  drawKey(groups);
  drawSpreads(groups);
  drawPairs(groups);
}

// A click on a point, or a box around several, selects their wells.
function listen(name) {
  const source = model.get_model_by_name(name);
  let mine = false;
  source.selected.properties.indices.change.connect(() => {
    const picked = source.selected.indices;
    if (mine || !picked.length) return;
    const wells = picked.map((p) => source.data.well[p]);
    mine = true;
    source.selected.indices = []; // so that the same point can be clicked again
    mine = false;
    choose(wells, adding);
  });
  source.inspect.connect(() => {
    const [p] = source.inspected.indices;
    hover(p === undefined ? -1 : source.data.well[p]);
  });
}

function beginGroups() {
  if (!plate.spreads.length) return;
  fill(find("divide"), [["", [["", "nothing"]]], ["", plate.groups.map((key) => [key, columns.get(key).name])]], "");
  const groups = numericGroups();
  fill(find("across"), groups, plate.pair[0]);
  fill(find("up"), groups, plate.pair[1]);
  plate.spreads.forEach((_, at) => listen(`spread-${at}-points`));
  listen("pairs-points");
  find("divide").addEventListener("change", drawGroups);
  for (const id of ["across", "up"]) find(id).addEventListener("change", () => drawPairs(division()));
  find("intervals").addEventListener("change", ringPairs);
  after.filter.push(drawGroups);
  after.choice.push(() => {
    plate.spreads.forEach((_, at) => ring(`spread-${at}`));
    ringPairs();
  });
}
