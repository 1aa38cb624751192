/* Plotly figures of a suite: curves, heat maps and bars from groups of cases. */

const MARKERS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star", "hexagon"];
const DASHES = ["solid", "dash", "dashdot", "longdash"];
const HUES = 7;
const MAX_TICKS = 7;
const PLOT_HEIGHT = 300;
const CELL_HEIGHT = 38;

/** Colours and font of the page as they are now, light or dark. */
function pageTheme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"),
    quiet: read("--quiet"),
    grid: read("--grid"),
    surface: read("--surface"),
    hues: Array.from({ length: HUES }, (_, place) => read(`--hue-${place}`)),
    heat: Array.from({ length: 5 }, (_, place) => [place / 4, read(`--heat-${place}`)]),
    font: getComputedStyle(document.body).fontFamily,
  };
}

/** Hue and marker follow the first series parameter, the dash the others: no series relies on colour alone. */
function seriesStyles(suite, view, cases) {
  const groups = suite.groups(view.series, cases);
  const firsts = [...new Set(groups.map((group) => group.codes[0]))];
  const rests = [...new Set(groups.map((group) => group.codes.slice(1).join(",")))];
  const lone = firsts.length === 1;
  return new Map(
    groups.map((group) => {
      const first = firsts.indexOf(group.codes[0]);
      const rest = rests.indexOf(group.codes.slice(1).join(","));
      const hue = lone ? rest : first;
      return [
        group.codes.join(","),
        {
          name: suite.labels(view.series, group.codes) || "all",
          hue: hue % HUES,
          marker: MARKERS[(lone ? rest : first + Math.floor(rest / DASHES.length)) % MARKERS.length],
          dash: DASHES[rest % DASHES.length],
        },
      ];
    })
  );
}

/** Curves with a marker a case, hollow where it did not settle, and a band around each. */
function curvesFigure(suite, view, metric, panel, styles, options) {
  const theme = pageTheme();
  const data = [];
  const visible = suite.groups(view.series, panel.cases).filter((group) => !options.hidden.has(group.codes.join(",")));
  for (const group of visible) {
    const look = styles.get(group.codes.join(","));
    const colour = theme.hues[look.hue];
    const cases = [...group.cases].sort((left, right) => suite.value(view.x, left) - suite.value(view.x, right));
    const x = cases.map((index) => suite.value(view.x, index));
    const band = bandOf(metric, cases, x, options.band);
    if (band) {
      data.push({
        ...band, type: "scatter", mode: "lines", fill: "toself", fillcolor: withAlpha(colour, visible.length > 3 ? 0.1 : 0.16),
        line: { width: 0 }, hoverinfo: "skip", showlegend: false,
      });
    }
    const rows = metric.rows;
    if (rows.fit) {
      data.push({
        type: "scatter", mode: "lines", x, y: cases.map((index) => rows.fit[index]), name: `${look.name} (fit)`,
        line: { color: colour, width: 1, dash: "dot" }, hoverinfo: "skip", showlegend: false,
      });
    }
    data.push({
      type: "scatter", mode: "lines+markers", name: look.name, x, y: cases.map((index) => rows.value[index]),
      line: { color: colour, width: 2, dash: look.dash },
      marker: {
        color: colour, size: 7,
        symbol: cases.map((index) => (rows.settled[index] ? look.marker : `${look.marker}-open`)),
      },
      customdata: cases.map((index) => hoverText(suite, metric, index)),
      hovertemplate: "%{customdata}<extra></extra>",
    });
  }
  const layout = baseLayout(theme, PLOT_HEIGHT);
  layout.xaxis = { ...layout.xaxis, ...axisOf(suite, view, panel.cases), title: { text: plotText(view.x), standoff: 6 } };
  layout.yaxis = { ...layout.yaxis, ...valueAxis(metric, data, options.scale) };
  return { data, layout };
}

/** One heat map; colours share the view's range, so that maps beside each other can be compared. */
function heatFigure(suite, view, metric, panel, range) {
  const theme = pageTheme();
  const columns = suite.groups([view.x], panel.cases);
  const lines = suite.groups(view.y, panel.cases);
  const rows = metric.rows;
  const key = (line, column) => `${line.join(",")}|${column[0]}`;
  const cells = new Map(
    // Also the cases without a value: an empty cell says why it is empty.
    suite.chosen().filter((index) => compareCodes(view.panels.map((name) => suite.code(name, index)), panel.codes) === 0)
      .sort((left, right) => (rows.value[left] !== null) - (rows.value[right] !== null))
      .map((index) => [key(view.y.map((name) => suite.code(name, index)), [suite.code(view.x, index)]), index])
  );
  const grid = (read, missing) => lines.map((line) => columns.map((column) => {
    const index = cells.get(key(line.codes, column.codes));
    return index === undefined ? missing : read(index);
  }));
  const cellLabel = (index) => {
    if (rows.value[index] === null) return suite.coded(rows.status, index);
    return (rows.settled[index] ? "" : "~") + formatNumber(rows.value[index]);
  };
  const data = [{
    type: "heatmap", xgap: 2, ygap: 2, zmin: range[0], zmax: range[1], colorscale: theme.heat, showscale: false,
    x: columns.map((column) => plotText(suite.label(view.x, column.codes[0]).replace(`${view.x} `, "") || "none")),
    y: lines.map((line) => suite.labels(view.y, line.codes).split(" · ").map(plotText).join("<br>") || "none"),
    z: grid((index) => rows.value[index], null),
    text: grid(cellLabel, ""),
    texttemplate: "%{text}",
    customdata: grid((index) => hoverText(suite, metric, index), "no such case"),
    hovertemplate: "%{customdata}<extra></extra>",
  }];
  const layout = baseLayout(theme, 76 + Math.max(2, lines.length) * CELL_HEIGHT);
  layout.xaxis = { ...layout.xaxis, type: "category", showgrid: false, title: { text: plotText(view.x), standoff: 6 } };
  layout.yaxis = { ...layout.yaxis, type: "category", showgrid: false, autorange: "reversed" };
  return { data, layout };
}

/** Bars over categories, with the quartiles as error bars. */
function barsFigure(suite, view, metric, panel, styles, options) {
  const theme = pageTheme();
  const rows = metric.rows;
  const visible = suite.groups(view.series, panel.cases).filter((group) => !options.hidden.has(group.codes.join(",")));
  const data = visible.map((group) => {
    const look = styles.get(group.codes.join(","));
    const cases = [...group.cases].sort((left, right) => suite.code(view.x, left) - suite.code(view.x, right));
    return {
      type: "bar", name: look.name,
      x: cases.map((index) => plotText(suite.text(view.x, index) || "none")),
      y: cases.map((index) => rows.value[index]),
      error_y: {
        type: "data", symmetric: false, color: theme.ink, thickness: 1, width: 3,
        array: cases.map((index) => Math.max(0, (rows.high[index] ?? rows.value[index]) - rows.value[index])),
        arrayminus: cases.map((index) => Math.max(0, rows.value[index] - (rows.low[index] ?? rows.value[index]))),
      },
      text: cases.map((index) => (rows.settled[index] ? "" : "~") + formatNumber(rows.value[index])),
      textposition: "inside", insidetextanchor: "start", textangle: 0,
      marker: { color: theme.hues[look.hue], pattern: { shape: ["", "/", "x", "-"][DASHES.indexOf(look.dash)] } },
      customdata: cases.map((index) => hoverText(suite, metric, index)),
      hovertemplate: "%{customdata}<extra></extra>",
    };
  });
  const layout = baseLayout(theme, PLOT_HEIGHT);
  layout.bargap = 0.3;
  layout.xaxis = { ...layout.xaxis, type: "category", showgrid: false, title: { text: plotText(view.x), standoff: 6 } };
  layout.yaxis = { ...layout.yaxis, title: { text: axisTitle(metric) }, rangemode: "tozero" };
  return { data, layout };
}

function baseLayout(theme, height) {
  const axis = {
    automargin: true, gridcolor: theme.grid, linecolor: theme.grid, zeroline: false, ticks: "", fixedrange: false,
    tickfont: { color: theme.quiet, size: 11 },
  };
  return {
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.quiet, activecolor: theme.ink },
    height, margin: { l: 8, r: 12, t: 8, b: 8 }, showlegend: false, hovermode: "closest", dragmode: "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: theme.font, color: theme.ink, size: 12 },
    hoverlabel: { align: "left", bgcolor: theme.surface, bordercolor: theme.grid, font: { color: theme.ink, size: 12 } },
    xaxis: { ...axis }, yaxis: { ...axis },
  };
}

/** Ticks of a numeric axis: at the measured values if they fit, else sizes at powers of two, all others thinned. */
function axisOf(suite, view, cases) {
  const param = suite.paramOf.get(view.x);
  const values = suite.groups([view.x], cases).map((group) => param.values[group.codes[0]]);
  const type = view.log_x ? "log" : "linear";
  if (param.size && view.log_x && values.length > MAX_TICKS) {
    const first = Math.ceil(Math.log2(values[0]));
    const last = Math.floor(Math.log2(values[values.length - 1]));
    if (last > first) return { type, ...ticksAt(thinned(first, last).map((power) => 2 ** power), formatBytes) };
  }
  const step = Math.ceil(values.length / MAX_TICKS);
  return { type, ...ticksAt(values.filter((_, place) => place % step === 0), (value) => param.texts[param.values.indexOf(value)]) };
}

function ticksAt(values, text) {
  return { tickmode: "array", tickvals: values, ticktext: values.map(text).map(plotText) };
}

/** Whole numbers from `first` to `last`, evenly thinned to what fits. */
function thinned(first, last) {
  const step = Math.ceil((last - first + 1) / MAX_TICKS);
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, place) => first + place * step);
}

/** Value axis in logarithms, or from zero. */
function valueAxis(metric, data, scale) {
  const title = { text: axisTitle(metric), standoff: 8 };
  if (scale === "linear") return { title, rangemode: "tozero" };
  const values = data.flatMap((trace) => trace.y).filter((value) => value > 0);
  if (!values.length) return { title };
  const low = Math.min(...values);
  const high = Math.max(...values);
  const multiples = high / low > 300 ? [1] : high / low > 4 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
  const tickvals = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const multiple of multiples) tickvals.push(multiple * 10 ** power);
  }
  return { title, type: "log", ...ticksAt(tickvals, formatTick) };
}

function axisTitle(metric) {
  const unit = unitSign(metric.unit);
  return plotText(unit ? `${metric.name}, ${unit}` : metric.name);
}

/** Outline of the band: there along the upper ends, back along the lower ones; a piece for each stretch without a gap. */
function bandOf(metric, cases, x, kind) {
  const ends = { quartiles: ["low", "high"], ranks: ["fastest", "slowest"] }[kind];
  if (!ends) return null;
  const [low, high] = ends.map((end) => cases.map((index) => metric.rows[end][index]));
  const stretches = [[]];
  x.forEach((_, place) => {
    if (low[place] !== null && high[place] !== null) stretches.at(-1).push(place);
    else stretches.push([]);
  });
  const outline = { x: [], y: [] };
  for (const places of stretches.filter((stretch) => stretch.length > 1)) {
    if (outline.x.length) for (const axis of [outline.x, outline.y]) axis.push(null);
    const back = [...places].reverse();
    outline.x.push(...places.map((place) => x[place]), ...back.map((place) => x[place]));
    outline.y.push(...places.map((place) => high[place]), ...back.map((place) => low[place]));
  }
  return outline.x.length ? outline : null;
}

function hoverText(suite, metric, index) {
  const where = suite.params
    .filter((param) => param.codes[index] >= 0)
    .map((param) => `${param.name}=${param.texts[param.codes[index]]}`);
  const lines = [];
  for (let start = 0; start < where.length; start += 3) lines.push(where.slice(start, start + 3).join(" "));
  const emulated = suite.emulated[index] ? ["emulated cluster, not hardware"] : [];
  if (metric.rows.value[index] === null) {
    const why = `${suite.coded(metric.rows.status, index)}: ${suite.coded(metric.rows.reason, index)}`;
    return [...wrapped(why, 60), ...lines, ...emulated].map(plotText).join("<br>");
  }
  const [value, ...rest] = suite.hover(metric, index).map(plotText);
  return [`<b>${value}</b>`, ...rest, ...[...lines, ...emulated].map(plotText)].join("<br>");
}

/** A text in lines of about `width` characters. */
function wrapped(text, width) {
  return text.match(new RegExp(`.{1,${width}}(\\s|$)|\\S+`, "g")) ?? [];
}

/** `#rrggbb` with an alpha. */
function withAlpha(colour, alpha) {
  const part = (place) => parseInt(colour.slice(place, place + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
}
