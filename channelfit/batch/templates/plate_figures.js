// The traces of wells, small and large.

const PER_PAGE = 24; // small figures at a time
const STRIP = 26; // pixels of a small figure for the residuals
const NOISES = 5; // the band of the residuals in a small figure, in standard deviations of the noise
const MISSING = 65535, TOP = 65534; // of samples of 16 bits

// --- traces ----------------------------------------------------------------------------------

const traces = (() => {
  const given = plate.traces;
  if (!given.wells) return {of: () => null};
  const wells = counts(given.wells), time = floats(given.time), n = time.length;
  const rows = new Map(Array.from(wells, (k, row) => [k, row]));
  const [bits, spans] = [{}, {}];
  for (const what of ["data", "fit", "residual"]) {
    bits[what] = new Uint16Array(bytes(given[what]));
    spans[what] = floats(given[`${what}_span`]);
  }
  const line = (what, row) => {
    const low = spans[what][2 * row], width = spans[what][2 * row + 1] - low || 1;
    return Float64Array.from(bits[what].subarray(row * n, (row + 1) * n),
      (code) => (code === MISSING ? NaN : low + (width * code) / TOP));
  };
  return {
    time,
    per_pA: given.per_pA,
    of(k) {
      const row = rows.get(k);
      return row === undefined ? null
        : {data: line("data", row), fit: line("fit", row), residual: line("residual", row)};
    },
    span(k) {
      const row = rows.get(k);
      return row === undefined ? null : [spans.data[2 * row], spans.data[2 * row + 1]];
    },
  };
})();

// --- small figures ---------------------------------------------------------------------------

const small = {page: 0, wells: []};

function drawMultiples() {
  const wells = inOrder(find("order").value === "order" ? order : onPlate);
  const pages = Math.max(1, Math.ceil(wells.length / PER_PAGE));
  small.page = Math.max(0, Math.min(small.page, pages - 1));
  small.wells = wells.slice(small.page * PER_PAGE, (small.page + 1) * PER_PAGE);
  find("page-of").textContent = wells.length
    ? `${small.page * PER_PAGE + 1} to ${small.page * PER_PAGE + small.wells.length} of ${wells.length.toLocaleString("en")}`
    : "no wells";
  find("back").disabled = small.page === 0;
  find("on").disabled = small.page === pages - 1;
  find("multiples").replaceChildren(...small.wells.map(oneWell));
  paintMultiples();
  markMultiples();
}

function oneWell(k) {
  const button = make("button", undefined, "one");
  button.type = "button";
  button.dataset.well = k;
  const top = make("span", undefined, "top");
  top.append(bdi(plate.labels[k]), qualityTag(k));
  const under = make("span", undefined, "under");
  const distance = numberOf(DISTANCE, k), misfit = numberOf(MISFIT, k);
  under.append(make("span", Number.isFinite(distance) ? `distance ${short(distance, 2)}` : "no fit"),
    make("span", Number.isFinite(misfit) ? `misfit ${short(misfit, 3)}` : ""));
  button.append(top);
  if (traces.of(k)) {
    const canvas = make("canvas");
    canvas.setAttribute("aria-hidden", "true");
    button.append(canvas);
  } else button.append(make("span", "no trace in this page", "note"));
  button.append(under);
  return button;
}

function paintMultiples() {
  const same = find("same").checked;
  let common = null;
  if (same) {
    for (const k of small.wells) {
      const span = traces.span && traces.span(k);
      if (span) common = common ? [Math.min(common[0], span[0]), Math.max(common[1], span[1])] : span;
    }
  }
  const colors = {data: css("--data"), fit: css("--run0"), zero: css("--rule")};
  for (const button of find("multiples").children) {
    const canvas = button.querySelector("canvas");
    if (canvas) paintOne(canvas, Number(button.dataset.well), common, colors);
  }
}

// Data and fit of a well above, and below them what the fit leaves, within a band of its noise.
function paintOne(canvas, k, common, colors) {
  const ratio = window.devicePixelRatio || 1, line = traces.of(k);
  const width = canvas.clientWidth || 170, height = canvas.clientHeight || 118, above = height - STRIP;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const {time} = traces, from = time[0], across = time[time.length - 1] - from || 1;
  const x = (t) => 1 + ((width - 2) * (t - from)) / across;
  const [low, high] = common || usualSpan(line);
  const y = (value) => above - 4 - ((above - 7) * (value - low)) / (high - low || 1);
  const draw = (values, place, color, thick) => {
    pen.strokeStyle = color;
    pen.lineWidth = thick;
    pen.lineJoin = "round";
    pen.beginPath();
    let drawing = false;
    for (let at = 0; at < values.length; at++) {
      if (Number.isNaN(values[at])) { drawing = false; continue; }
      if (drawing) pen.lineTo(x(time[at]), place(values[at])); else pen.moveTo(x(time[at]), place(values[at]));
      drawing = true;
    }
    pen.stroke();
  };
  const level = (place) => {
    pen.strokeStyle = colors.zero;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(0, place);
    pen.lineTo(width, place);
    pen.stroke();
  };
  level(y(0));
  const noisy = isNoisy(line, above);
  if (noisy) draw(line.data, y, colors.data, 0.8);
  draw(line.fit, y, colors.fit, noisy ? 1.5 : 2.4);
  if (!noisy) draw(line.data, y, colors.data, 0.8);
  const middle = above + STRIP / 2, known = numberOf("noise", k);
  const own = ends([line.residual], 0) || {start: -1, end: 1};
  const band = known > 0 ? NOISES * known * traces.per_pA : Math.max(-own.start, own.end);
  level(middle);
  draw(line.residual, (value) => middle - ((STRIP / 2 - 1) * Math.max(-1, Math.min(1, value / band))), colors.fit, 0.7);
}

// Whether the noise of a recording is broader than the line of a fit, in a figure of so many pixels.
function isNoisy({data, residual}, pixels) {
  let squares = 0, n = 0, low = Infinity, high = -Infinity;
  for (let at = 0; at < data.length; at++) {
    if (Number.isNaN(residual[at])) continue;
    squares += residual[at] ** 2;
    n += 1;
    low = Math.min(low, data[at]);
    high = Math.max(high, data[at]);
  }
  return n > 0 && (pixels * Math.sqrt(squares / n)) / (high - low || 1) > 1.2;
}

// The span of nearly all samples: a capacitive spike must not flatten the rest.
function usualSpan(line) {
  const values = Float64Array.from(line.data.filter(Number.isFinite)).sort();
  if (!values.length) return [0, 1];
  let [low, high] = [quantile(values, 0.005), quantile(values, 0.995)];
  for (const y of line.fit) {
    if (y < low) low = y;
    if (y > high) high = y;
  }
  return [low, high];
}

function markMultiples() {
  for (const button of find("multiples").children) {
    button.setAttribute("aria-pressed", String(state.chosen.has(Number(button.dataset.well))));
  }
}

function beginMultiples() {
  find("multiples").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    choose([Number(button.dataset.well)], adding);
    if (!adding) find("well").scrollIntoView();
  });
  const turn = (by) => () => { small.page += by; drawMultiples(); };
  find("back").addEventListener("click", turn(-1));
  find("on").addEventListener("click", turn(1));
  find("order").addEventListener("change", () => { small.page = 0; drawMultiples(); });
  find("same").addEventListener("change", paintMultiples);
  after.filter.push(() => { small.page = 0; drawMultiples(); });
  after.choice.push(markMultiples);
  let width = 0;
  new ResizeObserver(() => {
    if (find("multiples").clientWidth !== width) { width = find("multiples").clientWidth; paintMultiples(); }
  }).observe(find("multiples"));
  drawMultiples();
}

// --- one well --------------------------------------------------------------------------------

const large = {};

function setLine(name, x, y) {
  model.get_model_by_name(name).data = {x, y};
}

function drawWell() {
  const k = state.active;
  if (k < 0) return;
  find("well-name").textContent = plate.labels[k];
  find("well-reason").replaceChildren(qualityTag(k), wordOf(REASON, k) ? ": " : "", bdi(wordOf(REASON, k)));
  const rank = order.indexOf(k) + 1;
  find("well-rank").textContent = `${rank.toLocaleString("en")} of ${plate.n.toLocaleString("en")}, outliers first`;
  find("previous").disabled = rank === 1;
  find("next").disabled = rank === plate.n;
  const line = traces.of(k);
  find("well-shown").hidden = !line;
  find("well-none").hidden = Boolean(line);
  if (line && large.current) {
    const noisy = isNoisy(line, large.current.inner_height || 250);
    setLine("well-under", ...(noisy ? [traces.time, line.data] : [[], []]));
    setLine("well-over", ...(noisy ? [[], []] : [traces.time, line.data]));
    setLine("well-fit", traces.time, line.fit);
    setLine("well-left", traces.time, line.residual);
    frameWell(line);
  }
  drawValues(k);
}

function frameWell(line) {
  const {time} = traces, {start, end} = large.current.x_range;
  const within = (values) => values.filter((_, at) => time[at] >= start && time[at] <= end);
  const current = ends([within(line.data), within(line.fit)], 0.05);
  const residual = ends([within(line.residual)], 0.08);
  if (current) large.current.y_range.setv(current);
  if (residual) large.residual.y_range.setv(residual);
}

function drawValues(k) {
  find("values").tBodies[0].replaceChildren(...plate.parameters.map((name) => {
    const line = make("tr"), {log, middle, spread, low, high} = judged(name);
    const column = columns.get(name), value = column.numbers[k];
    const unit = make("td", undefined, "word");
    unit.append(bdi(column.unit));
    const scaled = (x) => (log ? Math.log(Math.max(x, 1e-300)) : x);
    const apart = (scaled(value) - middle) / spread;
    const place = make("td");
    if (Number.isFinite(value) && high > low) {
      const at = (x) => Math.max(0, Math.min(1, (scaled(x) - low) / (high - low)));
      const a = numberOf(`${name}_lower`, k), b = numberOf(`${name}_upper`, k);
      const ends = Number.isNaN(a) || Number.isNaN(b) ? null : [at(a), at(b)];
      place.append(rangeBar(at(value), ends));
    }
    line.append(rowHead(bdi(column.name)), make("td", short(value)), make("td", intervalText(name, k)), unit,
      make("td", short(log ? Math.exp(middle) : middle)),
      make("td", Number.isFinite(apart) && spread > 0 ? (apart > 0 ? "+" : "") + short(apart, 2) : "–"), place);
    return line;
  }));
}

function beginWell() {
  const plot = (place) => model.get_model_by_id(plotOf(place));
  large.current = plot("well-current");
  large.residual = plot("well-residual");
  const range = large.current.x_range, {time} = traces;
  if (time) {
    const [start, end] = [time[0], time[time.length - 1]];
    range.setv({start, end});
    joinRange(range, ["from", "to", "whole"].map(find), [start, end], (end - start) / time.length, () => {
      const line = traces.of(state.active);
      if (line) frameWell(line);
    });
  }
  const step = (by) => () => choose([order[order.indexOf(state.active) + by]]);
  find("previous").addEventListener("click", step(-1));
  find("next").addEventListener("click", step(1));
  after.choice.push(drawWell);
  state.active = order.length ? order[0] : -1;
}
