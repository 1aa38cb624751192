/* What the core's pages draw with: sortable tables, and plots that follow the window, the colour scheme and the printer. */

const data = JSON.parse(document.getElementById("data").textContent);
const HUES = ["#0072b2", "#c44e00", "#007a5a", "#a8437f", "#946800", "#4a46b0", "#586273", "#2c7bb8", "#8c564b", "#17a2a2"];
const collator = new Intl.Collator("en", { numeric: true });

/** A new element with a class, text and attributes. Text is never read as HTML. */
function make(name, className = "", text = "", attributes = {}) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Text that Plotly shows as it is: it reads a little HTML in labels otherwise. */
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/**
 * A table whose headers sort: ascending, descending, then the first order again.
 * @param {Element} place that it goes into
 * @param {string} caption for screen readers
 * @param {{title: string, numeric?: boolean, wrap?: boolean, show?: (value: any) => string}[]} columns
 * @param {any[][]} rows
 */
function addTable(place, caption, columns, rows) {
  const table = make("table", "", "", { "aria-label": caption });
  const line = make("tr");
  const body = make("tbody");
  let sorted = null;
  const headers = columns.map((column, index) => {
    const header = make("th", column.numeric ? "number" : "", "", { scope: "col", "aria-sort": "none" });
    const button = make("button", "", column.title, { type: "button" });
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[header.getAttribute("aria-sort")];
      headers.forEach((each) => each.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", next);
      sorted = next === "none" ? null : { index, sign: next === "ascending" ? 1 : -1 };
      fill();
    });
    header.append(button);
    line.append(header);
    return header;
  });
  function fill() {
    const shown = [...rows];
    if (sorted) {
      const { index, sign } = sorted;
      const order = columns[index].numeric ? (a, b) => a[index] - b[index] : (a, b) => collator.compare(a[index], b[index]);
      shown.sort((a, b) => sign * order(a, b));
    }
    body.replaceChildren(...shown.map((row) => {
      const cells = make("tr");
      columns.forEach((column, index) => {
        const text = column.show ? column.show(row[index]) : String(row[index]);
        cells.append(make("td", [column.numeric ? "number" : "", column.wrap ? "wrap" : ""].join(" ").trim(), text));
      });
      return cells;
    }));
  }
  const head = make("thead");
  head.append(line);
  table.append(head, body);
  place.append(table);
  fill();
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function layout(x, y, more = {}) {
  // With a standoff the margin grows with the title; without one the title lies on the card's edge.
  const axis = (title) => ({ title: { text: title, standoff: 10 }, gridcolor: style("--grid"), zerolinecolor: style("--line"), automargin: true });
  return {
    font: { family: "system-ui, sans-serif", size: 13, color: style("--ink") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 60, r: 20, t: 24, b: 56 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, hoverlabel: { align: "left" },
    ...more,
    xaxis: { ...axis(x), ...more.xaxis }, yaxis: { ...axis(y), ...more.yaxis },
  };
}

const figures = [];

/** Remember how a section's plot is drawn; a section without data goes, and its link with it. */
function addPlot(section, hasData, figure) {
  if (hasData) figures.push([document.querySelector(`#${section} .plot`), figure]);
  else removeSection(section);
}

function removeSection(section) {
  document.getElementById(section).remove();
  document.querySelector(`nav a[href="#${section}"]`).remove();
}

/** Of ascending numbers on a logarithmic axis, those whose labels are at least so many octaves apart. */
function apart(numbers, octaves) {
  const kept = [];
  for (const number of numbers) {
    if (!kept.length || Math.log2(number / kept.at(-1)) >= octaves - 1e-9) kept.push(number);
  }
  return kept;
}

/** Labels of a logarithmic axis over these values: 1, 2 and 5 in each decade; more within less than one, fewer in many. */
function decades(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const span = Math.log10(most / least);
  const digits = span > 3 ? [1] : span > 1.5 ? [1, 3] : span > 0.8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const ticks = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.ceil(Math.log10(most)); power += 1) {
    for (const digit of digits) ticks.push(Number((digit * 10 ** power).toPrecision(3)));
  }
  return ticks;
}

function drawAll() {
  const bar = matchMedia("(hover: hover)").matches ? "hover" : false;
  const options = { responsive: true, displaylogo: false, showSendToCloud: false, displayModeBar: bar };
  for (const [place, figure] of figures) {
    const { traces, shape } = figure();
    Plotly.react(place, traces, shape, options);
  }
}

/** Draw now, and again when what a drawing depends on changes. */
function start() {
  drawAll();
  let drawnWidth = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === drawnWidth) return;
    drawnWidth = innerWidth;
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { document.documentElement.classList.add("printing"); drawAll(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); drawAll(); });
}
