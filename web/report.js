// The rows of a report: tables that sort, filter, scroll and export, charts, and buttons that copy. The page itself, with coverage,
// verdict and findings, is plain HTML. Texts of the data become text nodes only.
import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "@tanstack/virtual-core";
import uPlot from "uplot";
import { Timeline } from "./timeline.js";

const ROW_HEIGHT = 28; // pixels, as in report.css
const MOST_CHOICES = 2000; // values of a column in a menu: the ranks of a large run, too
const CHART_PARTS = 1000; // of a chart's x axis
const WAIT = 120; // milliseconds after the last key, before a filter is applied

function element(tag, facts = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(facts)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

async function readData() {
  const text = atob(document.getElementById("data").textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function shown(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "" : value > 0 ? "inf" : "-inf";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(3).replace("e+", "e");
}

class RowTable {
  constructor(place, table, strings) {
    this.place = place;
    this.table = table;
    this.strings = strings;
    this.count = table.columns.length ? table.columns[0].values.length : 0;
    for (const column of table.columns) {
      // No value is NaN; a text is its place in the table of strings.
      const values = column.number ? new Float64Array(this.count) : new Uint32Array(this.count);
      column.values.forEach((value, row) => (values[row] = value === null ? NaN : Number(value)));
      column.values = values;
    }
    this.order = Uint32Array.from({ length: this.count }, (_, row) => row);
    this.sorted = null; // {column, down}
    this.choices = new Map(); // column -> string
    this.text = "";
    this.isRegex = false;
    this.chosen = -1;
    this.build();
    this.update();
  }

  cell(column, row) {
    return column.number ? shown(column.values[row]) : this.strings[column.values[row]];
  }

  build() {
    const { columns, title } = this.table;
    this.search = element("input", { type: "search", placeholder: "Filter: text", title: "Rows that hold this text ( / )" });
    this.search.setAttribute("aria-label", `Filter ${title}`);
    this.regex = element("input", { type: "checkbox" });
    let waiting = 0;
    const changed = () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        this.text = this.search.value;
        this.isRegex = this.regex.checked;
        this.update();
      }, WAIT);
    };
    this.search.addEventListener("input", changed);
    this.regex.addEventListener("change", changed);
    this.menus = new Map();
    const menus = [];
    for (const column of columns.filter((column) => column.choice)) {
      const menu = this.menu(column);
      if (menu) menus.push(menu);
    }
    this.state = element("span", { className: "quiet small", role: "status" });
    const save = element("button", { type: "button", className: "export" }, "Export CSV");
    save.addEventListener("click", () => this.export());
    const clear = element("button", { type: "button", className: "clear" }, "Clear");
    clear.addEventListener("click", () => this.filter({}));
    const tools = element("div", { className: "tools" }, this.search, element("label", { className: "small" }, this.regex, " regex"));
    tools.append(...menus, clear, save, this.state);

    this.grid = element("div", { className: "grid", tabIndex: 0, role: "grid" });
    this.grid.setAttribute("aria-label", title);
    this.head = element("div", { className: "row head", role: "row" });
    this.template = columns.map((column) => `${this.width(column)}ch`).join(" ");
    this.head.style.gridTemplateColumns = this.template;
    for (const column of columns) {
      const button = element("button", { type: "button", className: column.number ? "n" : "", title: `Sort by ${column.title}` }, column.title);
      button.addEventListener("click", () => this.sort(column));
      const holder = element("div", { role: "columnheader" }, button);
      holder.style.display = "grid";
      column.header = holder;
      column.button = button;
      this.head.append(holder);
    }
    this.body = element("div", { className: "body", role: "rowgroup" });
    this.grid.append(element("div", { role: "rowgroup", className: "head" }, this.head), this.body);
    this.detail = element("dl", { className: "detail", hidden: true });
    this.place.append(tools, this.grid, this.detail);
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("[data-at]");
      if (row) this.choose(Number(row.dataset.at));
    });
    this.scroll = new Virtualizer({
      count: this.count,
      getScrollElement: () => this.grid,
      estimateSize: () => ROW_HEIGHT,
      overscan: 12,
      scrollToFn: elementScroll,
      observeElementRect,
      observeElementOffset,
      onChange: () => this.draw(),
    });
    this.scroll._didMount();
  }

  menu(column) {
    const counts = new Map();
    for (const id of column.values) counts.set(id, (counts.get(id) || 0) + 1);
    if (counts.size < 2 || counts.size > MOST_CHOICES) return null;
    const menu = element("select", {}, element("option", { value: "" }, `${column.title}: all`));
    menu.setAttribute("aria-label", column.title);
    const ids = [...counts.keys()].sort((a, b) => (this.strings[a] < this.strings[b] ? -1 : 1));
    for (const id of ids) menu.append(element("option", { value: String(id) }, `${this.strings[id] || "(none)"} (${counts.get(id)})`));
    menu.addEventListener("change", () => {
      if (menu.value) this.choices.set(column, Number(menu.value));
      else this.choices.delete(column);
      this.update();
    });
    this.menus.set(column, menu);
    return menu;
  }

  // In characters: of the title and of the first rows.
  width(column) {
    let width = column.title.length + 2;
    const step = Math.max(1, Math.floor(this.count / 300));
    for (let row = 0; row < this.count; row += step) width = Math.max(width, this.cell(column, row).length);
    return Math.min(Math.max(width, 4), 44) + 3;
  }

  sort(column) {
    const isSame = this.sorted && this.sorted.column === column;
    // Numbers begin with the largest.
    this.sorted = { column, down: isSame ? !this.sorted.down : Boolean(column.number) };
    this.update();
  }

  // wanted: title -> text
  filter(wanted) {
    this.choices.clear();
    for (const menu of this.menus.values()) menu.value = "";
    for (const column of this.table.columns) {
      if (!(column.title in wanted)) continue;
      const id = this.strings.indexOf(wanted[column.title]);
      this.choices.set(column, id);
      if (this.menus.has(column)) this.menus.get(column).value = String(id);
    }
    this.search.value = this.text = "";
    this.regex.checked = this.isRegex = false;
    this.update();
  }

  matcher() {
    const texts = this.table.columns.filter((column) => !column.number);
    if (!this.text) return () => true;
    let test;
    this.search.setCustomValidity("");
    if (this.isRegex) {
      try {
        const pattern = new RegExp(this.text, "i");
        test = (text) => pattern.test(text);
      } catch (error) {
        this.search.setCustomValidity(error.message);
        this.search.reportValidity();
        return () => true;
      }
    } else {
      const small = this.text.toLowerCase();
      test = (text) => text.toLowerCase().includes(small);
    }
    // Each text is looked at once, however many rows have it.
    const fits = Uint8Array.from(this.strings, (text) => (test(text) ? 1 : 0));
    return (row) => texts.some((column) => fits[column.values[row]]);
  }

  update() {
    const fits = this.matcher();
    const choices = [...this.choices];
    const rows = [];
    for (let row = 0; row < this.count; ++row) {
      if (choices.every(([column, id]) => column.values[row] === id) && fits(row)) rows.push(row);
    }
    this.order = Uint32Array.from(rows);
    if (this.sorted) this.order.sort(this.comparison(this.sorted));
    for (const column of this.table.columns) {
      const state = this.sorted && this.sorted.column === column ? (this.sorted.down ? "descending" : "ascending") : "none";
      column.header.setAttribute("aria-sort", state);
      column.button.textContent = column.title + { none: "", ascending: " ▲", descending: " ▼" }[state];
    }
    this.state.textContent = `${this.order.length.toLocaleString("en")} of ${this.count.toLocaleString("en")} rows`;
    this.grid.setAttribute("aria-rowcount", String(this.order.length + 1));
    this.chosen = -1;
    this.detail.hidden = true;
    this.scroll.setOptions({ ...this.scroll.options, count: this.order.length });
    this.scroll._willUpdate();
    this.scroll.measure();
    this.grid.scrollTop = 0;
    this.draw();
  }

  comparison({ column, down }) {
    const sign = down ? -1 : 1;
    let keys = column.values;
    if (!column.number) {
      if (!this.ranks) {
        const ids = Uint32Array.from(this.strings, (_, id) => id).sort((a, b) => (this.strings[a] < this.strings[b] ? -1 : 1));
        this.ranks = new Uint32Array(ids.length);
        ids.forEach((id, rank) => (this.ranks[id] = rank));
      }
      keys = Float64Array.from(column.values, (id) => (this.strings[id] === "" ? NaN : this.ranks[id]));
    }
    // Rows without a value are last in both directions; equal rows keep their order.
    return (a, b) => {
      const x = keys[a], y = keys[b];
      if (x !== x || y !== y) return x === y || (x !== x && y !== y) ? a - b : x !== x ? 1 : -1;
      return x === y ? a - b : x < y ? -sign : sign;
    };
  }

  draw() {
    if (!this.scroll) return;
    this.body.style.height = `${this.scroll.getTotalSize()}px`;
    const rows = this.scroll.getVirtualItems().map((item) => {
      const row = this.order[item.index];
      const cells = this.table.columns.map((column) =>
        element("div", { className: column.number ? "cell n" : "cell", role: "gridcell" }, this.cell(column, row)),
      );
      const isWrong = this.table.wrong[row] === 1;
      const line = element("div", { className: `row${isWrong ? " wrong" : ""}${item.index === this.chosen ? " chosen" : ""}`, role: "row" }, ...cells);
      line.dataset.at = item.index;
      line.setAttribute("aria-rowindex", String(item.index + 2));
      line.style.gridTemplateColumns = this.template;
      line.style.transform = `translateY(${item.start}px)`;
      return line;
    });
    this.body.replaceChildren(...rows);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.grid.clientHeight / ROW_HEIGHT) - 2);
    const last = this.order.length - 1;
    const target = { ArrowDown: this.chosen + 1, ArrowUp: this.chosen - 1, PageDown: this.chosen + page, PageUp: this.chosen - page, Home: 0, End: last }[event.key];
    if (target === undefined || event.target !== this.grid || last < 0) return;
    event.preventDefault();
    this.choose(Math.min(Math.max(target, 0), last));
    this.scroll.scrollToIndex(this.chosen);
  }

  choose(at) {
    this.chosen = at;
    const row = this.order[at];
    const facts = this.table.columns.flatMap((column) => {
      const text = this.cell(column, row);
      return text === "" ? [] : [element("dt", {}, column.title), element("dd", {}, text)];
    });
    this.detail.replaceChildren(...facts);
    this.detail.hidden = false;
    this.draw();
  }

  csv() {
    const field = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    // A program for tables must not take a text of the data for a formula.
    const safe = (text) => (/^[=+\-@\t\r]/.test(text) ? `'${text}` : text);
    const lines = [this.table.columns.map((column) => field(safe(column.title))).join(",")];
    for (const row of this.order) {
      const cells = this.table.columns.map((column) => {
        if (!column.number) return field(safe(this.strings[column.values[row]]));
        const value = column.values[row];
        return value !== value ? "" : String(value);
      });
      lines.push(cells.join(","));
    }
    return lines.join("\r\n") + "\r\n";
  }

  export() {
    const address = URL.createObjectURL(new Blob([this.csv()], { type: "text/csv" }));
    const link = element("a", { href: address, download: `${this.table.file}.csv` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }
}

// The largest value of each part of the x axis, those that are wrong apart: [places, values that are right, values that are wrong].
function largest(table, { x, y, log }) {
  const column = (name) => table.columns.find((other) => other.title === name).values;
  const xs = column(x), ys = column(y);
  let first = Infinity, last = -Infinity;
  for (const value of xs) {
    if (value < first) first = value;
    if (value > last) last = value;
  }
  const width = (last - first) / (CHART_PARTS - 1) || 1;
  const kept = [new Map(), new Map()];
  for (let row = 0; row < xs.length; ++row) {
    if (!Number.isFinite(xs[row]) || !Number.isFinite(ys[row]) || (log && ys[row] <= 0)) continue;
    const of = kept[table.wrong[row]], part = Math.floor((xs[row] - first) / width);
    if (!of.has(part) || ys[row] > ys[of.get(part)]) of.set(part, row);
  }
  const rows = [...kept[0].values(), ...kept[1].values()].sort((a, b) => xs[a] - xs[b]);
  const values = (wrong) => rows.map((row) => (table.wrong[row] === wrong ? ys[row] : null));
  return [rows.map((row) => xs[row]), values(0), values(1)];
}

// How an error, or a time, is spread over the calls of a run.
function drawChart(place, table) {
  const { x, y, log, title } = table.chart;
  const [places, right, wrong] = largest(table, table.chart);
  if (places.length < 2) return null;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const points = (name) => ({ show: true, size: 5, stroke: () => colour(name), fill: () => colour(name) });
  const series = (label, name) => ({ label, stroke: () => colour(name), paths: () => null, points: points(name), value: (_, value) => (value === null || value === undefined ? "" : shown(value)) });
  const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line") } };
  const hasWrong = wrong.some((value) => value !== null);
  const chart = new uPlot(
    {
      title,
      width: Math.max(260, place.clientWidth),
      height: 240,
      scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
      axes: [{ ...axis, label: x }, { ...axis, label: y, size: 70, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : shown(tick))) }],
      series: [{ label: x }, series("right", "--bar"), ...(hasWrong ? [series("wrong", "--wrong")] : [])],
    },
    [places, right, ...(hasWrong ? [wrong] : [])],
    place,
  );
  new ResizeObserver(() => chart.setSize({ width: Math.max(260, place.clientWidth), height: 240 })).observe(place);
  return chart;
}

function addCopyButtons() {
  for (const line of document.querySelectorAll(".command")) {
    const code = line.querySelector("code");
    const button = element("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    line.append(button);
  }
}

function addThemeButton(redraw) {
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const button = element("button", { type: "button", id: "theme" });
  const name = () => (button.textContent = isDark() ? "Light" : "Dark");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  });
  name();
  document.querySelector("nav > div").append(button);
}

async function start() {
  document.documentElement.classList.add("with-script");
  const charts = [];
  addThemeButton(() => charts.forEach((chart) => chart.redraw(false)));
  addCopyButtons();
  const data = await readData();
  const tables = data.tables.map((table, number) => new RowTable(document.getElementById(`table-${number}-rows`), table, data.strings));
  data.tables.forEach((table, number) => {
    const chart = table.chart && drawChart(document.getElementById(`table-${number}-chart`), table);
    if (chart) charts.push(chart);
    if (table.timeline) charts.push(new Timeline(document.getElementById(`table-${number}-timeline`), table, data.strings, table.timeline, element));
  });
  for (const link of document.querySelectorAll("a[data-filter]")) {
    link.addEventListener("click", () => {
      const { table, ...wanted } = JSON.parse(link.dataset.filter);
      document.getElementById(`table-${table}`).open = true;
      tables[table].filter(wanted);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    const open = tables.find((table) => table.place.getBoundingClientRect().bottom > 0) || tables[0];
    if (!open) return;
    event.preventDefault();
    open.place.closest("details").open = true;
    open.search.focus();
  });
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  document.documentElement.classList.remove("with-script");
  document.querySelector("main").prepend(element("p", { className: "open" }, `The rows cannot be shown: ${error.message}`));
});
