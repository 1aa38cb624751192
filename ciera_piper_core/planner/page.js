/* Draws a plan's plots and sortable tables from the data in the page. */

/* As the table and the text have it. */
const GIB = 2 ** 30;
const gib = (bytes) => `${(bytes / GIB).toFixed(2)} GiB`;

const limit = (text) => ({
  shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: data.memoryBytes / GIB, y1: data.memoryBytes / GIB, line: { color: style("--bad"), dash: "dash", width: 1.5 } }],
  annotations: [{ xref: "paper", x: 1, y: data.memoryBytes / GIB, xanchor: "right", yanchor: "bottom", showarrow: false, text, font: { color: style("--bad") } }],
});
const limitText = `memory of a GPU, ${gib(data.memoryBytes)}`;

addPlot("over-ep", data.overEp.some((series) => series.ep.length), () => {
  const traces = data.overEp.flatMap((series, place) => {
    const hover = series.ep.map((ep, index) => plain(`${series.gpus} GPUs, EP ${ep}, ${series.text[index]}: ${gib(series.peak[index])}, of it state ${gib(series.state[index])}${series.oneHop[index] ? "" : "; leaves one hop"}`));
    const common = { x: series.ep, text: hover, hoverinfo: "text", mode: "lines+markers" };
    const line = { color: HUES[place] };
    const hollow = series.oneHop.map((inside) => (inside ? "circle" : "circle-open"));
    return [
      { ...common, y: series.peak.map((bytes) => bytes / GIB), name: `${series.gpus} GPUs, all`, line, marker: { symbol: hollow, size: 9 } },
      { ...common, y: series.state.map((bytes) => bytes / GIB), name: `${series.gpus} GPUs, weights and optimizer`, line: { ...line, dash: "dot" }, marker: { symbol: hollow, size: 6 } },
    ];
  });
  if (data.overEp.some((series) => series.oneHop.includes(false))) {
    traces.push({ x: [null], y: [null], mode: "markers", name: "the search refuses this EP", marker: { symbol: "circle-open", size: 9, color: style("--ink") } });
  }
  const eps = [...new Set(data.overEp.flatMap((series) => series.ep))].sort((a, b) => a - b);
  const room = document.querySelector("#over-ep .plot").clientWidth - 100;
  // A label needs 40 pixels.
  const ticks = apart(eps, 40 * Math.log2(eps.at(-1) / eps[0]) / Math.max(room, 40));
  const amounts = decades([data.memoryBytes / GIB, ...data.overEp.flatMap((series) => [...series.peak, ...series.state]).map((bytes) => bytes / GIB)]);
  const shape = layout("expert parallelism (EP)", "memory a GPU, GiB", {
    xaxis: { type: "log", tickvals: ticks, ticktext: ticks.map(String), tickangle: 0 },
    yaxis: { type: "log", tickvals: amounts, ticktext: amounts.map(String) },
  });
  const bound = Math.log10(data.memoryBytes / GIB);
  const marked = limit(limitText);
  marked.annotations[0].y = bound;
  return { traces, shape: { ...shape, ...marked } };
});

addPlot("front", data.scatter.mfu.length, () => {
  const pick = (front) => data.scatter.mfu.map((_, index) => index).filter((index) => data.scatter.pareto[index] === front);
  const trace = (front, name, marker, mode) => {
    const chosen = pick(front);
    return {
      x: chosen.map((index) => data.scatter.memory[index] / GIB), y: chosen.map((index) => 100 * data.scatter.mfu[index]),
      text: chosen.map((index) => `${data.scatter.number[index]}: ${percent(data.scatter.mfu[index])}, ${gib(data.scatter.memory[index])}<br>${plain(data.scatter.text[index])}`),
      hoverinfo: "text", mode, type: "scatter", name, marker,
    };
  };
  const traces = [
    trace(false, "fits", { color: HUES[6], opacity: 0.45, size: 5 }, "markers"),
    trace(true, "Pareto front", { color: HUES[1], size: 9 }, "lines+markers"),
  ].filter((each) => each.x.length);
  return { traces, shape: layout("peak of the fullest rank, GiB", "MFU, %") };
});

addPlot("ranks", data.ranks, () => {
  const count = data.ranks.layers.length;
  const ranks = Array.from({ length: count }, (_, rank) => rank);
  const traces = data.ranks.components.map(([name, amounts], place) => ({
    type: "bar", name: plain(name), x: ranks, y: amounts.map((bytes) => bytes / GIB), marker: { color: HUES[place % HUES.length] },
    text: amounts.map((bytes, rank) => plain(`rank ${rank}, ${name}: ${gib(bytes)}; ${data.ranks.layers[rank]} layers, ${data.ranks.inFlight[rank]} in flight`)),
    hoverinfo: "text", textposition: "none",
  }));
  const shape = layout("pipeline rank", "memory, GiB", { barmode: "stack" });
  return { traces, shape: { ...shape, ...limit(limitText) } };
});

addPlot("times", data.times.length, () => {
  const names = [...new Set(data.times.flatMap((each) => each.parts.map(([name]) => name)))];
  // A narrow screen has room for the number in the ranking alone.
  const labels = data.times.map((each) => plain(innerWidth < 600 ? `# ${each.label.split(":")[0]}` : each.label));
  const traces = names.map((name, place) => {
    const values = data.times.map((each) => Object.fromEntries(each.parts)[name] ?? 0);
    return {
      type: "bar", orientation: "h", name: plain(name), y: labels, x: values,
      marker: { color: HUES[place % HUES.length], pattern: { shape: place < HUES.length ? "" : "/" } },
      text: values.map((value, index) => plain(`${data.times[index].label}; ${name}: ${value.toPrecision(3)} s`)), hoverinfo: "text", textposition: "none",
    };
  });
  return { traces, shape: layout("seconds of a step", "", { barmode: "stack", yaxis: { autorange: "reversed" } }) };
});

addPlot("pipeline", data.pipeline, () => {
  const traces = data.pipeline.kinds.map((kind, place) => ({
    type: "bar", orientation: "h", name: kind.name, base: kind.start, x: kind.length, y: kind.rank,
    marker: { color: HUES[place], line: { width: 0 } }, text: kind.text.map(plain), hoverinfo: "text+name", textposition: "none",
  }));
  const part = data.pipeline.shown < data.pipeline.of ? `, the first ${data.pipeline.shown} of ${data.pipeline.of} operations` : "";
  return { traces, shape: layout(`seconds from the start of the step${part}`, "pipeline rank", { barmode: "overlay", bargap: 0.15, yaxis: { autorange: "reversed", dtick: data.pipeline.ranks > 16 ? 4 : 1 } }) };
});

addTable(document.querySelector("#ranking .table"), "Ranked strategies", [
  { title: "#", numeric: true }, { title: "MFU", numeric: true, show: percent }, { title: "HFU", numeric: true, show: percent },
  { title: "step, s", numeric: true, show: (value) => value.toPrecision(4) }, { title: "peak", numeric: true, show: gib },
  { title: "PP", numeric: true }, { title: "EP", numeric: true }, { title: "DP", numeric: true }, { title: "TP", numeric: true },
  { title: "microbatches", numeric: true }, { title: "sequences each", numeric: true }, { title: "schedule" }, { title: "checkpointing" },
  { title: "ZeRO", numeric: true }, { title: "all-to-all" }, { title: "Pareto", show: (front) => (front ? "*" : "") },
], data.ranking);
if (!data.ranking.length) removeSection("ranking");
addTable(document.querySelector("#rejected .table"), "Ruled out", [
  { title: "constraint" }, { title: "strategies", numeric: true, show: (count) => count.toLocaleString("en-US") }, { title: "meaning", wrap: true },
], data.rejected);

start();
