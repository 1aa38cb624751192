/* Draws each series when it comes near the screen, and all of them for paper. */

const MAX_TICKS = 8;
const series = JSON.parse(document.getElementById("data").textContent).series;
const drawn = new Set();

function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { ink: read("--ink"), quiet: read("--quiet"), grid: read("--grid"), line: read("--hue-0"), level: read("--hue-1"),
    bad: read("--bad"), good: read("--good"), warn: read("--warn"), font: getComputedStyle(document.body).fontFamily };
}

/** Plotly reads some HTML in its labels; texts of rows must stay texts. */
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function traces(one, theme) {
  const place = one.values.map((_, index) => index);
  const errors = one.errors.some((error) => error !== null)
    ? { type: "data", array: one.errors.map((error) => error ?? 0), color: theme.quiet, thickness: 1, width: 0 } : undefined;
  const points = { type: "scatter", mode: "lines+markers", x: place, y: one.values, connectgaps: false, name: "measured",
    text: one.texts.map(plain), hovertemplate: "%{text}<extra></extra>", error_y: errors,
    line: { color: theme.line, width: 1 }, marker: { color: theme.line, size: 6 } };
  const levels = one.levels.map((level) => ({ type: "scatter", mode: "lines", x: [level.from - 0.5, level.to + 0.5],
    y: [level.value, level.value], line: { color: theme.level, width: 2 }, hoverinfo: "skip", name: "level" }));
  const tone = tones(theme);
  const drifts = one.drifts.map((drift) => ({ type: "scatter", mode: "lines", x: [drift.from, drift.to], y: drift.values,
    line: { color: tone[drift.kind], width: 2, dash: drift.status === "confirmed" ? "solid" : "dash" }, hoverinfo: "skip",
    name: "drift" }));
  return [points, ...levels, ...drifts];
}

function tones(theme) {
  return { regression: theme.bad, improvement: theme.good, change: theme.warn };
}

function shapes(one, theme) {
  const tone = tones(theme);
  const gaps = one.gaps.map((index) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: index, x1: index, layer: "below",
    line: { color: theme.quiet, width: 1, dash: "dot" } }));
  const changes = one.changes.flatMap((change) => [
    { type: "rect", yref: "paper", y0: 0, y1: 1, x0: change.earliest - 0.5, x1: change.latest + 0.5, layer: "below",
      fillcolor: tone[change.kind], opacity: 0.15, line: { width: 0 } },
    { type: "line", yref: "paper", y0: 0, y1: 1, x0: change.index - 0.5, x1: change.index - 0.5, layer: "below",
      line: { color: tone[change.kind], width: 2, dash: change.status === "confirmed" ? "solid" : "dash" } },
  ]);
  return [...gaps, ...changes];
}

function draw(element) {
  const one = series[Number(element.dataset.series)];
  const theme = colours();
  const step = Math.max(1, Math.ceil(one.dates.length / MAX_TICKS));
  const ticks = one.dates.map((_, index) => index).filter((index) => index % step === 0);
  const axis = { gridcolor: theme.grid, zeroline: false, linecolor: theme.grid };
  Plotly.react(element, traces(one, theme), {
    margin: { l: 70, r: 16, t: 8, b: 40 }, showlegend: false, hovermode: "closest", shapes: shapes(one, theme),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: theme.ink, family: theme.font, size: 12 },
    xaxis: { ...axis, tickvals: ticks, ticktext: ticks.map((index) => plain(one.dates[index])), range: [-1, one.dates.length] },
    yaxis: { ...axis, title: { text: plain(one.axis) } },
  }, { responsive: true, displaylogo: false });
  drawn.add(element);
}

const plots = [...document.querySelectorAll(".plot")];
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    watch.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "600px" });
plots.forEach((plot) => watch.observe(plot));

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("printing");
  plots.forEach(draw);
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("printing");
  drawn.forEach(draw);
});
