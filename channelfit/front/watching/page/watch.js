// The page of `channelfit watch`: asks its server once a second, and shows what has changed.
// Every text that comes from a run is set as text, never as HTML.
const EVERY = 1000; // ms between two questions
const PATIENCE = 90000; // ms to wait for an answer
const PATIENCE_TRACES = 4 * PATIENCE; // they are computed with low priority, beside the fit
const page = document.body.dataset;

// Bokeh makes style elements, which the page's policy allows only with the page's own nonce.
const nonce = document.currentScript.nonce;
const create = Document.prototype.createElement;
Document.prototype.createElement = function (name, options) {
  const made = create.call(this, name, options);
  if (String(name).toLowerCase() === "style") made.nonce = nonce;
  return made;
};

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function show(node, shown) {
  node.hidden = !shown;
}

function sayOrHide(node, text) {
  say(node, text || "");
  show(node, Boolean(text));
}

function setState(node, state) {
  say(node, state);
  node.className = `state ${state}`;
  show(node, true);
}

class NoAnswer extends Error {}

async function ask(address, patience = PATIENCE) {
  let answer;
  try {
    answer = await fetch(address, { signal: AbortSignal.timeout(patience) });
  } catch {
    throw new NoAnswer("nobody answers");
  }
  if (!answer.ok) throw new NoAnswer(`answered ${answer.status}`);
  const found = await answer.json();
  show(document.querySelector("main"), true); // before a figure is drawn, which asks for its width
  return found;
}

// Asks again and again, also after an error; a page that nobody sees waits. Words say what is wrong.
function repeat(what, every) {
  const again = async () => {
    let pause = every;
    if (!document.hidden) {
      try {
        await what();
        if (find("trouble").dataset.gone) {
          delete find("trouble").dataset.gone;
          sayOrHide(find("trouble"), "");
        }
      } catch (error) {
        find("trouble").dataset.gone = "yes";
        if (error instanceof NoAnswer) {
          sayOrHide(find("trouble"),
            "The server does not answer, so this page stands still. Is channelfit watch still running?");
        } else {
          console.error(error);
          sayOrHide(find("trouble"), `A part of this page could not be shown: ${error.message}. It is tried again.`);
        }
        pause = 3 * every;
      }
    }
    setTimeout(again, pause);
  };
  again();
}

// --- figures -------------------------------------------------------------------------------

class Chart {
  constructor(holder) {
    this.holder = holder;
    this.address = null; // of the figure that is shown
  }

  // Shows columns of numbers in the figure at an address, which is loaded where it is not there. A
  // figure that has its numbers is given none.
  async draw(address, columns = {}) {
    const data = {};
    for (const [name, values] of Object.entries(columns)) {
      data[name] = Float64Array.from(values, (x) => (x === null ? NaN : x));
    }
    if (this.address !== address) {
      const turn = this.turn = (this.turn || 0) + 1;
      const item = await ask(page.at + address);
      if (turn !== this.turn) return; // another figure was chosen in between
      this.holder.replaceChildren();
      const views = await Bokeh.embed.embed_item(item, this.holder.id);
      this.view = views.roots[0];
      this.plot = this.view.model;
      this.address = address;
      unfocusable(this.holder);
      this.paint();
    }
    if (data.x) this.fill(data);
  }

  fill(data) {
    const few = data.x.length <= 60;
    for (const one of this.plot.renderers) if (one.name === "marks") one.visible = few;
    this.plot.renderers[0].data_source.data = data;
  }

  paint() {
    if (this.plot) paintPlot(this.plot, styles());
  }
}

function repaintWith(charts) {
  dark.addEventListener("change", () => charts.forEach((chart) => chart.paint()));
}

// --- a run ---------------------------------------------------------------------------------

function fillList(list, rows) {
  const shown = JSON.stringify(rows);
  if (list.dataset.shown === shown) return;
  list.dataset.shown = shown;
  const places = list.querySelectorAll("dd");
  const same = places.length === rows.length &&
    [...list.querySelectorAll("dt")].every((name, k) => name.textContent === rows[k][0]);
  if (same) {
    rows.forEach(([, text], k) => say(places[k], text));
    return;
  }
  list.replaceChildren(...rows.map(([name, text]) => definition(name, text)));
}

function parameterRow(row) {
  const line = make("tr");
  const bar = make("td", undefined, "word");
  if (row.within !== null) {
    bar.append(make("span", `${Math.round(100 * row.within)} %`, "unseen"), rangeBar(row.within));
  }
  line.append(rowHead(bdi(row.name)), make("td", row.value), make("td", row.unit, "word short"),
    make("td", row.range, "word short"), bar, make("td", row.note, "word free"));
  return line;
}

function runPage() {
  const cost = new Chart(find("cost"));
  const traces = new Chart(find("traces"));
  repaintWith([cost, traces]);
  if (page.back) show(find("back"), true);
  let before = null;
  let experiments = [];

  async function drawCost(history, unit) {
    const some = history.best.some((cost) => cost !== null);
    show(find("cost-part"), some);
    if (!some) return;
    const shown = JSON.stringify(history);
    if (cost.shown === shown) return;
    await cost.draw(`figure/cost/${history.scale}`,
      { x: history.generation, best: history.best, median: history.median });
    cost.plot.left[0].axis_label = unit === "pA^2" ? "cost (pA²)" : "cost";
    cost.shown = shown;
    const last = history.generation.length - 1;
    cost.holder.setAttribute("aria-label",
      `Best cost ${history.best[last]} after ${history.generation[last]} generations, ` +
      `from ${history.best[0]} after the first`);
  }

  async function state() {
    const answer = await ask(`${page.at}state`);
    document.title = `${answer.name}: ${answer.state || "gone"} - channelfit watch`;
    say(find("name"), answer.name);
    if (answer.trouble) {
      sayOrHide(find("trouble"), `Nothing new is known of this run: ${answer.trouble}.`);
      setState(find("state"), "unknown");
      before = null;
      return;
    }
    sayOrHide(find("trouble"), "");
    setState(find("state"), answer.state);
    if (before !== null && before !== answer.state) say(find("news"), `The run is now ${answer.state}.`);
    before = answer.state;
    sayOrHide(find("why"), answer.why);
    say(find("stage"), answer.stage);
    show(find("doing"), answer.state === "running");
    show(find("done"), answer.done !== null);
    if (answer.done !== null) find("done").value = answer.done;
    fillList(find("facts"), answer.facts);
    fillList(find("origin"), [["Folder", answer.folder], ["File", answer.file],
      ["Command", answer.command]].filter(([, text]) => text));
    show(find("report-line"), answer.report);
    show(find("warnings-part"), answer.warnings.length > 0);
    if (find("warnings").childElementCount !== answer.warnings.length) {
      find("warnings").replaceChildren(...answer.warnings.map((text) => {
        const item = make("li");
        item.append(bdi(text));
        return item;
      }));
    }
    show(find("parameters-part"), answer.parameters.length > 0);
    const rows = JSON.stringify(answer.parameters);
    if (find("parameters").dataset.shown !== rows) {
      find("parameters").dataset.shown = rows;
      find("parameters").tBodies[0].replaceChildren(...answer.parameters.map(parameterRow));
    }
    show(find("traces-part"), !answer.of_wells); // a batch has a page of its own
    await drawCost(answer.history, answer.unit);
  }

  function zoom() {
    const [from, to] = [find("from"), find("to")].map((field) => field.valueAsNumber);
    const range = traces.plot.x_range;
    if (Number.isFinite(from) && Number.isFinite(to) && from < to) {
      range.setv({ start: from, end: to });
    }
  }

  async function drawExperiment() {
    const number = Number(find("experiment").value) || 0;
    const one = experiments[number];
    const observed = "x" in one; // points with errors, and not a current by time
    show(find("traces-form"), !observed || experiments.length > 1);
    for (const part of document.querySelectorAll(".of-traces")) show(part, !observed);
    show(find("errors-key"), observed);
    if (observed) {
      traces.address = null; // a new fit is a new figure
      await traces.draw(`figure/data/${number}`);
      traces.holder.setAttribute("aria-label", "Observed numbers with standard errors, and the fit so far");
      return;
    }
    // recordings come first and share a figure
    await traces.draw("figure/data/0", { x: one.time, data: one.data, fit: one.fit });
    zoom(); // new data do not end a look at a part of them
    traces.holder.setAttribute("aria-label", `Current by time: data, and the fit so far over them`);
  }

  async function drawTraces() {
    const answer = await ask(`${page.at}traces`, PATIENCE_TRACES);
    sayOrHide(find("traces-trouble"), answer.trouble);
    show(find("traces-shown"), !answer.trouble);
    if (answer.trouble) return;
    const shown = JSON.stringify(answer);
    if (traces.shown === shown) return;
    const titles = answer.experiments.map((one, k) => `${k + 1}. ${one.title}`);
    if (titles.join("\n") !== experiments.map((one, k) => `${k + 1}. ${one.title}`).join("\n")) {
      find("experiment").replaceChildren(...titles.map((title, k) => new Option(title, k)));
      show(find("experiment-label"), titles.length > 1);
    }
    experiments = answer.experiments;
    await drawExperiment();
    traces.shown = shown;
  }

  find("experiment").addEventListener("change", async () => {
    await drawExperiment();
    reset();
  });
  for (const id of ["from", "to"]) find(id).addEventListener("change", zoom);
  function reset() {
    find("from").value = find("to").value = "";
    traces.view.reset();
  }
  find("whole").addEventListener("click", reset);
  find("traces-form").addEventListener("submit", (event) => { event.preventDefault(); zoom(); });
  repeat(state, EVERY);
  repeat(drawTraces, 2 * EVERY);
}

// --- a queue -------------------------------------------------------------------------------

const CELLS = [["cost", "short"], ["generation", ""], ["time", ""], ["left", ""], ["started", "word"]];

function queueRow(id) {
  const line = make("tr");
  const link = make("a");
  link.href = `${page.base}run/${id}/`;
  link.append(make("bdi"));
  const report = make("a", "report", "note");
  report.href = `${link.href}report`;
  const state = make("td", "", "word free");
  state.append(make("span"), make("bdi", "", "why"));
  line.append(rowHead(link, " ", report), state);
  for (const [key, kind] of CELLS) {
    const cell = make("td", "", kind);
    cell.dataset.label = key;
    line.append(cell);
  }
  return line;
}

function fillQueueRow(line, row) {
  const shown = JSON.stringify(row);
  if (line.shown === shown) return;
  line.shown = shown;
  line.row = row;
  line.words = `${row.name} ${row.fit} ${row.state}`.toLowerCase();
  say(line.cells[0].querySelector("bdi"), row.name);
  if (!row.page) line.cells[0].firstChild.removeAttribute("href"); // a job that is no run
  line.cells[0].lastChild.ariaLabel = `report of ${row.name}`;
  show(line.cells[0].lastChild, row.report);
  setState(line.cells[1].firstChild, row.state);
  sayOrHide(line.cells[1].lastChild, row.why);
  CELLS.forEach(([key], k) => say(line.cells[2 + k], row[key]));
}

function queuePage() {
  const body = find("runs").tBodies[0];
  const lines = new Map();
  let order = null; // [key, 1 or -1]; null as the server orders them
  let rows = [];

  function arrange() {
    const all = rows.map((row) => lines.get(row.id));
    if (order) {
      const [key, sign] = order;
      const value = ({row}) => (key in row.order ? row.order[key] : row[key]);
      all.sort((a, b) => compare(value(a), value(b), sign));
    }
    const words = find("filter").value.trim().toLowerCase();
    let shown = 0;
    all.forEach((line, k) => {
      const fits = !words || line.words.includes(words);
      show(line, fits);
      shown += fits;
      if (body.children[k] !== line) body.insertBefore(line, body.children[k] || null);
    });
    say(find("shown"), words ? `${shown} of ${all.length} shown` : "");
  }

  async function refresh() {
    const answer = await ask(`${page.base}queue`);
    say(find("place"), answer.place);
    document.title = `${answer.counts || "no runs"} - channelfit watch`;
    sayOrHide(find("trouble"), answer.trouble ? `Nothing new is known of these runs: ${answer.trouble}.` : "");
    if (answer.trouble && rows.length) return; // what was known before stays
    say(find("news"), answer.counts ||
      "No run is here yet. One appears as soon as channelfit optimize makes its folder.");
    show(find("runs-part"), answer.rows.length > 0);
    const ids = new Set(answer.rows.map((row) => row.id));
    for (const [id, line] of lines) {
      if (!ids.has(id)) {
        line.remove();
        lines.delete(id);
      }
    }
    for (const row of answer.rows) {
      if (!lines.has(row.id)) lines.set(row.id, queueRow(row.id));
      fillQueueRow(lines.get(row.id), row);
    }
    rows = answer.rows;
    arrange();
  }

  for (const head of find("runs").tHead.querySelectorAll("th[data-order]")) {
    head.firstChild.addEventListener("click", () => {
      const key = head.dataset.order;
      const sign = order && order[0] === key ? -order[1] : 1;
      order = [key, sign];
      for (const other of find("runs").tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      arrange();
    });
  }
  find("filter").addEventListener("input", arrange);
  find("filter-form").addEventListener("submit", (event) => event.preventDefault());
  repeat(refresh, EVERY);
}

document.addEventListener("DOMContentLoaded", page.kind === "run" ? runPage : queuePage);
