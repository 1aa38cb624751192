"""What the tests of the core's pages ask a browser."""

from __future__ import annotations

POINTS = """
return Object.fromEntries([...document.querySelectorAll('.plot')].map((plot) => [plot.closest('section').id,
  (plot.data ?? []).flatMap((trace) => [...(trace.orientation === 'h' ? trace.x : trace.y ?? (trace.z ?? []).flat())])
    .filter((value) => Number.isFinite(value)).length]));
"""
"""Finite numbers in the plot of each section."""

OVERFLOW = "return document.scrollingElement.scrollWidth - innerWidth"
"""Pixels by which the page is wider than the window."""

LABELS = """
const boxes = (query) => [...document.querySelectorAll(query)].map((each) => each.getBoundingClientRect());
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const found = [];
for (const plot of document.querySelectorAll('.plot')) {
  const id = `#${plot.closest('section').id}`;
  const frame = plot.getBoundingClientRect();
  const titles = boxes(`${id} .xtitle, ${id} .ytitle, ${id} .annotation text`);
  const legend = boxes(`${id} .legend .legendtext`);
  if (titles.some((title) => legend.some((text) => meet(title, text)))) found.push(`${id}: title over legend`);
  const cut = (title) => title.bottom > frame.bottom + 2 || title.left < frame.left || title.right > frame.right + 2;
  if (titles.some(cut)) found.push(`${id}: title cut`);
  const axes = Object.keys(plot.layout ?? {}).filter((name) => /^[xy]axis/.test(name));
  for (const axis of axes.map((name) => name.replace('axis', ''))) {
    const ticks = boxes(`${id} .${axis}tick text`);
    const met = ticks.some((one, place) => ticks.slice(place + 1).some((other) => meet(one, other)));
    if (met) found.push(`${id}: ${axis} labels`);
  }
}
return found;
"""
"""Titles, legends and labels that lie over each other or leave their plot."""
