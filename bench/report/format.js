/* How numbers and texts are written; the same rules as bench/report/formatting.py. */

/** `value` to `digits` significant digits; the integer part is never rounded away. */
function formatNumber(value, digits = 3) {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-3) return value.toExponential(digits - 1);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/** A share as a percentage short enough for a table. */
function formatPercent(share) {
  return `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)}%`;
}

/** Bytes in the largest binary unit that shows them exactly, else to three digits. */
function formatBytes(count) {
  for (const [unit, power] of [["TiB", 40], ["GiB", 30], ["MiB", 20], ["KiB", 10]]) {
    const scaled = count / 2 ** power;
    if (scaled >= 1) return `${Number.isInteger(scaled) ? scaled : Number(scaled.toPrecision(3))}${unit}`;
  }
  return `${count}B`;
}

/** The unit as people write it. */
function unitSign(unit) {
  return { us: "µs", ratio: "", count: "" }[unit] ?? unit;
}

/** `1 row`, `2 rows`: the noun in the number that goes with `count`. */
function counted(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

/** A tick of a logarithmic axis: the number as short as it can be. */
function formatTick(value) {
  const short = Number(value.toPrecision(2));
  return short < 1e-4 || short >= 1e6 ? short.toExponential() : short.toLocaleString("en-US", { maximumFractionDigits: 6 });
}

/** Text that Plotly shows as it is: it reads a little HTML in labels otherwise. */
function plotText(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** A new element with a class, text and attributes. Text is never read as HTML. */
function make(name, className = "", text = "", attributes = {}) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
