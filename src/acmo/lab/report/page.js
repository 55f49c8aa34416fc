"use strict";
(() => {
  const { titles, plots } = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const labels = Object.keys(titles);
  const COLOURS = {
    light: ["#d1242f", "#0b62c4", "#1a7f37", "#8250df", "#b86200", "#0e7c86", "#bf3989", "#57606a", "#6b5200", "#4d2d9e"],
    dark: ["#ff6b6b", "#5aa9ff", "#4cc38a", "#b58cff", "#f0a030", "#3cc7d6", "#ff7ac2", "#a0a8b0", "#d8c26a", "#9aa8ff"],
  };
  const DASHES = ["solid", "solid", "dash", "dash", "dot", "dot", "dashdot", "solid", "dash", "dot"];
  const state = { hidden: new Set(), x: "epoch", log: true, bands: labels.length <= 4, cost: "step", theme: "light", printing: false };

  // Plotly reads tags in texts: names are shown as they are.
  const text = (s) => String(s).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const style = (label) => {
    const i = Math.max(labels.indexOf(label), 0);
    const dash = DASHES[(i + 2 * Math.floor(i / 10)) % 10]; // from the eleventh on, colours come back with another one
    return { color: COLOURS[state.printing ? "light" : state.theme][i % 10], dash, width: i === 0 ? 3 : 2 };
  };
  const faint = (colour) => colour + "26";
  const base = (s) => ({ name: text(titles[s.label] ?? s.label), meta: s.label, visible: !state.hidden.has(s.label), showlegend: false });

  const build = {
    curve(p) {
      const missing = state.x === "epoch" && p.series.every((s) => !s.epoch.some((v) => v > 0));
      const by = missing ? "step" : state.x;
      const data = [];
      for (const s of p.series) {
        if (!state.bands || s.n < 2) continue;
        const x = s[by].concat([...s[by]].reverse());
        const y = s.high.concat([...s.low].reverse());
        data.push({ ...base(s), type: "scatter", mode: "none", x, y, fill: "toself", fillcolor: faint(style(s.label).color), hoverinfo: "skip" });
      }
      for (const s of p.series) {
        const mode = s.mean.length === 1 ? "markers" : "lines";
        data.push({ ...base(s), type: "scatter", mode, x: s[by], y: s.mean, line: style(s.label), marker: { color: style(s.label).color }, hovertemplate: "%{y:.4g}" });
      }
      const positive = p.series.every((s) => s.low.every((v) => v > 0));
      const y = p.log && state.log && positive ? { type: "log", ...decades(p.series.flatMap((s) => s.low.concat(s.high))) } : { type: "linear", ...rise(p) };
      if (p.extent) y.range = shared(p.extent, y.type === "log");
      if (p.key === "clip_scale") y.range = [0, 1.05];
      return { data, layout: { xaxis: { title: { text: by === "seconds" ? "seconds of training" : by } }, yaxis: { ...y, ticksuffix: suffix(p) } } };
    },
    sensitivity(p) {
      const seen = p.series.flatMap((s) => s.score).filter((v) => v !== null);
      const low = Math.min(...seen), high = Math.max(...seen), apart = 0.08 * (high - low || 1);
      const bottom = seen.length ? (p.best === "max" ? low - apart : high + apart) : 0; // beyond the worst score
      const data = [];
      for (const s of p.series) {
        const c = style(s.label);
        data.push({ ...base(s), type: "scatter", mode: "lines+markers", x: s.lr, y: s.score, line: c, marker: { color: c.color, size: 7 }, hovertemplate: "%{y:.4g}" });
        const lost = s.lr.filter((_, i) => s.score[i] === null);
        if (lost.length) data.push({ ...base(s), type: "scatter", mode: "markers", x: lost, y: lost.map(() => bottom), marker: { symbol: "x", size: 10, color: c.color }, hovertemplate: "diverged" });
      }
      return { data, layout: { xaxis: { type: "log", title: { text: "learning rate" }, exponentformat: "power", dtick: 1 }, yaxis: { ticksuffix: suffix(p) } } };
    },
    budget(p) {
      const data = p.series.map((s) => ({ ...base(s), type: "scatter", mode: "lines+markers", x: s.score.map((_, i) => i + 1), y: s.score, line: style(s.label), marker: { size: 5, color: style(s.label).color }, hovertemplate: "%{y:.4g}" }));
      return { data, layout: { xaxis: { title: { text: "k, settings tried" }, rangemode: "tozero" }, yaxis: { ticksuffix: suffix(p) } } };
    },
    speed(p) {
      const data = [];
      for (const s of [...p.series].reverse()) {
        const c = style(s.label).color, name = text(titles[s.label] ?? s.label), got = s[state.cost];
        const row = `${name}: ${got.length} of ${s.n} runs`;
        data.push({ ...base(s), type: "scatter", mode: "markers", x: got, y: got.map(() => row), marker: { color: c, size: 9, opacity: 0.45 }, hovertemplate: "%{x:.4g}" });
        const m = s.median[state.cost];
        data.push({ ...base(s), type: "scatter", mode: "markers", x: [m], y: [row], marker: { color: c, symbol: "line-ns-open", size: 22, line: { width: 4, color: c } }, hovertemplate: "median %{x:.4g}" });
      }
      return { data, layout: { hovermode: "closest", xaxis: { rangemode: "tozero", title: { text: state.cost === "step" ? "steps" : "seconds" } }, yaxis: { type: "category", automargin: true } } };
    },
    profile(p) {
      const data = p.axes[state.cost].map((s) => ({ ...base(s), type: "scatter", mode: "lines", x: s.tau, y: s.share, line: { ...style(s.label), shape: "hv" }, hovertemplate: "%{y:.0%}" }));
      return { data, layout: { xaxis: { title: { text: "τ" }, type: "log" }, yaxis: { range: [-0.02, 1.05], tickformat: ".0%" } } };
    },
  };
  const suffix = (p) => (p.kind === "train" || (p.key && p.key !== p.score) || !p.unit ? "" : ` ${p.unit}`);
  // Two plots side by side have one range: the values that both have to show, and a margin.
  const shared = (extent, log) => {
    const [low, high] = log ? extent.map(Math.log10) : extent, margin = 0.05 * (high - low || 1);
    return [low - margin, high + margin];
  };
  // Tick labels at powers of ten where there are two of them; else Plotly's choice.
  const decades = (values) => (Math.max(...values) / Math.min(...values) > 50 ? { dtick: 1 } : {});
  // Where a score that rises has come to after a quarter of the run: what is above it is what one wants to see.
  function rise(p) {
    const drawn = p.series.filter((s) => !state.hidden.has(s.label) && s.mean.length >= 8);
    if (p.best !== "max" || p.key !== p.score || p.kind !== "valid" || !drawn.length) return {};
    const low = Math.min(...drawn.map((s) => s.mean[Math.floor(s.mean.length / 4)])), high = Math.max(...drawn.flatMap((s) => s.high));
    return high > low ? { range: [low - 0.15 * (high - low), high + 0.05 * (high - low)] } : {};
  }

  const drawn = new Set();
  function draw(p) {
    const div = document.getElementById(p.id);
    if (!div) return;
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(name).trim();
    const { data, layout } = build[p.type](p);
    const axis = { gridcolor: colour("--grid"), zerolinecolor: colour("--grid"), linecolor: colour("--line"), automargin: true };
    const whole = {
      hovermode: "x unified", margin: { l: 46, r: 14, t: 8, b: 40 }, showlegend: false, autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("--ink") },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--ink") },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      uirevision: [state.x, state.log, state.cost].join(),
      ...layout, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
      ...(state.printing ? { width: 660, height: 300, autosize: false } : {}),
    };
    Plotly.react(div, data, whole, { responsive: true, displaylogo: false, displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
    drawn.add(p);
  }
  const redraw = (types) => [...drawn].filter((p) => !types || types.includes(p.type)).forEach(draw);

  function paint() {
    const dark = state.theme === "dark" && !state.printing;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    all(".key").forEach((key) => {
      const { color, dash } = style(key.dataset.label);
      key.style.borderTop = `3px ${{ dash: "dashed", dot: "dotted", dashdot: "dashed" }[dash] ?? "solid"} ${color}`;
    });
  }
  function legend() {
    all("#legend .chip").forEach((chip) => chip.setAttribute("aria-pressed", String(!state.hidden.has(chip.dataset.label))));
    all("tr[data-label]").forEach((row) => row.classList.toggle("hidden", state.hidden.has(row.dataset.label)));
    const reset = document.getElementById("all");
    if (reset) reset.hidden = state.hidden.size === 0;
    redraw();
  }
  function hide(label) {
    if (!state.hidden.delete(label)) state.hidden.add(label);
    legend();
  }
  function alone(label) {
    state.hidden = new Set(labels.filter((other) => other !== label));
    legend();
  }

  // What a plot shows as a table, one line per point; bands are left out.
  function csv(div) {
    const cell = (v) => (/[",\n]/.test(String(v)) ? `"${String(v).replace(/"/g, '""')}"` : String(v ?? ""));
    const lines = div.data.filter((trace) => trace.mode !== "none").flatMap((trace) => [...trace.x].map((x, i) => [titles[trace.meta] ?? trace.meta, x, trace.y[i]]));
    return [["optimizer", "x", "y"], ...lines].map((line) => line.map(cell).join(",")).join("\n") + "\n";
  }
  function save(button) {
    const div = button.closest("figure").querySelector(".plot");
    if (!div.data) return;
    const kind = button.dataset.save;
    if (kind !== "csv") return Plotly.downloadImage(div, { format: kind, filename: div.id, width: 900, height: 500 });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(div)], { type: "text/csv" }));
    link.download = `${div.id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  all("[data-save]").forEach((button) => button.addEventListener("click", () => save(button)));

  const value = (cell) => {
    if (!("v" in cell.dataset)) return cell.textContent.trim().toLowerCase();
    const number = parseFloat(cell.dataset.v);
    return Number.isNaN(number) ? null : number;
  };
  function sort(table, column, head) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    all("thead th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [value(row.cells[column]), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // what has no value is last either way
      return (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))) * (up ? 1 : -1);
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function listen() {
    all("#legend .chip").forEach((chip) => {
      chip.addEventListener("click", (event) => event.detail < 2 && hide(chip.dataset.label));
      chip.addEventListener("dblclick", () => alone(chip.dataset.label));
    });
    document.getElementById("all")?.addEventListener("click", () => { state.hidden.clear(); legend(); });
    document.getElementById("theme")?.addEventListener("click", () => { state.theme = state.theme === "dark" ? "light" : "dark"; paint(); redraw(); });
    all('input[name="x"]').forEach((input) => input.addEventListener("change", () => { state.x = input.value; redraw(["curve"]); }));
    all('input[name="cost"]').forEach((input) => input.addEventListener("change", () => { state.cost = input.value; redraw(["speed", "profile"]); }));
    ["log", "bands"].forEach((id) => document.getElementById(id)?.addEventListener("change", (event) => { state[id] = event.target.checked; redraw(["curve"]); }));
    all("table.sortable").forEach((table) => all("thead th", table).forEach((head, i) => head.firstElementChild.addEventListener("click", () => sort(table, i, head))));
    document.getElementById("find")?.addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/);
      all("#runs tbody tr").forEach((row) => { row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word)); });
    });
    const wish = matchMedia("(prefers-color-scheme: dark)");
    state.theme = wish.matches ? "dark" : "light";
    wish.addEventListener("change", () => { state.theme = wish.matches ? "dark" : "light"; paint(); redraw(); });
    const print = (on) => () => { state.printing = on; paint(); plots.forEach(draw); };
    addEventListener("beforeprint", print(true));
    addEventListener("afterprint", print(false));
  }

  listen();
  paint();
  performance.mark("ready");
  // What is on the screen first, then one plot at a time, so that the page answers meanwhile.
  const order = plots.map((p) => [document.getElementById(p.id)?.getBoundingClientRect().top ?? Infinity, p]).sort((a, b) => a[0] - b[0]);
  (function next() {
    if (!order.length) return void performance.mark("drawn");
    draw(order.shift()[1]);
    setTimeout(next);
  })();
})();
