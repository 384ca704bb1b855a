/* The page's behaviour: theme, sortable tables, charts. Nothing here creates HTML from text. */
"use strict";

// -- theme: that of the system, unless the button was used ---------------------------------------------------

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function remembered() {
  try { return localStorage.getItem("offtrace-theme"); } catch { return null; } // pages opened from a file may have no storage
}

function remember(theme) {
  try { localStorage.setItem("offtrace-theme", theme); } catch { /* the choice is kept for this visit only */ }
}

if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
}

function prepareTheme() {
  const button = document.getElementById("theme");
  const tell = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    tell();
  });
  prefersDark.addEventListener("change", tell);
  tell();
}

// -- sortable tables: a button in every header; numbers sort descending first, words ascending ---------------

function prepareTable(table) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    header.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const rows = [...table.tBodies[0].rows];
      const key = (row) => row.cells[column].dataset.sort;
      const numeric = rows.some((row) => key(row) !== undefined);
      const before = header.getAttribute("aria-sort");
      const falls = before === "none" ? numeric : before === "ascending";
      const compared = (a, b) => {
        if (!numeric) return a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true });
        return Number(key(a)) - Number(key(b));
      };
      const known = rows.filter((row) => !numeric || key(row) !== undefined);
      const unknown = rows.filter((row) => numeric && key(row) === undefined); // always last
      known.sort((a, b) => (falls ? -1 : 1) * compared(a, b));
      table.tBodies[0].append(...known, ...unknown);
      headers.forEach((other) => other.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", falls ? "descending" : "ascending");
    });
  });
}

// -- charts --------------------------------------------------------------------------------------------------

const NARROW = 480;
const WIDEST_LABEL = 160;

function rowsOf(spec, layer) {
  return layer.data?.values ?? spec.datasets?.[layer.data?.name] ?? [];
}

/* A chart with a key beside its axes, drawn in their units, cannot become narrow: it scrolls sideways instead. */
function hasKey(spec) {
  return (spec.layer ?? []).some((layer) => layer.mark?.type === "point" && rowsOf(spec, layer).length > 0
    && rowsOf(spec, layer).every((row) => "line" in row && row.x > 1));
}

/* Returns a larger limit if names that are cut off would become the same, and some limit keeps them apart. */
function distinctLimit(names, fontSize, limit) {
  const count = (all) => new Set(all).size;
  const cut = (width) => names.map((name) => name.slice(0, width / (0.65 * fontSize) - 1));
  for (let width = limit; width <= WIDEST_LABEL; width += 10) {
    if (count(cut(width)) === count(names)) return width;
  }
  return limit;
}

/* Shortens the names to the right of lines, and returns the width that they take. */
function limitLabels(spec, size, narrowest) {
  let widest = 0;
  for (const layer of spec.layer ?? []) {
    const { mark, encoding } = layer;
    const field = encoding?.text?.field;
    if (mark?.type !== "text" || !["algorithm", "label"].includes(field)) continue;
    if (size) mark.fontSize = Math.min(size, mark.fontSize);
    const names = rowsOf(spec, layer).map((row) => String(row[field]));
    const limit = distinctLimit(names, mark.fontSize, narrowest);
    mark.limit = limit;
    const longest = Math.max(0, ...names.map((name) => name.length));
    widest = Math.max(widest, Math.min(limit, 0.65 * mark.fontSize * longest));
  }
  return widest;
}

/* Wraps the titles of x axes on narrow charts. */
function wrapTitles(spec, most) {
  for (const layer of spec.layer ?? []) {
    const x = layer.encoding?.x;
    if (typeof x?.title !== "string" || x.title.length <= most) continue;
    const lines = [""];
    for (const word of x.title.split(" ")) {
      if ((lines.at(-1) + word).length > most) lines.push("");
      lines.push(`${lines.pop()} ${word}`.trim());
    }
    x.title = lines;
  }
}

/* Shortens the names beside rows, and returns whether a chart has rows: it then keeps its height. */
function limitRows(spec, limit) {
  let hasRows = false;
  for (const layer of spec.layer ?? []) {
    const axis = layer.encoding?.y?.axis;
    if (!axis?.labelLimit) continue;
    axis.labelLimit = Math.min(axis.labelLimit, limit);
    hasRows = true;
  }
  return hasRows;
}

function fitted(spec, plot) {
  const fluid = structuredClone(spec);
  const width = plot.clientWidth, narrow = width < NARROW;
  fluid.autosize = { type: "fit-x", contains: "padding" }; // including labels beside the axes
  fluid.background = null;
  fluid.padding = { left: 2, top: 10, bottom: 4, right: 8 };
  if (hasKey(spec)) {
    fluid.width = Math.max(width, 640);
    return fluid;
  }
  fluid.width = "container";
  const small = plot.closest(".small");
  if (limitRows(fluid, width / 2)) { /* it keeps its height */ }
  else if (small) fluid.height = 230;
  else if (narrow) fluid.height = Math.min(fluid.height, 300);
  const labels = limitLabels(fluid, narrow || small ? 12 : null, narrow ? 100 : WIDEST_LABEL);
  wrapTitles(fluid, Math.max(20, Math.floor((width - labels - 70) / (narrow ? 6 : 7))));
  if (narrow) {
    fluid.config.axis = { ...fluid.config.axis, labelFontSize: 11, titleFontSize: 12, labelPadding: 5, titlePadding: 6 };
    fluid.config.axisX = { ...fluid.config.axisX, labelOverlap: "greedy", labelSeparation: 6, labelPadding: 8 };
  }
  return fluid;
}

function showTip(handler, event, item, value) {
  const tip = document.getElementById("tip");
  tip.hidden = value == null || value === "";
  if (tip.hidden) return;
  tip.replaceChildren();
  for (const [name, shown] of typeof value === "object" ? Object.entries(value) : [["", value]]) {
    const row = document.createElement("div");
    const label = document.createElement("span");
    const number = Number(shown);
    label.textContent = name;
    row.append(label, shown !== "" && Number.isFinite(number) ? String(Number(number.toPrecision(4))) : String(shown));
    tip.append(row);
  }
  const { clientX, clientY } = event;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, clientY + 14 + box.height > innerHeight ? clientY - box.height - 10 : clientY + 14)}px`;
}

const drawn = new Map();

async function draw(plot, specs) {
  if (plot.dataset.state) return;
  plot.dataset.state = "drawing";
  try {
    const options = { actions: false, ast: true, renderer: "svg", defaultStyle: false, tooltip: showTip };
    const made = await vegaEmbed(plot, fitted(specs[plot.dataset.chart], plot), options);
    drawn.set(plot, { made, width: plot.clientWidth });
    if (plot.scrollWidth > plot.clientWidth) plot.tabIndex = 0; // so that it can be scrolled by keyboard
    plot.dataset.state = "drawn";
  } catch (error) {
    plot.dataset.state = "failed";
    plot.textContent = "This chart could not be drawn. See the linked pictures.";
    console.error(plot.dataset.chart, error);
  }
}

async function prepareCharts() {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const plots = [...document.querySelectorAll("[data-chart]")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target, specs);
  }, { rootMargin: "800px" });
  plots.forEach((plot) => near.observe(plot));
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      for (const [plot, { made, width }] of drawn) {
        if (plot.clientWidth === width) continue;
        made.finalize();
        drawn.delete(plot);
        delete plot.dataset.state;
        near.unobserve(plot);
        near.observe(plot);
      }
      drawRest();
    }, 150);
  });
  const pause = () => new Promise((resume) => (window.requestIdleCallback ?? setTimeout)(resume));
  let resting = false;
  async function drawRest() { // charts that are not in view yet, for print and search
    if (resting) return;
    resting = true;
    for (const plot of plots) {
      if (!plot.dataset.state) {
        await pause();
        await draw(plot, specs);
      }
    }
    resting = false;
  }
  await drawRest();
}

document.addEventListener("DOMContentLoaded", () => {
  prepareTheme();
  document.querySelectorAll("table.sortable").forEach(prepareTable);
  prepareCharts();
});
