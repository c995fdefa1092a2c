// What the report of a fit does: it hands Bokeh the samples that the chosen sweeps and the chosen part
// of the time need.

const COLUMNS = 900; // stretches of which the extremes are drawn

// --- samples ---------------------------------------------------------------------------------

function unpacked(sweep) {
  return {
    at: sweep.at ? counts(sweep.at) : null,
    corners: sweep.corners ? counts(sweep.corners) : null,
    command: floats(sweep.command),
    membrane: sweep.membrane ? floats(sweep.membrane) : null,
    data: sweep.data ? floats(sweep.data) : null,
    fits: sweep.fits.map(floats),
    edges: sweep.edges.map(floats),
    residuals: sweep.residuals ? sweep.residuals.map(floats) : [],
    within: sweep.within,
  };
}

// The place of the first number that is not below x, of `at` or of 0, 1, 2, ...
function place(at, size, x) {
  if (at === null) return Math.max(0, Math.min(size, Math.ceil(x)));
  let low = 0, high = size;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at[middle] < x) low = middle + 1; else high = middle;
  }
  return low;
}

// The part of a line between two times, as the least and the largest of each of many stretches.
// Of stretches [a, b) alone, where they are given; NaN parts one from the next. A line of few corners
// keeps them all, since they may lie anywhere.
function thinned(at, y, step, from, to, stretches) {
  const xs = [], ys = [];
  const first = Math.max(0, place(at, y.length, from / step) - 1);
  const last = Math.min(y.length, place(at, y.length, to / step) + 1);
  const few = at !== null && y.length <= content.most_corners;
  const size = few ? 1 : Math.max(1, Math.floor((last - first) / COLUMNS / 2) * 2);
  const time = (k) => step * (at === null ? k : at[k]);
  for (const [a, b] of stretches || [[0, y.length]]) {
    const begin = Math.max(first, a), end = Math.min(last, b);
    if (begin >= end) continue;
    if (xs.length) { xs.push(time(begin)); ys.push(NaN); }
    for (let k = begin; k < end; k += size) {
      let low = k, high = k;
      for (let j = k + 1; j < Math.min(k + size, end); j++) {
        if (y[j] < y[low]) low = j;
        if (y[j] > y[high]) high = j;
      }
      const one = Math.min(low, high), two = Math.max(low, high);
      xs.push(time(one)); ys.push(y[one]);
      if (two !== one) { xs.push(time(two)); ys.push(y[two]); }
    }
    const final = end - 1;
    if (size > 1) { xs.push(time(final)); ys.push(y[final]); }
  }
  return [xs, ys];
}

function outside(stretches, size) {
  const found = [];
  let before = 0;
  for (const [a, b] of stretches) {
    if (a > before) found.push([Math.max(0, before - 1), Math.min(size, a + 1)]);
    before = b;
  }
  if (before < size) found.push([Math.max(0, before - 1), size]);
  return found;
}

// --- the figures of one experiment -----------------------------------------------------------

class Experiment {
  constructor(number, samples) {
    this.number = number;
    this.samples = samples;
    this.sweeps = samples.sweeps.map(unpacked);
    this.chosen = null; // all sweeps
  }

  begin() {
    const plot = (what) => {
      const id = plotOf(`e${this.number}-${what}-plot`);
      return id === undefined ? null : model.get_model_by_id(id);
    };
    this.plots = {command: plot("command"), current: plot("current"), residual: plot("residual")};
    this.range = this.plots.command.x_range;
    const element = (what) => find(`e${this.number}-${what}`), {span, step, zooms} = this.samples;
    joinRange(this.range, ["from", "to", "whole"].map(element), span, step, () => this.draw());
    zooms.forEach(([start, end], k) =>
      element(`zoom${k}`).addEventListener("click", () => this.range.setv({start, end})));
    const choice = element("sweep");
    if (!choice) return;
    choice.addEventListener("change", () => {
      this.chosen = choice.value === "all" ? null : Number(choice.value);
      this.draw();
    });
  }

  draw() {
    const {step} = this.samples, from = this.range.start, to = this.range.end;
    const shown = this.sweeps.map((_, k) => k).filter((k) => this.chosen === null || k === this.chosen);
    const put = (what, line, color) => {
      const source = model.get_model_by_name(`e${this.number}-${what}`);
      if (source === null) return [];
      const found = shown.map((k) => line(this.sweeps[k])).map((one) => one || [[], []]);
      const ys = found.map((one) => one[1]);
      source.data = {xs: found.map((one) => one[0]), ys, color: shown.map(color)};
      return ys;
    };
    const hold = (what, lines, share) => {
      const found = this.plots[what] && ends(lines, share);
      if (found) this.plots[what].y_range.setv(found);
    };
    const noted = styles();
    const ramp = this.samples.ramps[dark.matches ? "dark" : "light"];
    const several = this.samples.runs.length > 1;
    const own = (k) => ramp[k];
    const clamped = this.sweeps.some((s) => s.membrane);
    const potentials = put("command", (s) => thinned(s.corners, s.command, step, from, to),
      several ? () => noted.data : clamped ? () => noted.muted : own);
    potentials.push(...put("membrane",
      (s) => s.membrane && thinned(s.at, s.membrane, step, from, to), own));
    hold("command", potentials, 0.1);
    const counted = [...put("data",
      (s) => s.data && thinned(s.at, s.data, step, from, to, s.within), () => noted.data)];
    put("hidden", (s) => s.data && thinned(s.at, s.data, step, from, to, outside(s.within, s.data.length)),
      () => noted.hidden);
    const left = [];
    this.samples.runs.forEach((run, f) => {
      const color = several ? () => noted.runs[run % noted.runs.length] : own;
      counted.push(...put(`fit${f}`, (s) => thinned(s.at, s.fits[f], step, from, to), color));
      left.push(...put(`residual${f}`,
        (s) => s.data && thinned(s.at, residual(s, f, this.samples.residual_scale), step, from, to, s.within), color));
    });
    for (const f of [0, 1]) {
      put(`edge${f}`, (s) => s.edges[f] && thinned(s.at, s.edges[f], step, from, to), own);
    }
    hold("current", counted, 0.05);
    hold("residual", left, 0.08);
  }
}

// Residuals that are not in the page are the difference of fit and data, times a factor.
function residual(sweep, f, scale) {
  sweep.residuals[f] = sweep.residuals[f] || sweep.fits[f].map((y, k) => scale * (y - sweep.data[k]));
  return sweep.residuals[f];
}

// --- begin -----------------------------------------------------------------------------------

const experiments = content.experiments.map((one, k) => new Experiment(k, one));

function paint() {
  paintFigures(styles());
  experiments.forEach((one) => one.draw());
}

embedFigures(() => experiments.forEach((one) => one.begin()), paint).then(ready);
