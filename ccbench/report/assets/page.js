"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const plots = JSON.parse(byId("plots").textContent);
  const rows = JSON.parse(byId("rows").textContent);

  // ---- words and numbers -------------------------------------------------------------------------

  const escaped = (text) =>
    String(text).replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);
  const digits = (value) => String(Number(value.toPrecision(4)));
  const sizeText = (bytes) => {
    let power = 0;
    while (bytes >= 1024 && power < 4) { bytes /= 1024; power += 1; }
    return `${digits(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  };
  const secondsText = (seconds) =>
    seconds < 1e-3 ? `${digits(seconds * 1e6)} us` : seconds < 1 ? `${digits(seconds * 1e3)} ms` : `${digits(seconds)} s`;
  const TEXTS = {
    "bytes": sizeText,
    "seconds": secondsText,
    "GB/s": (value) => `${digits(value)} GB/s`,
    "ratio": (value) => `${digits(value)} times`,
    "share": (value) => `${digits(100 * value)} %`,
    "rank": (value) => `rank ${value}`,
    "ranks": (value) => `${value} ranks`,
  };
  const said = (unit, value) => (TEXTS[unit] || digits)(value);

  // ---- theme -------------------------------------------------------------------------------------

  const root = document.documentElement;
  const wishes = ["auto", "dark", "light"];
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  let wish = "auto";
  try { wish = wishes.includes(localStorage.getItem("ccbench-theme")) ? localStorage.getItem("ccbench-theme") : "auto"; }
  catch { /* a page from disk may have no storage; the theme is then not remembered */ }
  let printing = false;
  const isDark = () => !printing && (wish === "dark" || (wish === "auto" && systemDark.matches));
  const colours = () => isDark()
    ? { ink: "#e6e9ec", grey: "#9aa2a9", faint: "#353b41", paper: "#14171a", "#0072B2": "#2f8fd6" }
    : { ink: "#1d2124", grey: "#7a8187", faint: "#dfe2e5", paper: "#ffffff" };
  const colour = (name) => colours()[name] || name;

  const applyTheme = () => {
    if (wish === "auto") { root.removeAttribute("data-theme"); } else { root.dataset.theme = wish; }
    byId("theme").textContent = `Theme: ${wish}`;
    for (const name of drawn.keys()) { draw(name); }
  };

  // ---- figures -----------------------------------------------------------------------------------

  const drawn = new Map(); // name of a figure -> labels of its hidden lines

  const axis = (one) => {
    const found = {
      title: { text: escaped(one.label), standoff: 8, font: { size: 11 } },
      gridcolor: colour("faint"), linecolor: colour("grey"), zeroline: false, tickcolor: colour("grey"),
      automargin: true, ticks: "outside", ticklen: 3,
    };
    if (one.range) {
      found.type = one.log ? "log" : "linear";
      found.range = one.log ? one.range.map(Math.log10) : one.range;
    }
    if (one.ticks) {
      found.tickmode = "array";
      found.tickvals = one.ticks.map((tick) => tick[0]);
      found.ticktext = one.ticks.map((tick) => escaped(tick[1]));
    }
    return found;
  };

  const hover = (plot, series, place) => {
    const lines = [`<b>${escaped(series.label)}</b>`, escaped(said(plot.x.unit, series.x[place]))];
    let value = said(plot.y.unit, series.y[place]);
    if (series.low) {
      value += ` [${said(plot.y.unit, series.low[place])}, ${said(plot.y.unit, series.high[place])}]`;
    }
    lines.push(escaped(value));
    if ((series.doubtful || []).includes(place)) { lines.push("flagged as doubtful"); }
    return lines.join("<br>");
  };

  // A line is broken where a case in between has no result.
  const broken = (series) => {
    const gaps = (series.missing || []).slice().sort((a, b) => a - b);
    const order = [];
    let gap = 0;
    series.x.forEach((x, place) => {
      let isGap = false;
      while (gap < gaps.length && gaps[gap] < x) { isGap = true; gap += 1; }
      if (isGap && order.length) { order.push(null); }
      order.push(place);
    });
    return order;
  };

  // Symbols of strokes alone, as the legend draws them: predictions and bounds that no line joins.
  const STROKES = { "line-ew": "M7 5H19", "cross-thin": "M8 5H18M13 0V10" };
  // Other symbols of points that no line joins; a circle where none is named.
  const SHAPES = {
    square: "M9 1H17V9H9Z", diamond: "M13 0L18 5L13 10L8 5Z", pentagon: "M13 1L17 4L15.5 9H10.5L9 4Z",
    "triangle-up": "M13 1L17 9H9Z", "triangle-down": "M9 1H17L13 9Z", "triangle-left": "M9 5L17 1V9Z",
    x: "M9 1L17 9M17 1L9 9",
  };

  const trace = (plot, series) => {
    const order = broken(series);
    const pick = (values) => order.map((place) => (place === null ? null : values[place]));
    const doubtful = new Set(series.doubtful || []);
    const shade = colour(series.colour);
    const dots = ["measured", "baseline"].includes(series.kind) || series.x.length < 2 || plot.topic === "ranks";
    const found = {
      type: "scatter", name: "", x: pick(series.x), y: pick(series.y),
      mode: series.joined ? (dots ? "lines+markers" : "lines") : "markers",
      hovertemplate: "%{text}<extra></extra>",
      text: order.map((place) => (place === null ? "" : hover(plot, series, place))),
      line: { color: shade, dash: series.dash, width: series.kind === "measured" ? 2 : 1.5 },
      marker: {
        color: order.map((place) => (doubtful.has(place) ? colour("paper") : shade)),
        line: { color: shade, width: STROKES[series.symbol] ? 2.5 : 1.5 }, symbol: series.symbol,
        size: plot.topic === "ranks" && series.kind === "measured" ? 4 : STROKES[series.symbol] ? 11 : 7,
        opacity: plot.topic === "ranks" && series.kind === "measured" ? 0.35 : 1,
      },
      connectgaps: false,
      zorder: series.kind === "baseline" ? -1 : 0, // behind the run, though it comes after it in the legend
    };
    if (series.low && series.kind === "measured") {
      found.error_y = {
        type: "data", symmetric: false, thickness: 1.2, width: 3, color: shade,
        array: order.map((place) => (place === null ? 0 : series.high[place] - series.y[place])),
        arrayminus: order.map((place) => (place === null ? 0 : series.y[place] - series.low[place])),
      };
    }
    return found;
  };

  const onLog = (axisOf, value) => (axisOf.log ? Math.log10(value) : value);

  const decorations = (plot, hidden) => {
    const shapes = [];
    const annotations = [];
    // Intervals of predictions are bands behind all lines.
    plot.series.forEach((series, place) => {
      if (series.kind === "predicted" && series.low && series.joined && !hidden.has(place)) {
        const above = series.x.map((x, at) => `${x},${series.high[at]}`);
        const below = series.x.map((x, at) => `${x},${series.low[at]}`).reverse();
        shapes.push({
          type: "path", path: `M${above.concat(below).join("L")}Z`, fillcolor: colour(series.colour), opacity: 0.12,
          line: { width: 0 }, layer: "below",
        });
      }
    });
    const text = (x, y, words, more) => annotations.push({
      x, y, yref: "paper", text: escaped(words), showarrow: false, font: { size: 11, color: colour("ink") }, ...more,
    });
    for (const [low, high, label, shade] of plot.spans || []) {
      shapes.push({
        type: "rect", x0: low, x1: high, yref: "paper", y0: 1.01, y1: 1.045, fillcolor: colour(shade), line: { width: 0 },
      });
      if (Math.log(high / low) > 0.12 * Math.log(plot.x.range[1] / plot.x.range[0])) {
        text(onLog(plot.x, Math.sqrt(low * high)), 1.05, label, { yanchor: "bottom" });
      }
    }
    for (const [x, label] of plot.marks || []) {
      shapes.push({
        type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: colour("grey"), width: 1, dash: "dot" },
      });
      text(onLog(plot.x, x), 0.99, label, { yanchor: "top", textangle: -90, xanchor: "right" });
    }
    const missing = new Set(plot.series.flatMap((series) => series.missing || []));
    for (const x of missing) {
      text(onLog(plot.x, x), 0, "\u2715", {
        yanchor: "bottom", font: { size: 14, color: "#d1495b" }, hovertext: escaped(`no result at ${said(plot.x.unit, x)}`),
      });
    }
    if (plot.note) { text(1, 1, plot.note, { xref: "paper", xanchor: "right", yanchor: "top" }); }
    return { shapes, annotations };
  };

  const layout = (plot, parts) => ({
    paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"),
    font: { color: colour("ink"), size: 12, family: 'system-ui, "DejaVu Sans", sans-serif' },
    margin: { l: 62, r: 14, t: plot.spans && plot.spans.length ? 60 : plot.note ? 30 : 14, b: 48 },
    showlegend: false, hovermode: "closest", xaxis: axis(plot.x), yaxis: axis(plot.y), ...parts,
    hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("grey"), font: { color: colour("ink") }, align: "left" },
  });

  const lines = (plot, hidden) => {
    const traces = plot.series.map((series) => trace(plot, series));
    traces.forEach((one, place) => { one.visible = !hidden.has(place); });
    return [traces, layout(plot, decorations(plot, hidden))];
  };

  const map = (plot) => {
    const grid = plot.grid;
    const found = {
      type: "heatmap", z: grid.values, zmin: grid.range[0], zmax: grid.range[1], colorscale: "Cividis",
      reversescale: !grid.good, hoverongaps: false,
      colorbar: { title: { text: escaped(grid.unit), side: "right" }, thickness: 12, outlinewidth: 0 },
      hovertemplate: `${escaped(plot.y.label)} %{y}, ${escaped(plot.x.label)} %{x}: %{z:.4g} ${escaped(grid.unit)}<extra></extra>`,
    };
    if (grid.texts.length) {
      found.text = grid.texts.map((row) => row.map((text) => escaped(text).replace(/\n/g, "<br>")));
      found.texttemplate = "%{text}";
    }
    if (grid.names.length) { found.x = found.y = grid.names.map(escaped); }
    const shapes = grid.marked.map(([row, column]) => ({
      type: "rect", x0: column - 0.46, x1: column + 0.46, y0: row - 0.46, y1: row + 0.46,
      line: { color: "#D55E00", width: 2.5 },
    }));
    const made = layout(plot, { shapes, annotations: [] });
    made.yaxis.autorange = "reversed";
    made.xaxis.showgrid = made.yaxis.showgrid = false;
    if (grid.names.length) { made.xaxis.type = made.yaxis.type = "category"; }
    // Cells have whole numbers: without a step the axis would count half ones.
    made.yaxis.dtick = Math.ceil(grid.values.length / 16);
    made.xaxis.dtick = Math.ceil(grid.values[0].length / 16);
    return [[found], made];
  };

  const draw = (name) => {
    const plot = plots[name];
    const place = byId(name).querySelector(".plot");
    if (!drawn.has(name)) { drawn.set(name, new Set()); }
    if (plot.topic === "nothing") {
      place.textContent = plot.message;
      place.classList.add("empty");
      return;
    }
    if (plot.grid) { place.classList.add("map"); }
    const [traces, made] = plot.grid ? map(plot) : lines(plot, drawn.get(name));
    Plotly.react(place, traces, made, {
      responsive: true, displaylogo: false,
      // Named one by one: a newer plotly.js may bring buttons that would ask its makers' server.
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
      toImageButtonOptions: { filename: plot.key.replace(/[^a-zA-Z0-9_-]+/g, "-").slice(0, 80), scale: 2 },
    });
    legend(name, plot);
  };

  const SVG = "http://www.w3.org/2000/svg";
  const swatch = (series) => {
    const picture = document.createElementNS(SVG, "svg");
    picture.setAttribute("width", "26");
    picture.setAttribute("height", "10");
    picture.setAttribute("aria-hidden", "true");
    const path = series.joined ? "M0 5H26" : STROKES[series.symbol] || SHAPES[series.symbol];
    const stroke = document.createElementNS(SVG, path ? "path" : "circle");
    const where = path ? { d: path } : { cx: 13, cy: 5, r: 4 };
    for (const [key, value] of Object.entries(where)) { stroke.setAttribute(key, value); }
    stroke.setAttribute("stroke", colour(series.colour));
    stroke.setAttribute("fill", colour(series.colour));
    stroke.setAttribute("stroke-width", series.joined || STROKES[series.symbol] ? "2.5" : "1");
    const dashes = { dash: "6 3", dot: "2 2", dashdot: "6 3 2 3", longdash: "9 3" };
    if (series.joined && dashes[series.dash]) { stroke.setAttribute("stroke-dasharray", dashes[series.dash]); }
    picture.append(stroke);
    return picture;
  };

  const legend = (name, plot) => {
    const box = byId(name).querySelector(".legend");
    const focused = [...box.children].indexOf(document.activeElement);
    box.textContent = "";
    if (plot.grid) {
      box.textContent = plot.grid.legend.join("; ");
      return;
    }
    const hidden = drawn.get(name);
    plot.series.forEach((series, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(place)));
      button.append(swatch(series), series.label);
      button.addEventListener("click", () => {
        if (hidden.has(place)) { hidden.delete(place); } else { hidden.add(place); }
        draw(name);
      });
      box.append(button);
    });
    if (focused >= 0) { box.children[focused].focus(); }
  };

  // Figures are drawn as they come near the screen: a large run has hundreds.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target.id)) {
        near.unobserve(entry.target);
        draw(entry.target.id);
      }
    }
  }, { rootMargin: "600px" });
  const MOST_PRINTED = 80;
  const MOST_PRINTED_ROWS = 5000;
  const drawAll = (most) => {
    for (const name of Object.keys(plots).slice(0, most)) {
      if (byId(name) && !drawn.has(name)) { draw(name); }
    }
  };

  // ---- table -------------------------------------------------------------------------------------

  const textOf = (column) => column.texts || column.index.map((place) => column.words[place]);
  const columns = rows.columns.map((column) => ({ ...column, texts: textOf(column) }));
  const statuses = textOf(rows.status);
  const behind = new Set(rows.baseline);
  const FIRST_ROWS = 200;
  const MORE_ROWS = 500;
  let haystack = null;
  let chosen = Array.from({ length: rows.rows }, (_, place) => place);
  let sorted = { column: -1, down: false };
  let shown = FIRST_ROWS;

  const searchable = () => {
    if (haystack === null) {
      haystack = Array.from({ length: rows.rows }, (_, place) =>
        columns.map((column) => column.texts[place]).concat(statuses[place]).join("\u0001").toLowerCase());
    }
    return haystack;
  };

  const filtered = (query) => {
    const words = query.toLowerCase().split(/\s+/).filter((word) => word && word !== "-");
    const wanted = words.filter((word) => !word.startsWith("-"));
    const unwanted = words.filter((word) => word.startsWith("-")).map((word) => word.slice(1));
    const texts = words.length ? searchable() : [];
    const found = [];
    for (let place = 0; place < rows.rows; place += 1) {
      const text = texts[place];
      if (wanted.every((word) => text.includes(word)) && !unwanted.some((word) => text.includes(word))) {
        found.push(place);
      }
    }
    return found;
  };

  const inOrder = (places) => {
    const column = columns[sorted.column];
    if (!column) { return places; }
    const sign = sorted.down ? -1 : 1;
    const numbers = column.numbers;
    const compare = numbers
      ? (a, b) => {
        // What has no number comes last, whichever way the rest runs.
        if (numbers[a] === null || numbers[b] === null) { return (numbers[a] === null) - (numbers[b] === null); }
        return sign * (numbers[a] - numbers[b]);
      }
      : (a, b) => sign * (column.texts[a] < column.texts[b] ? -1 : column.texts[a] > column.texts[b] ? 1 : 0);
    return places.slice().sort((a, b) => compare(a, b) || a - b);
  };

  const showRows = () => {
    const body = byId("table").tBodies[0];
    const part = document.createDocumentFragment();
    for (const place of chosen.slice(0, shown)) {
      const line = document.createElement("tr");
      if (!["ok", "skipped", "unsupported"].includes(statuses[place])) { line.className = "bad"; }
      if (behind.has(place)) { line.className = "behind"; }
      for (const column of columns) {
        const cell = document.createElement("td");
        cell.textContent = column.texts[place];
        if (column.right) { cell.className = "right"; }
        if (column.texts[place].length > 48) { cell.classList.add("wide"); }
        line.append(cell);
      }
      part.append(line);
    }
    body.replaceChildren(part);
    byId("count").textContent = chosen.length === rows.rows
      ? `${rows.rows} cases` : `${chosen.length} of ${rows.rows} cases`;
    byId("more").hidden = shown >= chosen.length;
  };

  const update = () => {
    shown = FIRST_ROWS;
    chosen = inOrder(filtered(byId("filter").value));
    showRows();
  };

  const sortBy = (place) => {
    sorted = { column: place, down: sorted.column === place ? !sorted.down : false };
    [...byId("table").tHead.rows[0].cells].forEach((cell, index) => {
      if (index === place) { cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending"); }
      else { cell.removeAttribute("aria-sort"); }
    });
    update();
  };

  const head = () => {
    const line = document.createElement("tr");
    columns.forEach((column, place) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      if (column.right) { cell.className = "right"; }
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = column.header;
      button.addEventListener("click", () => sortBy(place));
      cell.append(button);
      line.append(cell);
    });
    byId("table").tHead.replaceChildren(line);
  };

  // A spreadsheet would take text that begins so for a formula (CWE-1236).
  const csvCell = (value) => {
    const text = String(value === null || value === undefined ? "" : value);
    const safe = typeof value !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };

  const csv = () => {
    const names = columns.map((column) => csvCell(column.csv)).concat("status").join(",");
    const body = chosen.map((place) => columns
      .map((column) => csvCell(column.numbers ? column.numbers[place] : column.texts[place]))
      .concat(csvCell(statuses[place])).join(","));
    return `${[names, ...body].join("\r\n")}\r\n`;
  };

  const copy = async () => {
    const button = byId("copy");
    let done = false;
    try {
      await navigator.clipboard.writeText(csv());
      done = true;
    } catch {
      // The clipboard is not given to every page that is opened from disk.
      const field = document.createElement("textarea");
      field.value = csv();
      document.body.append(field);
      field.select();
      done = document.execCommand("copy");
      field.remove();
      button.focus();
    }
    button.textContent = done ? `Copied ${chosen.length} rows` : "The browser refused";
    window.setTimeout(() => { button.textContent = "Copy as CSV"; }, 2500);
  };

  // ---- together ----------------------------------------------------------------------------------

  head();
  update();
  byId("filter").addEventListener("input", update);
  byId("copy").addEventListener("click", copy);
  byId("more").addEventListener("click", () => { shown += MORE_ROWS; showRows(); });
  byId("theme").addEventListener("click", () => {
    wish = wishes[(wishes.indexOf(wish) + 1) % wishes.length];
    try { localStorage.setItem("ccbench-theme", wish); } catch { /* not remembered, as above */ }
    applyTheme();
  });
  systemDark.addEventListener("change", applyTheme);
  const folded = new Set(); // what paper shows open and the screen does not
  window.addEventListener("beforeprint", () => {
    printing = true;
    document.querySelectorAll("details:not([open])").forEach((one) => { one.open = true; folded.add(one); });
    shown = Math.max(shown, MOST_PRINTED_ROWS);
    showRows();
    drawAll(MOST_PRINTED);
    applyTheme();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    folded.forEach((one) => { one.open = false; });
    folded.clear();
    applyTheme();
  });
  applyTheme();
  document.querySelectorAll(".figure").forEach((figure) => near.observe(figure));
  window.ccbench = { drawAll, csv, drawn };
})();
