/* Draws a simulated sweep: speedups, bottlenecks, and the paper's figures beside ours. */

const NAMES = data.algorithms;
const KINDS = data.traffic;
const shade = (name) => HUES[NAMES.indexOf(name) % HUES.length];
const MARKS = ["circle", "square", "diamond", "triangle-up", "cross"];

const byCell = new Map(data.points.map((point) => [[point.traffic, point.gpus, point.bytes, point.algorithm].join(), point]));
const find = (traffic, gpus, bytes, algorithm) => byCell.get([traffic, gpus, bytes, algorithm].join());

function size(bytes) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= factor) return `${Number((bytes / factor).toPrecision(3))} ${unit}`;
  }
  return `${bytes} B`;
}
function duration(seconds) {
  for (const [unit, factor] of [["s", 1], ["ms", 1e3]]) {
    if (seconds * factor >= 1) return `${(seconds * factor).toPrecision(3)} ${unit}`;
  }
  return `${(seconds * 1e6).toPrecision(3)} us`;
}
const times = (factor) => `${factor.toFixed(2)}x`;
const gbs = (rate) => `${(rate / 1e9).toPrecision(3)} GB/s`;

/** What a point says when it is pointed at. */
function hover(point) {
  const head = `${point.gpus} GPUs on ${point.nodes} nodes, ${size(point.bytes)} each, ${point.algorithm}`;
  if (point.seconds === null) return plain(`${head}: ${point.reason}`);
  const parts = point.parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
  const instead = point.fallback ? `<br>${plain(`flat instead: ${point.fallback}`)}` : "";
  return `${plain(head)}<br>${duration(point.seconds)}, ${times(point.speedup)} over flat<br>${plain(parts)}${instead}`;
}

/** A menu in a section; the plots are drawn again when it changes. A single value needs no menu. */
function choice(section, label, values, chosen, show = String) {
  const state = { value: chosen };
  if (values.length < 2) return state;
  const menu = make("select");
  values.forEach((value, index) => {
    const option = make("option", "", show(value), { value: String(index) });
    option.selected = value === chosen;
    menu.append(option);
  });
  menu.addEventListener("change", () => {
    state.value = values[Number(menu.value)];
    drawAll();
  });
  const line = make("label", "", label);
  line.append(menu);
  document.querySelector(`#${section} .choices`).append(line);
  return state;
}

/** Of sizes on a logarithmic axis, those whose labels have room in so many pixels. */
function sizeTicks(sizes, pixels) {
  const octaves = Math.log2(sizes.at(-1) / sizes[0]);
  return apart(sizes, 64 * octaves / Math.max(pixels, 64));
}

function sizeAxis(section, sizes) {
  const ticks = sizeTicks(sizes, document.querySelector(`#${section} .plot`).clientWidth - 90);
  return { type: "log", tickvals: ticks, ticktext: ticks.map(size), tickangle: 0 };
}

/** Labels of a logarithmic axis of factors. */
function factorAxis(factors) {
  const ticks = decades(factors.length ? factors : [1]);
  return { type: "log", tickvals: ticks, ticktext: ticks.map((factor) => `${factor}x`) };
}

/** Widths by which lines that lie on each other are all seen: the first is the widest. */
const nested = (place) => Math.max(6 - 1.6 * place, 1);

const unity = (axes = {}) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: style("--quiet"), dash: "dot", width: 1.5 }, ...axes });

const predicted = data.points.filter((point) => point.seconds !== null);
const crossing = data.gpus.filter((gpus) => predicted.some((point) => point.gpus === gpus && point.nodes > 1));

const ofSpeedup = {
  traffic: choice("speedup", "traffic", KINDS, KINDS[0]),
  gpus: choice("speedup", "GPUs", data.gpus, crossing.length ? crossing[Math.floor(crossing.length / 2)] : data.gpus.at(-1)),
};
addPlot("speedup", predicted.length, () => {
  const [traffic, gpus] = [ofSpeedup.traffic.value, ofSpeedup.gpus.value];
  const factors = [1];
  const traces = NAMES.map((name, place) => {
    const points = data.sizes.map((bytes) => find(traffic, gpus, bytes, name)).filter((point) => point.seconds !== null);
    factors.push(...points.map((point) => point.speedup));
    return {
      x: points.map((point) => point.bytes), y: points.map((point) => point.speedup), text: points.map(hover), hoverinfo: "text",
      mode: "lines+markers", name, line: { color: shade(name), width: nested(place) }, marker: { symbol: MARKS[place % MARKS.length], size: 7 },
    };
  });
  const shape = layout("bytes that each GPU sends", "speedup over flat", { xaxis: sizeAxis("speedup", data.sizes), yaxis: factorAxis(factors) });
  return { traces, shape: { ...shape, shapes: [unity()] } };
});

/** Axes of a map of GPUs over sizes; every label that has room. */
function mapShape(section) {
  const place = document.querySelector(`#${section} .plot`);
  const step = Math.max(1, Math.ceil(data.sizes.length * 64 / Math.max(place.clientWidth - 190, 64)));
  const columns = data.sizes.map((_, index) => index).filter((index) => index % step === 0);
  return layout("bytes that each GPU sends", "GPUs", {
    xaxis: { tickvals: columns, ticktext: columns.map((index) => size(data.sizes[index])), tickangle: 0, showgrid: false, zeroline: false },
    yaxis: { tickvals: data.gpus.map((_, index) => index), ticktext: data.gpus.map(String), showgrid: false, zeroline: false },
  });
}

const ofBest = { traffic: choice("best", "traffic", KINDS, KINDS[0]) };
addPlot("best", predicted.length, () => {
  const cells = data.gpus.map((gpus) => data.sizes.map((bytes) => {
    const points = NAMES.map((name) => find(ofBest.traffic.value, gpus, bytes, name));
    return points.reduce((best, point) => ((point.speedup ?? 0) > (best.speedup ?? 0) + 1e-9 ? point : best));
  }));
  const trace = {
    type: "heatmap", z: cells.map((row) => row.map((point) => (point.speedup === null ? null : Math.log2(Math.max(point.speedup, 1))))),
    text: cells.map((row) => row.map(hover)), hoverinfo: "text", xgap: 1, ygap: 1, zmin: 0, zmax: 3.2, hoverongaps: false,
    colorscale: [[0, style("--grid")], [0.3, "#6bb3d6"], [0.65, "#0072b2"], [1, "#12305c"]],
    colorbar: { tickvals: [0, 1, 2, 3], ticktext: ["1x", "2x", "4x", "8x"], thickness: 12, outlinewidth: 0 },
  };
  return { traces: [trace], shape: mapShape("best") };
});

const ofBounds = { traffic: choice("bottlenecks", "traffic", KINDS, KINDS[0]), algorithm: choice("bottlenecks", "algorithm", NAMES, NAMES[0]) };
addPlot("bottlenecks", predicted.length, () => {
  const cells = data.gpus.map((gpus) => data.sizes.map((bytes) => find(ofBounds.traffic.value, gpus, bytes, ofBounds.algorithm.value)));
  const kinds = data.bottlenecks.filter((name) => cells.some((row) => row.some((point) => point.bottleneck === name)));
  const hue = (name) => HUES[data.bottlenecks.indexOf(name)];
  const steps = Math.max(kinds.length, 1);
  const trace = {
    type: "heatmap", z: cells.map((row) => row.map((point) => (point.seconds === null ? null : kinds.indexOf(point.bottleneck)))),
    text: cells.map((row) => row.map(hover)), hoverinfo: "text", xgap: 1, ygap: 1, zmin: -0.5, zmax: steps - 0.5, showscale: false, hoverongaps: false,
    colorscale: kinds.length ? kinds.flatMap((name, place) => [[place / steps, hue(name)], [(place + 1) / steps, hue(name)]]) : undefined,
  };
  const legend = kinds.map((name) => ({ x: [null], y: [null], mode: "markers", name, marker: { symbol: "square", size: 12, color: hue(name) } }));
  return { traces: [trace, ...legend], shape: { ...mapShape("bottlenecks"), showlegend: true } };
});

addPlot("figure5", data.figure5, () => {
  const { curves, stated } = data.figure5;
  const traces = curves.map((curve, place) => ({
    x: curve.sizes, y: curve.rates.map((rate) => rate / 1e9), mode: "lines+markers", name: `${curve.gpus} GPUs, ${curve.nodes} ${curve.nodes === 1 ? "node" : "nodes"}`,
    line: { color: HUES[place % HUES.length], dash: curve.nodes === 1 ? "solid" : "dash" }, hoverinfo: "text",
    text: curve.sizes.map((bytes, index) => `${curve.gpus} GPUs, ${size(bytes)}: ${gbs(curve.rates[index])}`),
  }));
  const sizes = curves[0].sizes;
  traces.push({ x: [sizes[0], sizes.at(-1)], y: [stated / 1e9, stated / 1e9], mode: "lines", name: "Piper: mean inside a node", line: { color: style("--ink"), dash: "dot" }, hoverinfo: "name" });
  return { traces, shape: layout("bytes that each GPU sends", "GB/s that leave a GPU", { xaxis: sizeAxis("figure5", sizes), yaxis: { rangemode: "tozero" } }) };
});

addPlot("figure8", data.figure8, () => {
  const place = document.querySelector("#figure8 .plot");
  const columns = place.clientWidth < 640 ? 1 : place.clientWidth < 1000 ? 2 : 3;
  const rows = Math.ceil(data.figure8.length / columns);
  const [gapX, gapY] = [0.07, 0.36 / rows];
  const [width, height] = [(1 - gapX * (columns - 1)) / columns, (1 - gapY * (rows - 1)) / rows];
  const shape = layout("", "", { showlegend: true, height: 40 + 300 * rows });
  const [xaxis, yaxis] = [shape.xaxis, shape.yaxis];
  delete shape.xaxis;
  delete shape.yaxis;
  Object.assign(shape, { annotations: [], shapes: [] });
  const traces = data.figure8.flatMap((panel, index) => {
    const end = index ? String(index + 1) : "";
    const [column, row] = [index % columns, Math.floor(index / columns)];
    const [left, top] = [column * (width + gapX), 1 - row * (height + gapY)];
    const ticks = sizeTicks(panel.sizes, width * (place.clientWidth - 90));
    const most = 1.12 * Math.max(panel.paper[0], 1, ...panel.variants.flatMap(([, values]) => values));
    shape[`xaxis${end}`] = { ...xaxis, title: { text: "" }, domain: [left, left + width], anchor: `y${end}`, type: "log", tickvals: ticks, ticktext: ticks.map(size), tickangle: 0 };
    shape[`yaxis${end}`] = { ...yaxis, title: { text: "" }, domain: [top - height, top], anchor: `x${end}`, range: [0, most], ticksuffix: "x", nticks: 6 };
    const title = `${panel.nodes} nodes, ${panel.gpus} GPUs${panel.certain ? "" : " (a guess)"}`;
    shape.annotations.push({ xref: "paper", yref: "paper", x: left, y: top, xanchor: "left", yanchor: "bottom", showarrow: false, text: plain(title), font: { size: 13 } });
    shape.shapes.push(unity({ xref: `x${end} domain`, yref: `y${end}` }));
    const axes = { xaxis: `x${end}`, yaxis: `y${end}`, showlegend: index === 0 };
    const ends = [panel.sizes[0], panel.sizes.at(-1)];
    return [
      ...panel.variants.map(([name, values], variant) => ({
        ...axes, x: panel.sizes, y: values, mode: "lines+markers", name: `${name}, ours`, line: { color: HUES[variant], width: nested(variant) }, marker: { size: 4 }, hoverinfo: "text",
        text: values.map((value, at) => `${panel.nodes} nodes, ${size(panel.sizes[at])}, ${name}: ${times(value)}`),
      })),
      ...panel.paper.map((peak, which) => ({
        ...axes, showlegend: index === 0 && which === 0, x: ends, y: [peak, peak], mode: "lines", name: "Piper's printed peaks", hoverinfo: "text",
        line: { color: style("--bad"), dash: panel.certain ? "dash" : "dot", width: 1.2 }, text: ends.map(() => `Piper, a peak: ${times(peak)}`),
      })),
    ];
  });
  place.style.height = `${shape.height + 2}px`;
  shape.legend.y = 1 + 36 / shape.height;
  shape.margin = { ...shape.margin, t: 70 };
  return { traces, shape };
});

if (data.figure8) {
  const names = data.figure8[0].variants.map(([name]) => name.replace("halo_", "")).join(", ");
  const many = (factors) => factors.map(times).join(", ");
  addTable(document.querySelector("#figure8 .table"), "Peaks of Fig 8", [
    { title: "nodes", numeric: true }, { title: "GPUs", numeric: true }, { title: "Piper's peaks" }, { title: `ours: ${names}` },
    { title: "ours / Piper's", numeric: true, show: (ratio) => ratio.toFixed(2) }, { title: "difference", wrap: true },
  ], data.figure8.map((panel) => [
    panel.nodes, panel.gpus, many(panel.paper) + (panel.certain ? "" : ", a guess"), many(panel.variants.map(([, values]) => Math.max(...values))), panel.ratio, panel.difference,
  ]));
}
if (data.claims) {
  addTable(document.querySelector("#claims .table"), "Claims", [
    { title: "Piper", wrap: true }, { title: "predicted", wrap: true }, { title: "agrees", show: (agrees) => (agrees ? "yes" : "no") },
  ], data.claims);
} else removeSection("claims");

addTable(document.querySelector("#points .table"), "All points", [
  { title: "traffic" }, { title: "algorithm" }, { title: "GPUs", numeric: true }, { title: "nodes", numeric: true }, { title: "bytes a GPU", numeric: true, show: size },
  { title: "time", numeric: true, show: duration }, { title: "over flat", numeric: true, show: times }, { title: "bandwidth", numeric: true, show: gbs },
  { title: "bottleneck" }, { title: "its share", numeric: true, show: percent }, { title: "engine" }, { title: "flat instead" },
], predicted.map((point) => [point.traffic, point.algorithm, point.gpus, point.nodes, point.bytes, point.seconds, point.speedup, point.rate, point.bottleneck, point.parts[0][1], point.engine, point.fallback]));

start();
