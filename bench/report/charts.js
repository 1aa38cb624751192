/* A suite's plots on the page: controls, shared legend, panels that are drawn when they come near the screen. */

const PANELS_AT_ONCE = 24;
const FILTER_CHOICES = 80;
const PLOT_OPTIONS = {
  responsive: true, displaylogo: false,
  // Its buttons would cover the plot where there is no pointer to hover with.
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
  // Nothing here leaves the machine.
  showSendToCloud: false,
  modeBarButtonsToRemove: ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "pan2d"],
};

/** Plots on the page by their element, with what draws each; only those near the screen are drawn. */
const pending = new Map();
const drawn = new Map();
const nearScreen = new IntersectionObserver(
  (entries) => entries.forEach((entry) => entry.isIntersecting && drawPlot(entry.target)),
  { rootMargin: "800px" }
);

function addPlot(element, figure) {
  pending.set(element, figure);
  nearScreen.observe(element);
}

function drawPlot(element) {
  const figure = pending.get(element);
  if (!figure) return;
  pending.delete(element);
  nearScreen.unobserve(element);
  drawn.set(element, figure);
  const { data, layout } = figure();
  Plotly.newPlot(element, data, layout, PLOT_OPTIONS);
}

function dropPlots(container) {
  for (const element of container.querySelectorAll(".plot")) {
    nearScreen.unobserve(element);
    pending.delete(element);
    if (drawn.delete(element)) Plotly.purge(element);
  }
}

/** Draw also the plots far from the screen. */
function drawAllPlots() {
  for (const element of [...pending.keys()]) drawPlot(element);
}

function redrawPlots() {
  for (const [element, figure] of drawn) {
    const { data, layout } = figure();
    Plotly.react(element, data, layout, PLOT_OPTIONS);
  }
}

/** The plots of a suite: one set of controls over all of its views. */
class SuiteCharts {
  constructor(suite, container, onFilter) {
    this.suite = suite;
    this.onFilter = onFilter;
    this.metric = this.metricsWithValues()[0];
    this.band = "quartiles";
    /** Linear or log by metric, where the reader chose; else as `scaleOf` says. */
    this.scales = new Map();
    this.controls = make("div", "controls");
    container.append(this.controls);
    this.views = suite.views.map((view) => {
      const block = make("div", `view ${view.kind}`);
      container.append(block);
      return { view, block, hidden: new Set(), panelsShown: PANELS_AT_ONCE };
    });
    this.fillControls();
    this.draw();
  }

  /** Metrics that have something to compare. */
  metricsWithValues() {
    return this.suite.metrics.filter((metric) => metric.rows.value.filter((value) => value !== null).length > 1);
  }

  /** Scale of the value axis: times span decades, so that small sizes would lie on the axis. */
  scaleOf(metric) {
    return this.scales.get(metric) ?? (metric.log ? "log" : "linear");
  }

  fillControls() {
    const metrics = this.metricsWithValues();
    const hasCurves = this.suite.views.some((view) => view.kind === "curves");
    if (metrics.length > 1) {
      this.addChoice("Metric", metrics.map((metric) => metric.name), this.metric.name, (name) => {
        this.metric = this.suite.metricOf.get(name);
        press(scaleButtons, this.scaleOf(this.metric));
        this.draw();
      });
    }
    const hasRanks = metrics.some((metric) => metric.rows.fastest.some((value, index) => value !== metric.rows.slowest[index]));
    const scaleButtons = hasCurves
      ? this.addChoice("y axis", ["linear", "log"], this.scaleOf(this.metric), (name) => {
          this.scales.set(this.metric, name);
          this.draw();
        })
      : [];
    if (hasRanks && hasCurves) {
      this.addChoice("Band", ["quartiles", "ranks", "none"], this.band, (name) => {
        this.band = name;
        this.draw();
      });
    }
    const told = new Set(this.suite.views.flatMap((view) => [...view.panels, ...view.series, ...view.y]));
    for (const param of this.suite.params) {
      if (told.has(param.name) && param.values.length > 1 && param.values.length <= FILTER_CHOICES) this.addFilter(param);
    }
  }

  addChoice(title, names, chosen, choose) {
    const group = make("div", "choice", "", { role: "group", "aria-label": title });
    group.append(make("span", "label", title));
    const buttons = names.map((name) => make("button", "", name, { type: "button", "aria-pressed": String(name === chosen) }));
    buttons.forEach((button, place) => button.addEventListener("click", () => {
      press(buttons, names[place]);
      choose(names[place]);
    }));
    group.append(...buttons);
    this.controls.append(group);
    return buttons;
  }

  addFilter(param) {
    const label = make("label", "filter");
    const select = make("select", "", "", { "data-param": param.name });
    select.append(make("option", "", "all", { value: "" }));
    param.texts.forEach((text, code) => select.append(make("option", "", text, { value: code })));
    select.addEventListener("change", () => {
      if (select.value === "") this.suite.filters.delete(param.name);
      else this.suite.filters.set(param.name, Number(select.value));
      this.draw();
      this.onFilter();
    });
    label.append(make("span", "label", param.name), select);
    this.controls.append(label);
  }

  draw() {
    for (const state of this.views) this.drawView(state);
  }

  drawView(state) {
    const { view, block } = state;
    dropPlots(block);
    block.replaceChildren();
    const cases = this.suite.measured(this.metric).filter((index) => view.kind !== "curves" || this.suite.code(view.x, index) >= 0);
    if (!cases.length) {
      block.append(make("p", "quiet", `No case has a value of ${this.metric.name} with these filters.`));
      return;
    }
    const styles = view.kind === "heat" ? null : seriesStyles(this.suite, view, cases);
    if (view.kind === "heat") block.append(this.scale(cases));
    else if (styles.size > 1) block.append(this.legend(state, styles));
    const marks = view.kind === "curves" ? this.marks(cases) : "";
    if (marks) block.append(make("p", "quiet marks", marks));
    const emulated = (panel) => Boolean(this.suite.emulated[panel.cases[0]]);
    const panels = this.suite.groups(view.panels, cases).sort((left, right) => emulated(left) - emulated(right));
    const shown = panels.slice(0, state.panelsShown);
    // Hardware first; then each emulated cluster under a heading that tells its shape.
    const placeOf = (panel) => (emulated(panel) ? `lab ${this.lab(panel.cases[0])}` : "");
    for (const place of new Set(shown.map(placeOf))) {
      const here = shown.filter((panel) => placeOf(panel) === place);
      if (place) block.append(this.emulatedHeading(here[0]));
      const grid = make("div", panels.length > 1 ? "panels" : "panels single");
      grid.append(...here.map((panel) => this.panel(state, panel, styles, cases)));
      block.append(grid);
    }
    if (panels.length > shown.length) {
      const more = make("button", "more", `Show ${panels.length - shown.length} more plots`, { type: "button" });
      more.addEventListener("click", () => {
        state.panelsShown = Infinity;
        this.drawView(state);
      });
      block.append(more);
    }
  }

  /** What parts the emulated cluster's plots from hardware's. */
  emulatedHeading(panel) {
    const heading = make("h3", "emulated-heading");
    const badge = make("span", "badge emulated");
    const shape = this.lab(panel.cases[0]);
    badge.append(make("b", "", "Emulated cluster, not hardware"), shape ? make("code", "", shape) : "");
    heading.append(badge);
    return heading;
  }

  lab(index) {
    return this.suite.paramOf.has("lab") ? this.suite.text("lab", index) : this.suite.fixed.lab ?? "";
  }

  panel(state, panel, styles, cases) {
    const { view } = state;
    const { suite, metric } = this;
    const figure = make("figure", "panel");
    const caption = make("figcaption");
    // The heading above the emulated cluster's plots tells the place.
    const isEmulated = suite.emulated[panel.cases[0]];
    const told = view.panels.map((name, place) => [name, panel.codes[place]]).filter(([name]) => !isEmulated || !["scope", "lab"].includes(name));
    const title = suite.labels(told.map(([name]) => name), told.map(([, code]) => code)) || metric.name;
    caption.append(make("span", "title", title));
    if (isEmulated) caption.append(make("span", "badge emulated", "emulated"));
    const plot = make("div", "plot", "", {
      role: "img", "aria-label": `${metric.name} over ${view.x}: ${title}; the numbers are in the table below`,
    });
    figure.append(caption, plot);
    const options = { hidden: state.hidden, band: this.band, scale: this.scaleOf(metric) };
    if (view.kind === "heat") {
      const range = valueRange(metric, cases);
      addPlot(plot, () => heatFigure(suite, view, metric, panel, range));
    } else {
      const build = view.kind === "bars" ? barsFigure : curvesFigure;
      addPlot(plot, () => build(suite, view, metric, panel, styles, options));
    }
    return figure;
  }

  /** One legend for all panels of a view; a click hides or shows a series in all of them. */
  legend(state, styles) {
    const list = make("div", "legend-keys", "", { role: "group", "aria-label": "Series" });
    for (const [key, look] of styles) {
      const button = make("button", "key", "", { type: "button", "aria-pressed": String(!state.hidden.has(key)) });
      button.append(swatch(look, state.view.kind), make("span", "", look.name));
      button.addEventListener("click", () => {
        if (!state.hidden.delete(key)) state.hidden.add(key);
        button.setAttribute("aria-pressed", String(!state.hidden.has(key)));
        redrawPlots();
      });
      list.append(button);
    }
    return list;
  }

  /** What the curves' marks mean, of those that are drawn. */
  marks(cases) {
    const { rows } = this.metric;
    const meanings = [];
    const some = (column) => cases.some((index) => column[index] !== null);
    if (this.band === "quartiles" && some(rows.low)) meanings.push("Band: first to third quartile of the samples.");
    if (this.band === "ranks" && some(rows.fastest)) meanings.push("Band: fastest to slowest rank.");
    if (rows.fit && some(rows.fit)) meanings.push("Dotted line: the fit, latency + bytes / bandwidth.");
    if (cases.some((index) => !rows.settled[index])) meanings.push("Hollow marker: did not settle.");
    return meanings.join(" ");
  }

  /** The colour scale of a view's heat maps. */
  scale(cases) {
    const [low, high] = valueRange(this.metric, cases);
    const unit = unitSign(this.metric.unit);
    const scale = make("div", "scale");
    scale.append(
      make("span", "label", unit ? `${this.metric.name}, ${unit}` : this.metric.name),
      make("span", "", formatNumber(low)), make("span", "ramp", "", { "aria-hidden": "true" }), make("span", "", formatNumber(high))
    );
    return scale;
  }
}

/** Mark the button with that text as the chosen one. */
function press(buttons, text) {
  buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === text)));
}

function valueRange(metric, cases) {
  let low = Infinity;
  let high = -Infinity;
  for (const index of cases) {
    low = Math.min(low, metric.rows.value[index]);
    high = Math.max(high, metric.rows.value[index]);
  }
  return [low, high];
}

/** A short piece of the series' line with its marker. */
function swatch(look, kind) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 34 12");
  svg.setAttribute("aria-hidden", "true");
  svg.style.color = `var(--hue-${look.hue})`;
  const dashes = { solid: "", dash: "6 4", dashdot: "7 3 2 3", longdash: "10 4" };
  const shapes = {
    circle: "M17 2.5a3.5 3.5 0 1 0 .01 0z", square: "M13.5 2.5h7v7h-7z", diamond: "M17 1.5l4.5 4.5-4.5 4.5-4.5-4.5z",
    "triangle-up": "M17 1.5l4.5 8h-9z", "triangle-down": "M17 10.5l4.5-8h-9z", pentagon: "M17 1.5l4.5 3.3-1.7 5.2h-5.6l-1.7-5.2z",
    star: "M17 .5l1.5 3.9 4 .2-3.1 2.6 1 4-3.4-2.2-3.4 2.2 1-4-3.1-2.6 4-.2z", hexagon: "M14.5 2h5l2.5 4-2.5 4h-5l-2.5-4z",
  };
  const add = (name, attributes) => {
    const part = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
    svg.append(part);
  };
  if (kind === "bars") {
    add("rect", { x: 10, y: 1, width: 14, height: 10, fill: "currentColor" });
  } else {
    add("line", { x1: 0, y1: 6, x2: 34, y2: 6, stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": dashes[look.dash] });
    add("path", { d: shapes[look.marker], fill: "currentColor" });
  }
  return svg;
}
