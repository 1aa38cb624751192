/* A suite's cases, kept in columns as bench/report/payload.py writes them. */

class Suite {
  constructor(payload) {
    Object.assign(this, payload);
    this.count = this.status.codes.length;
    this.paramOf = new Map(this.params.map((param) => [param.name, param]));
    this.metricOf = new Map(this.metrics.map((metric) => [metric.name, metric]));
    /** Chosen value code by parameter name: what the selects of the suite keep. */
    this.filters = new Map();
  }

  /** Code of a parameter's value in a case; -1 where the case has no such parameter. */
  code(name, index) {
    return this.paramOf.get(name).codes[index];
  }

  /** A parameter's value in a case, or null. */
  value(name, index) {
    const code = this.code(name, index);
    return code < 0 ? null : this.paramOf.get(name).values[code];
  }

  /** A parameter's value as text; empty where the case has none. */
  text(name, index) {
    const code = this.code(name, index);
    return code < 0 ? "" : this.paramOf.get(name).texts[code];
  }

  /** A value with the parameter's name where the value alone would not tell what it is. */
  label(name, code) {
    const param = this.paramOf.get(name);
    if (code < 0) return "";
    const bare = !param.numeric && param.values[code] !== true && param.values[code] !== false;
    return bare ? param.texts[code] : `${name} ${param.texts[code]}`;
  }

  /** The values of several parameters in one line. */
  labels(names, codes, separator = " · ") {
    return names.map((name, place) => this.label(name, codes[place])).filter(Boolean).join(separator);
  }

  /** Whether a case passes the suite's filters. */
  passes(index) {
    for (const [name, code] of this.filters) if (this.code(name, index) !== code) return false;
    return true;
  }

  /** Text of a coded column in a case. */
  coded(column, index) {
    return column.values[column.codes[index]];
  }

  /** Cases that pass the filters, with a value of the metric. */
  measured(metric) {
    return this.chosen().filter((index) => metric.rows.value[index] !== null);
  }

  /** Cases that pass the filters. */
  chosen() {
    const found = [];
    for (let index = 0; index < this.count; index++) if (this.passes(index)) found.push(index);
    return found;
  }

  /**
   * Cases grouped by the combination of several parameters, in the order of the parameters' values.
   * @returns {{codes: number[], cases: number[]}[]}
   */
  groups(names, cases) {
    const found = new Map();
    for (const index of cases) {
      const codes = names.map((name) => this.code(name, index));
      const key = codes.join(",");
      if (!found.has(key)) found.set(key, { codes, cases: [] });
      found.get(key).cases.push(index);
    }
    return [...found.values()].sort((left, right) => compareCodes(left.codes, right.codes));
  }

  /** All that a point's hover says, one line an entry. */
  hover(metric, index) {
    const rows = metric.rows;
    const unit = unitSign(metric.unit);
    const show = (value) => `${formatNumber(value, 4)} ${unit}`.trim();
    const lines = [`${metric.name}: ${show(rows.value[index])}`];
    if (rows.spread[index] !== null) {
      lines.push(`± ${formatPercent(rows.spread[index])} (quartiles ${show(rows.low[index])} to ${show(rows.high[index])})`);
    }
    if (rows.fit && rows.fit[index] !== null) {
      const residual = rows.residual[index] * 100;
      lines.push(`fit: ${show(rows.fit[index])} (${residual >= 0 ? "+" : "−"}${Math.abs(residual).toFixed(1)}%)`);
    }
    if (rows.fastest[index] !== null && rows.fastest[index] !== rows.slowest[index]) {
      lines.push(`fastest rank ${show(rows.fastest[index])}, slowest ${show(rows.slowest[index])} (rank ${rows.slowest_rank[index]})`);
    }
    const stop = this.coded(rows.stop, index);
    lines.push(`n = ${rows.n[index]}${stop ? `, ${stop}` : ""}${rows.settled[index] ? "" : ": did not settle"}`);
    return lines;
  }
}

function compareCodes(left, right) {
  for (let place = 0; place < left.length; place++) {
    if (left[place] !== right[place]) return left[place] - right[place];
  }
  return 0;
}
