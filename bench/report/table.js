/* A table over columns of data: sorted by its headers, filtered by text, rendered a page at a time. */

const ROWS_AT_ONCE = 200;
const FILTER_DELAY_MS = 120;

/**
 * @typedef {object} Column
 * @property {string} title of the header, with the unit in `unit`.
 * @property {boolean} numeric numbers sort by value, texts as a reader expects (rank2 before rank10).
 * @property {(row: number) => (number|string|null)} value what sorts; null comes last in both directions.
 * @property {boolean} [wrap] long texts take several lines.
 * @property {(row: number) => string} [text] what is shown, `value` if absent.
 * @property {(row: number, cell: HTMLElement) => void} [fill] adds more than text to a cell.
 */
class DataTable {
  /**
   * @param {Column[]} columns
   * @param {number} count of rows
   * @param {{caption: string, keep?: (row: number) => boolean, details?: (row: number) => HTMLElement}} options
   */
  constructor(columns, count, options) {
    Object.assign(this, { columns, count, options });
    this.sorted = null;
    this.limit = ROWS_AT_ONCE;
    this.terms = [];
    this.searchTexts = new Array(count);
    this.element = make("div", "data-table");
    this.element.append(this.buildTools(), this.buildTable(), this.buildFooter());
    this.refresh();
  }

  buildTools() {
    const tools = make("div", "tools");
    const input = make("input", "", "", { type: "search", placeholder: "Filter rows", "aria-label": `Filter: ${this.options.caption}` });
    let timer = 0;
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        this.terms = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        this.refresh();
      }, FILTER_DELAY_MS);
    });
    this.counter = make("span", "quiet", "", { role: "status" });
    tools.append(input, this.counter);
    return tools;
  }

  buildTable() {
    const table = make("table");
    table.append(make("caption", "visually-hidden", this.options.caption));
    const line = make("tr");
    if (this.options.details) line.append(make("td"));
    this.headers = this.columns.map((column, place) => {
      const header = make("th", column.numeric ? "number" : "", "", { scope: "col", "aria-sort": "none" });
      const button = make("button", "", column.title, { type: "button" });
      if (column.unit) button.append(" ", make("span", "unit", column.unit));
      button.append(make("span", "arrow", "", { "aria-hidden": "true" }));
      button.addEventListener("click", () => this.sortBy(place));
      header.append(button);
      line.append(header);
      return header;
    });
    const head = make("thead");
    head.append(line);
    this.body = make("tbody");
    table.append(head, this.body);
    const scroll = make("div", "scroll", "", { tabindex: "0", role: "region", "aria-label": this.options.caption });
    scroll.append(table);
    const block = make("div");
    block.append(scrollHint(scroll), scroll);
    return block;
  }

  buildFooter() {
    this.more = make("button", "more", "", { type: "button" });
    this.more.addEventListener("click", () => {
      this.limit = Infinity;
      this.render();
    });
    return this.more;
  }

  /** First ascending, then descending, then the order that the cases ran in. */
  sortBy(place) {
    const next = { none: "ascending", ascending: "descending", descending: "none" };
    const direction = next[this.headers[place].getAttribute("aria-sort")];
    this.headers.forEach((header) => header.setAttribute("aria-sort", "none"));
    this.headers[place].setAttribute("aria-sort", direction);
    this.sorted = direction === "none" ? null : { place, direction };
    this.refresh();
  }

  /** Filter and sort again, and show the first page. */
  refresh() {
    const { keep } = this.options;
    this.rows = [];
    for (let row = 0; row < this.count; row++) {
      if ((!keep || keep(row)) && this.matches(row)) this.rows.push(row);
    }
    if (this.sorted) {
      const { value, numeric } = this.columns[this.sorted.place];
      const sign = this.sorted.direction === "ascending" ? 1 : -1;
      const keys = new Map(this.rows.map((row) => [row, value(row)]));
      const isNone = (key) => key === null || key === undefined || key === "";
      this.rows.sort((left, right) => {
        const [a, b] = [keys.get(left), keys.get(right)];
        if (isNone(a) || isNone(b)) return isNone(a) - isNone(b) || left - right;
        const order = numeric ? a - b : collator.compare(a, b);
        return sign * order || left - right;
      });
    }
    this.limit = ROWS_AT_ONCE;
    this.render();
  }

  matches(row) {
    if (!this.terms.length) return true;
    this.searchTexts[row] ??= this.columns.map((column) => cellText(column, row)).join(" ").toLowerCase();
    return this.terms.every((term) => this.searchTexts[row].includes(term));
  }

  render() {
    const shown = this.rows.slice(0, this.limit);
    this.body.replaceChildren(...shown.map((row) => this.line(row)));
    const total = this.rows.length;
    const all = counted(this.count, "row");
    this.counter.textContent = total === this.count ? all : `${total.toLocaleString("en-US")} of ${all}`;
    this.more.hidden = shown.length === total;
    this.more.textContent = `Show all ${counted(total, "row")}`;
  }

  line(row) {
    const line = make("tr");
    if (this.options.details) line.append(this.expander(row, line));
    for (const column of this.columns) {
      const cell = make("td", `${column.numeric ? "number" : ""}${column.wrap ? " wrap" : ""}`.trim(), cellText(column, row));
      column.fill?.(row, cell);
      line.append(cell);
    }
    return line;
  }

  expander(row, line) {
    const cell = make("td", "expand");
    const button = make("button", "", "", { type: "button", "aria-expanded": "false", "aria-label": "Details of this row" });
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!open));
      if (open) {
        line.nextSibling.remove();
        return;
      }
      const details = make("tr", "details");
      const content = make("td", "", "", { colspan: this.columns.length + 1 });
      content.append(this.options.details(row));
      details.append(content);
      line.after(details);
    });
    cell.append(button);
    return cell;
  }
}

/** A line that shows while `scroll` is too narrow for its content, with marks at the edges that hide some of it. */
function scrollHint(scroll) {
  const hint = make("p", "scroll-hint", "Wider than the page: scroll the table sideways for more columns \u2192");
  const update = () => {
    const hidden = scroll.scrollWidth - scroll.clientWidth;
    hint.hidden = hidden <= 1;
    scroll.classList.toggle("more-left", scroll.scrollLeft > 1);
    scroll.classList.toggle("more-right", hidden - scroll.scrollLeft > 1);
  };
  const sizes = new ResizeObserver(update);
  sizes.observe(scroll);
  for (const content of scroll.children) sizes.observe(content);
  scroll.addEventListener("scroll", update, { passive: true });
  update();
  return hint;
}

const collator = new Intl.Collator("en", { numeric: true });

function cellText(column, row) {
  if (column.text) return column.text(row);
  const value = column.value(row);
  return value === null || value === undefined ? "" : String(value);
}
