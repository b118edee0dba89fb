"use strict";
// Draws the figures when they come into view, and redraws them for theme, filters and printing.

const figures = JSON.parse(document.getElementById("figures").textContent);
const plots = [...document.querySelectorAll("[data-figure]")];
const form = document.getElementById("filters");
const config = {
  displaylogo: false,
  responsive: true,
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  toImageButtonOptions: { format: "svg" },
};
let printing = false;

// --- tables on a narrow screen: each cell names its column ---------------------------------------------------------

for (const table of document.querySelectorAll("table:has(thead)")) {
  const titles = [...table.querySelectorAll("thead th")].map((header) => header.textContent);
  for (const row of table.tBodies[0].rows) {
    titles.forEach((title, place) => {
      row.cells[place].dataset.title = title;
      row.cells[place].classList.toggle("absent", row.cells[place].textContent === "-");
    });
  }
}

// --- theme ---------------------------------------------------------------------------------------------------------

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");

function isDark() {
  if (printing) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : systemIsDark.matches;
}

function nameTheme() {
  themeButton.textContent = isDark() ? "Light theme" : "Dark theme";
}

themeButton?.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("ampsweep-theme", theme); } catch (error) { /* not remembered */ }
  nameTheme();
  redraw();
});
systemIsDark.addEventListener("change", () => { nameTheme(); redraw(); });

function themed(layout) {
  const dark = isDark();
  const ink = dark ? "#e8e6e3" : "#1d1d1f";
  const grid = dark ? "#3a3d42" : "#e3e3e6";
  const copy = structuredClone(layout);
  Object.assign(copy, {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    autosize: true,
    font: { family: "system-ui, sans-serif", size: 13, color: ink },
    margin: { l: 64, r: 24, t: 26, b: 52, pad: 4, ...layout.margin },
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", ...layout.legend },
    hoverlabel: { bgcolor: dark ? "#26292e" : "#ffffff", bordercolor: grid, font: { color: ink } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: dark ? "#8b8f96" : "#9a9aa0", activecolor: ink },
  });
  for (const key of Object.keys(copy).filter((name) => /^[xy]axis/.test(name))) {
    Object.assign(copy[key], { gridcolor: grid, linecolor: grid, tickcolor: grid });
  }
  for (const shape of copy.shapes ?? []) {
    if (shape.type === "line") shape.line = { color: ink, width: 1.5, ...shape.line };
  }
  return copy;
}

// --- arms ----------------------------------------------------------------------------------------------------------

function hiddenArms() {
  const buttons = [...(form?.querySelectorAll("[data-arm][aria-pressed=false]") ?? [])];
  return new Set(buttons.map((button) => button.dataset.arm));
}

// The trace without the points of hidden arms; null if the whole trace belongs to one.
function narrowed(trace, hidden) {
  const { arm, arms } = trace.meta ?? {};
  if (arm !== undefined && hidden.has(arm)) return null;
  const copy = structuredClone(trace);
  if (arms === undefined) return copy;
  const kept = [...arms.keys()].filter((index) => !hidden.has(arms[index]));
  if (kept.length === arms.length) return copy;
  const pick = (values) => kept.map((index) => values[index]);
  for (const key of ["x", "y", "text", "hovertext"]) {
    if (Array.isArray(copy[key]) && copy[key].length === arms.length) copy[key] = pick(copy[key]);
  }
  if (Array.isArray(copy.marker?.pattern?.shape)) copy.marker.pattern.shape = pick(copy.marker.pattern.shape);
  return copy;
}

function applyFilters() {
  const hidden = hiddenArms();
  for (const element of document.querySelectorAll("[data-arm]")) {
    if (!form.contains(element)) element.hidden = hidden.has(element.dataset.arm);
  }
  document.getElementById("filter-state").textContent = hidden.size ? `Showing all without ${[...hidden].join(", ")}` : "";
  document.getElementById("show-all").hidden = hidden.size === 0;
  redraw();
}

form?.addEventListener("submit", (event) => event.preventDefault());
form?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-arm]");
  if (!button) return;
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") === "false"));
  applyFilters();
});
form?.addEventListener("reset", () => {
  for (const button of form.querySelectorAll("[data-arm]")) button.setAttribute("aria-pressed", "true");
  applyFilters();
});

// --- drawing -------------------------------------------------------------------------------------------------------

const phone = matchMedia("(max-width: 500px)"); // axis titles are wrapped
phone.addEventListener("change", redraw);

// Figures near the window are drawn, and redrawn at once; the others when they come near.
const near = new Set();

function draw(plot) {
  const figure = figures[Number(plot.dataset.figure)];
  const hidden = hiddenArms();
  const traces = figure.traces.map((trace) => narrowed(trace, hidden)).filter((trace) => trace !== null);
  for (const { marker } of traces) {
    if (isDark() && marker?.line?.color === "#333333") marker.line.color = "#e8e6e3";
  }
  for (const trace of traces) if (trace.type === "heatmap") trace.reversescale = !isDark(); // small values are close to the background
  plot.dataset.drawn = "";
  const layout = themed(figure.layout);
  if (phone.matches && !printing) {
    const broken = (text) => text.replace(", ", ",<br>").replace(" (", "<br>(");
    for (const { title } of [layout.xaxis, layout.yaxis]) if (title) title.text = broken(title.text);
    if (traces.some((trace) => trace.type === "heatmap")) narrow(traces, layout);
  }
  if (printing) Object.assign(layout, { autosize: false, width: 680 });
  return Plotly.react(plot, traces, layout, config);
}

// A heat map on a phone: ends of layer names, every other tick, no colour bar.
function narrow(traces, { xaxis, yaxis }) {
  yaxis.ticktext = yaxis.ticktext.map((text) => (text.length > 17 ? `…${text.slice(-16)}` : text));
  for (const key of ["tickvals", "ticktext"]) xaxis[key] = xaxis[key].filter((_, index) => index % 2 === 0);
  for (const trace of traces) trace.showscale = false;
}

function redraw() {
  for (const plot of plots) delete plot.dataset.drawn;
  for (const plot of near) draw(plot);
}

const observer = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) near.delete(entry.target);
      else {
        near.add(entry.target);
        if (!("drawn" in entry.target.dataset)) draw(entry.target);
      }
    }
  },
  { rootMargin: "800px" }
);
for (const plot of plots) observer.observe(plot);

let unfolded = [];

addEventListener("beforeprint", () => {
  printing = true;
  unfolded = [...document.querySelectorAll(".verdict details:not([open])")];
  for (const details of unfolded) details.open = true;
  for (const plot of plots) {
    if (plot.closest("details:not([open])") === null) draw(plot);
  }
});
addEventListener("afterprint", () => {
  printing = false;
  for (const details of unfolded) details.open = false;
  redraw();
});

// --- copying -------------------------------------------------------------------------------------------------------

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const code = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch (error) { // not allowed: select it, so that one key copies it
      getSelection().selectAllChildren(code);
      button.textContent = "Chosen";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

nameTheme();
