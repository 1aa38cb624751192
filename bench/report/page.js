/* Puts plots and tables into the report's sections, and keeps up with theme, print and scrolling. */

/** The columns of a suite's table: parameters that vary, a value a metric, then how it was measured. */
function caseColumns(suite) {
  // One emulated cluster is told by its heading and the rows' marks: its long shape needs no column.
  const params = suite.params.filter((param) => param.name !== "lab" || param.values.length > 1);
  const columns = params.map((param) => ({
    title: param.name, numeric: param.numeric,
    value: (row) => suite.value(param.name, row),
    text: (row) => suite.text(param.name, row),
  }));
  for (const metric of suite.metrics) {
    const rows = metric.rows;
    columns.push({
      title: metric.name, unit: unitSign(metric.unit), numeric: true,
      value: (row) => rows.value[row],
      text: (row) => (rows.value[row] === null ? "" : (rows.settled[row] ? "" : "~") + formatNumber(rows.value[row], 4)),
      fill: (row, cell) => {
        if (rows.value[row] !== null) cell.append(make("small", "", rows.spread[row] === null ? "" : `±${formatPercent(rows.spread[row])}`));
      },
    });
  }
  const first = (row, name) => {
    for (const metric of suite.metrics) if (metric.rows[name][row] !== null) return metric.rows[name][row];
    return null;
  };
  columns.push({ title: "n", numeric: true, value: (row) => first(row, "n") || null });
  columns.push({ title: "wrong", numeric: true, value: (row) => first(row, "wrong") });
  columns.push({
    title: "outcome", numeric: false,
    value: (row) => outcome(suite, row),
    text: () => "",
    fill: (row, cell) => {
      const status = suite.coded(suite.status, row);
      const text = outcome(suite, row);
      const look = text === "ok" ? "quiet" : `chip ${status === "ok" ? text : status}`;
      cell.append(make("span", look, text.split(": ")[0]));
      if (status !== "ok") cell.append(make("span", "why", suite.coded(suite.reason, row)));
      if (suite.emulated[row]) cell.append(make("span", "badge emulated", "emulated"));
    },
  });
  return columns;
}

function outcome(suite, row) {
  const status = suite.coded(suite.status, row);
  if (status !== "ok") return `${status}: ${suite.coded(suite.reason, row)}`;
  const settled = suite.metrics.every((metric) => metric.rows.settled[row]);
  return settled ? "ok" : "unsettled";
}

/** All that is known of a case, a line a metric. */
function caseDetails(suite, row) {
  const box = make("div");
  const facts = [
    ["run", suite.coded(suite.run, row)],
    ["method version", suite.coded(suite.method, row)],
    ...Object.entries(suite.fixed),
  ];
  box.append(make("p", "quiet", facts.map(([name, value]) => `${name} ${value}`).join(" · ")));
  const table = make("table");
  const head = make("tr");
  const titles = ["metric", "value", "quartiles", "fastest rank", "median rank", "slowest rank", "entry skew", "warm-up", "n", "stopped", "wrong", "row"];
  titles.forEach((title) => head.append(make("th", "", title, { scope: "col" })));
  table.append(head);
  for (const metric of suite.metrics) {
    const rows = metric.rows;
    if (rows.row_id[row] === null) continue;
    const unit = unitSign(metric.unit);
    const show = (value) => (value === null ? "" : `${formatNumber(value, 5)} ${unit}`.trim());
    const line = make("tr");
    const cells = [
      metric.name,
      rows.value[row] === null ? `${suite.coded(rows.status, row)}: ${suite.coded(rows.reason, row)}` : show(rows.value[row]),
      rows.low[row] === null ? "" : `${show(rows.low[row])} to ${show(rows.high[row])}`,
      show(rows.fastest[row]), show(rows.middle[row]),
      rows.slowest[row] === null ? "" : `${show(rows.slowest[row])} (rank ${rows.slowest_rank[row]})`,
      rows.entry_skew[row] === null ? "" : `${formatNumber(rows.entry_skew[row])} µs`,
      rows.warmup[row], rows.n[row], suite.coded(rows.stop, row), rows.wrong[row] ?? "", rows.row_id[row],
    ];
    cells.forEach((text) => line.append(make("td", "", String(text))));
    table.append(line);
  }
  const scroll = make("div", "scroll");
  scroll.append(table);
  box.append(scrollHint(scroll), scroll);
  return box;
}

function fillSuite(suite, section) {
  if (suite.count > 1 && Object.keys(suite.fixed).length) section.append(sharedLine("Same in all cases: ", suite.fixed));
  else if (suite.count === 1) section.append(sharedLine("The case: ", suite.fixed));
  let table = null;
  const folded = make("details", "all-rows");
  if (suite.views.length) new SuiteCharts(suite, section, () => table?.refresh());
  else folded.open = true;
  const cases = suite.count === 1 ? "1 case" : `all ${suite.count.toLocaleString("en-US")} cases`;
  folded.append(make("summary", "", `Table: ${cases}`));
  const build = () => {
    if (table || !folded.open) return;
    table = new DataTable(caseColumns(suite), suite.count, {
      caption: `Cases of ${suite.name}`,
      keep: (row) => suite.passes(row),
      details: (row) => caseDetails(suite, row),
    });
    folded.append(table.element);
  };
  folded.addEventListener("toggle", build);
  section.append(folded);
  build();
}

function sharedLine(title, shared) {
  const line = make("p", "fixed", title);
  for (const [name, value] of Object.entries(shared)) line.append(make("code", "", `${name}=${value}`), " ");
  return line;
}

/** A column of plain records; `format` turns a value into text. */
function recordColumn(rows, key, title, { unit = "", numeric = false, format = String, ...more } = {}) {
  return {
    title, unit, numeric, value: (row) => rows[row][key] ?? null,
    text: (row) => (rows[row][key] === undefined || rows[row][key] === null ? "" : format(rows[row][key])), ...more,
  };
}

function rangeText(record, format) {
  return record.from === undefined ? "" : `${format(record.from)} to ${format(record.to)}`;
}

function fillFits({ rows, shared }, place) {
  const number = (key, title, unit = "") => recordColumn(rows, key, title, { unit, numeric: true, format: (value) => formatNumber(value) });
  // A poor fit has no digits to spare: two, behind the mark of a number not to rely on.
  const fitted = (key, title, unit) => recordColumn(rows, key, title, {
    unit, numeric: true,
    text: (row) => {
      const { [key]: value, poor } = rows[row];
      return poor ? `~${formatNumber(Number(value.toPrecision(2)), 2)}` : formatNumber(value);
    },
  });
  const ranksText = ({ ranks, nodes }) => (nodes > 1 ? `${ranks} on ${nodes} nodes` : String(ranks));
  const columns = [
    recordColumn(rows, "curve", "curve", {
      wrap: true,
      fill: (row, cell) => {
        if (rows[row].lab) cell.append(make("span", "badge emulated", "emulated", { title: rows[row].lab }));
        if (rows[row].note) cell.append(make("small", "note", rows[row].note));
      },
    }),
    recordColumn(rows, "ranks", "ranks", { numeric: true, wrap: true, text: (row) => ranksText(rows[row]) }),
    recordColumn(rows, "from", "sizes", {
      numeric: true, text: (row) => rangeText(rows[row], formatBytes),
      fill: (row, cell) => cell.append(make("small", "note", counted(rows[row].points, "point"))),
    }),
    fitted("alpha_us", "latency", "µs"), fitted("beta", "bandwidth", "GB/s"),
    recordColumn(rows, "worst", "residual", {
      unit: "worst, median", numeric: true,
      text: (row) => (rows[row].worst === undefined ? "" : `${formatPercent(rows[row].worst)}, ${formatPercent(rows[row].median)}`),
      fill: (row, cell) => {
        if (rows[row].poor) cell.append(make("br"), make("span", "chip poor", "poor fit"));
      },
    }),
    number("base_us", "least measured", "µs"), number("peak", "best busbw", "GB/s"),
  ];
  if (Object.keys(shared).length) place.append(sharedLine("Same in all curves: ", shared));
  place.append(new DataTable(columns, rows.length, { caption: "Fitted latency and bandwidth" }).element);
}

function fillBreakEven({ rows, shared }, place) {
  const crossings = (record) => record.crossings.map(([tokens, faster]) => `${faster} faster above ${formatNumber(tokens)}`).join(", ");
  const columns = [
    recordColumn(rows, "curve", "curve"), recordColumn(rows, "outcome", "outcome"),
    { title: "tokens", numeric: true, value: (row) => rows[row].crossings[0]?.[0] ?? null, text: (row) => crossings(rows[row]) },
    recordColumn(rows, "from", "compared", { numeric: true, text: (row) => rangeText(rows[row], formatNumber) }),
  ];
  place.append(make("h3", "", "Where grouped and looped expert GEMM change places"));
  if (Object.keys(shared).length) place.append(sharedLine("Same in all: ", shared));
  place.append(new DataTable(columns, rows.length, { caption: "Break-even of grouped and looped expert GEMM" }).element);
}

/** The entry of the section that is being read is marked in the navigation. */
function followScrolling() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const watch = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-10% 0px -80% 0px" }
  );
  document.querySelectorAll("main > section").forEach((section) => watch.observe(section));
}

/** All plots are on paper, in its colours; afterwards the screen's come back. */
function setPrinting(printing) {
  document.documentElement.classList.toggle("printing", printing);
  redrawPlots();
  if (printing) drawAllPlots();
}

const report = JSON.parse(document.getElementById("data").textContent);
const sections = document.querySelectorAll("section.suite");
report.suites.forEach((payload, place) => fillSuite(new Suite(payload), sections[place]));
if (report.fits) fillFits(report.fits, document.getElementById("fits-table"));
if (report.breakEven) fillBreakEven(report.breakEven, document.getElementById("break-even-table"));
document.querySelectorAll("main > section > .scroll").forEach((scroll) => scroll.before(scrollHint(scroll)));
followScrolling();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawPlots);
addEventListener("beforeprint", () => setPrinting(true));
addEventListener("afterprint", () => setPrinting(false));
