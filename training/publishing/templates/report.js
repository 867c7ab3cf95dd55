"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const CONTROLS = ["task", "grid", "x", "y", "theme"].map((name) => document.getElementById(name));
const SECTIONS = [...document.querySelectorAll(".panel")];
const GRID_OPTIONS = [...document.getElementById("grid").options];
const SYSTEM_DARK = window.matchMedia("(prefers-color-scheme: dark)");
const SYMBOLS = ["circle", "diamond", "square", "triangle-up", "star"]; // a grid of a chart each
const GLYPHS = ["●", "◆", "■", "▲", "★"]; // the same in the legend
const NEAR = 0.02; // of a chart's width: marks this near are drawn so far apart
const THEMES = {
  light: {
    text: "#1f2328", faint: "#59636e", line: "#d1d9e0", raised: "#f6f8fa",
    kinds: { "baseline": "#0969da", "more heads": "#0b7c86", "fewer layers": "#bc4c00", "both": "#cf222e" },
    further: ["#1a7f37", "#8250df", "#7d4e00", "#bf3989"],
  },
  dark: {
    text: "#e6edf3", faint: "#9198a1", line: "#3d444d", raised: "#161b22",
    kinds: { "baseline": "#58a6ff", "more heads": "#39c5cf", "fewer layers": "#f0883e", "both": "#ff7b72" },
    further: ["#56d364", "#bc8cff", "#d4a72c", "#f778ba"],
  },
};

/** The chosen value of each control by its name. */
function chosen() {
  return Object.fromEntries(CONTROLS.map((control) => [control.id, control.value]));
}

/** Text that plotly.js shows as it is: it would read tags. */
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** "1 cell", "3 cells". */
function plural(count, noun) {
  return count === 1 ? `1 ${noun}` : `${count} ${noun}s`;
}

/** Whether a panel or a mark is not filtered out. */
function isChosen(task, grids, view) {
  return (view.task === "" || view.task === task) && (view.grid === "" || grids.includes(view.grid));
}

/** Why a mark cannot be drawn; null where it can. */
function reasonNotDrawn(mark, view) {
  if (mark.measures.score === null) return "not run";
  if (mark.measures[view.y] === null) return "no run of the baseline beside it";
  if (mark.costs[view.x] === null) return `unknown: ${DATA.axes[view.x]}`;
  return null;
}

/** The ends of an axis around values, with some room; `log` gives them as plotly.js wants them of a log axis. */
function rangeAround(values, log) {
  const scaled = log ? values.map(Math.log10) : values;
  const low = Math.min(...scaled);
  const high = Math.max(...scaled);
  const room = high > low ? 0.1 * (high - low) : 0.1 * Math.abs(high) || 1;
  return [low - room, high + room];
}

/** The colour of a mark: that of its kind, or one of its own by its shape. */
function colourOf(mark, panel, colours) {
  if (mark.kind !== null) return colours.kinds[mark.kind];
  const shapes = [...new Set(panel.marks.filter((each) => each.kind === null).map((each) => each.shape))];
  return colours.further[shapes.indexOf(mark.shape) % colours.further.length];
}

/** Where values are drawn: at their place, those of different traces that would hide each other side by side. */
function placesOf(series, range, log) {
  const step = NEAR * (range[1] - range[0]);
  const scaled = series.map((values) => values.map((value) => (log ? Math.log10(value) : value)));
  const all = scaled.flat();
  const isNear = (a, b) => Math.abs(a - b) < step;
  return scaled.map((values, own) =>
    values.map((value) => {
      const before = scaled.slice(0, own).flat().filter((other) => isNear(other, value)).length;
      const together = all.filter((other) => isNear(other, value)).length;
      const moved = value + step * (before - (together - 1) / 2);
      return log ? 10 ** moved : moved;
    }),
  );
}

/** One trace: the marks of a shape in a grid, joined by a line where it has several. */
function traceOf(marks, panel, view, colours, grids) {
  const first = marks[0];
  const spans = marks.map((mark) => mark.measures[view.y]);
  const colour = colourOf(first, panel, colours);
  return {
    type: "scatter",
    mode: marks.length > 1 ? "lines+markers" : "markers",
    name: plain(first.label),
    meta: { grid: first.grid, label: first.label, colour, glyph: GLYPHS[grids.indexOf(first.grid) % GLYPHS.length] },
    x: marks.map((mark) => mark.costs[view.x]),
    y: spans.map((span) => span.value),
    error_y: {
      visible: spans.some((span) => span.low !== null),
      type: "data",
      symmetric: false,
      array: spans.map((span) => (span.high === null ? null : span.high - span.value)),
      arrayminus: spans.map((span) => (span.low === null ? null : span.value - span.low)),
      thickness: 1.5,
      width: 5,
    },
    marker: { color: colour, size: 9, symbol: SYMBOLS[grids.indexOf(first.grid) % SYMBOLS.length] },
    line: { color: colour, width: 1.5 },
    hoverinfo: "text",
    hovertext: marks.map((mark) => mark.tooltip.map(plain).join("<br>")),
  };
}

/** The traces of marks, a grid after the other. */
function tracesOf(marks, panel, view, colours) {
  const grids = [...new Set(marks.map((mark) => mark.grid))];
  const together = new Map();
  for (const mark of marks) {
    const key = JSON.stringify([mark.grid, mark.shape]);
    together.set(key, [...(together.get(key) ?? []), mark]);
  }
  return [...together.values()].map((own) => traceOf(own, panel, view, colours, grids));
}

/** The guesses of a panel's chosen grids: those to draw, and those too far from the marks. */
function guessesFor(panel, view, range) {
  if (view.y !== "score") return { near: [], far: [] };
  const known = panel.guesses.filter((guess) => view.grid === "" || guess.grids.includes(view.grid));
  const room = range[1] - range[0];
  const isNear = (guess) => guess.value > range[0] - room && guess.value < range[1] + room;
  return { near: known.filter(isNear), far: known.filter((guess) => !isNear(guess)) };
}

/** A guess in words; with its grids where those of the panel have different ones. */
function guessText(panel, guess) {
  return panel.guesses.length > 1 ? `${guess.text} (${guess.grids.join(", ")})` : guess.text;
}

/** What is drawn upwards. */
function upText(panel, view) {
  return view.y === "score" ? panel.metric : `${DATA.measures[view.y]}, plus is better`;
}

/** What is drawn across. */
function acrossText(view, across) {
  return across.type === "log" ? `${DATA.axes[view.x]} (logarithmic)` : DATA.axes[view.x];
}

/** A horizontal line through the whole chart. */
function lineAt(value, colour, dash) {
  const line = { color: colour, width: 1.5, dash };
  return { type: "line", layer: "below", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line };
}

/** The value of a guess, at the right end of its line. */
function labelOf(guess, colour) {
  const font = { color: colour, size: 12 };
  const place = { xref: "paper", x: 1, xanchor: "left", y: guess.value, yanchor: "middle" };
  return { ...place, text: guess.value.toFixed(3), showarrow: false, font };
}

/** What plotly.js calls the layout: axes with their ends, the lines of guesses, and colours. */
function layoutOf(view, colours, across, ends) {
  const axis = { gridcolor: colours.line, linecolor: colours.line, zeroline: false, automargin: true };
  const lines = ends.near.map((guess) => lineAt(guess.value, colours.faint, "dash"));
  if (view.y === "difference") lines.push(lineAt(0, colours.faint, "solid"));
  return {
    height: 340,
    margin: { l: 60, r: 48, t: 10, b: 50 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colours.text, family: "system-ui, sans-serif", size: 13 },
    xaxis: { ...axis, ...across, title: { text: acrossText(view, across), font: { size: 13 }, standoff: 8 }, nticks: 7 },
    yaxis: { ...axis, range: ends.range },
    shapes: lines,
    annotations: ends.near.map((guess) => labelOf(guess, colours.faint)),
    hovermode: "closest",
    hoverlabel: { align: "left", bgcolor: colours.raised, bordercolor: colours.faint, font: { color: colours.text } },
    showlegend: false,
  };
}

/** A paragraph of the legend: a name, then coloured entries. */
function legendLine(name, entries) {
  const line = document.createElement("p");
  line.textContent = name;
  for (const { glyph, colour, label } of entries) {
    const entry = document.createElement("span");
    const mark = document.createElement("b");
    mark.textContent = `${glyph} `;
    mark.style.color = colour;
    entry.append(mark, label);
    line.append(entry);
  }
  return line;
}

/** The legend: a line for each grid, and one for each guess that is drawn. */
function legendOf(panel, traces, near) {
  const shown = traces.map((trace) => trace.meta);
  const grids = [...new Set(shown.map((each) => each.grid))];
  const lines = grids.map((grid) => legendLine(grid, shown.filter((each) => each.grid === grid)));
  return [...lines, ...near.map((guess) => legendLine(`╌╌ ${guessText(panel, guess)}`, []))];
}

/** The chosen marks of a panel, and those of them that can be drawn. */
function marksOf(panel, view) {
  const marks = panel.marks.filter((mark) => isChosen(panel.task, [mark.grid], view));
  return { marks, drawn: marks.filter((mark) => reasonNotDrawn(mark, view) === null) };
}

/** Draws a panel as wide as its section is. */
function drawPanel(section, panel, view, colours) {
  const { marks, drawn } = marksOf(panel, view);
  const chart = section.querySelector(".chart");
  if (section.hidden) {
    Plotly.purge(chart);
    return;
  }
  const traces = tracesOf(drawn, panel, view, colours);
  const xs = traces.flatMap((trace) => trace.x);
  const isLog = Math.max(...xs) > 8 * Math.min(...xs);
  const across = { type: isLog ? "log" : "linear", range: rangeAround(xs, isLog) };
  const places = placesOf(traces.map((trace) => trace.x), across.range, isLog);
  traces.forEach((trace, place) => (trace.x = places[place]));
  const values = drawn.map((mark) => mark.measures[view.y]).flatMap((span) => [span.value, span.low, span.high]);
  const own = rangeAround(values.filter((value) => value !== null), false);
  const { near, far } = guessesFor(panel, view, own);
  const range = rangeAround([...own, ...near.map((guess) => guess.value)], false);
  const layout = { ...layoutOf(view, colours, across, { near, range }), width: chart.clientWidth };
  Plotly.react(chart, traces, layout, { displayModeBar: false });
  section.querySelector(".up").textContent = upText(panel, view);
  section.querySelector(".legend").replaceChildren(...legendOf(panel, traces, near));
  const notes = far.map((guess) => `Outside the chart: ${guessText(panel, guess)}.`);
  if (drawn.length < marks.length) notes.push(`${plural(marks.length - drawn.length, "mark")} left out.`);
  section.querySelector(".missing").textContent = notes.join(" ");
}

/** How many marks are drawn, and why the others are not. */
function statusOf(view) {
  const reasons = new Map();
  let drawn = 0;
  for (const panel of DATA.panels) {
    for (const mark of marksOf(panel, view).marks) {
      const reason = reasonNotDrawn(mark, view);
      if (reason === null) drawn += 1;
      else reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
    }
  }
  const left = [...reasons].map(([reason, count]) => `${count} (${reason})`);
  const all = drawn + [...reasons.values()].reduce((sum, count) => sum + count, 0);
  const text = `${drawn} of ${plural(all, "mark")} drawn`;
  return left.length === 0 ? `${text}.` : `${text}; left out: ${left.join(", ")}.`;
}

/** Offers only the grids of the chosen task. */
function offerGrids(task, grid) {
  const offered = GRID_OPTIONS.filter((option) => [undefined, task].includes(option.dataset.task) || task === "");
  const select = document.getElementById("grid");
  select.replaceChildren(...offered);
  select.value = offered.some((option) => option.value === grid) ? grid : "";
}

/** Draws what the controls say, and keeps it in the address. */
function draw() {
  offerGrids(document.getElementById("task").value, document.getElementById("grid").value);
  const view = chosen();
  const isDark = view.theme === "dark" || (view.theme === "" && SYSTEM_DARK.matches);
  document.documentElement.dataset.theme = view.theme;
  const colours = isDark ? THEMES.dark : THEMES.light;
  SECTIONS.forEach((section, place) => (section.hidden = marksOf(DATA.panels[place], view).drawn.length === 0));
  SECTIONS.forEach((section, place) => drawPanel(section, DATA.panels[place], view, colours));
  for (const row of document.querySelectorAll("tbody tr")) {
    row.hidden = !isChosen(row.dataset.task, [row.dataset.grid], view);
  }
  document.getElementById("status").textContent = statusOf(view);
  const stated = Object.entries(view).filter(([, value]) => value !== "");
  history.replaceState(null, "", `#${new URLSearchParams(stated)}`);
}

/** Sets the controls from the address; what it does not state, or misspells, is as at first. */
function readAddress() {
  const stated = new URLSearchParams(location.hash.slice(1));
  document.getElementById("grid").replaceChildren(...GRID_OPTIONS);
  for (const control of CONTROLS) {
    const value = stated.get(control.id);
    const isOffered = [...control.options].some((option) => option.value === value);
    control.value = isOffered ? value : control.options[0].value;
  }
  draw();
}

document.getElementById("controls").hidden = false;
document.getElementById("charts").hidden = false;
CONTROLS.forEach((control) => control.addEventListener("change", draw));
SYSTEM_DARK.addEventListener("change", draw);
window.addEventListener("resize", draw);
window.addEventListener("hashchange", readAddress);
readAddress();
