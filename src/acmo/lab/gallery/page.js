"use strict";
(() => {
  const { steps, bound, scenes } = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const state = { scene: 0, t: steps, playing: false, hidden: new Set() };
  const scene = () => scenes[state.scene];
  const rows = [...document.querySelectorAll("tbody tr")];

  function add(parent, tag, attributes = {}, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    parent.append(element);
    return element;
  }
  // One group per optimizer; ACMo, the first, is drawn last and so on top.
  const groups = (svg) => [...scene().paths].reverse().map((p) => [p, add(svg, "g", { "data-optimizer": p.optimizer, class: state.hidden.has(p.optimizer) ? "hidden" : "" })]);
  const line = (points) => points.map((p) => p.map((v) => Math.round(v * 10) / 10).join()).join(" ");
  const strong = (p) => (p.optimizer === "acmo" ? "path strong" : "path");

  // What moves: each drawing leaves here how it is brought to a step.
  let moves = [];

  function drawMap() {
    const svg = $("map"), s = scene();
    svg.replaceChildren();
    for (const d of s.levels) add(svg, "path", { class: "level", d });
    for (const [p, g] of groups(svg)) {
      add(g, "polyline", { class: "path whole", points: line(p.at) });
      const path = add(g, "polyline", { class: strong(p) });
      const dot = add(g, "circle", { class: "dot", r: 12 });
      moves.push((t) => {
        path.setAttribute("points", line(p.at.slice(0, t + 1)));
        dot.setAttribute("cx", p.at[t][0]);
        dot.setAttribute("cy", p.at[t][1]);
      });
    }
    const [[sx, sy], [mx, my]] = [s.start, s.minimum];
    add(svg, "circle", { class: "mark", cx: sx, cy: sy, r: 9 });
    add(svg, "text", { class: "mark name", x: sx - 18, y: sy - 18, "text-anchor": "end" }, "start");
    add(svg, "path", { class: "mark", d: `M${mx} ${my}` + "m0-20l5 14 15 0-12 9 5 14-13-9-13 9 5-14-12-9 15 0z" });
    add(svg, "text", { class: "mark name", x: mx + 22, y: my + 44 }, "minimum");
  }

  // Both charts run over the steps; a click or a drag on them goes there.
  function chart(svg) {
    svg.replaceChildren();
    const box = { left: 46, right: svg.clientWidth - 12, top: 8, bottom: svg.clientHeight - 22 };
    box.x = (t) => box.left + (t / steps) * (box.right - box.left);
    for (let k = 0; k <= 4; k++) add(svg, "text", { class: "tick x", x: box.x((k / 4) * steps), y: box.bottom + 16 }, Math.round((k / 4) * steps));
    svg.onpointerdown = svg.onpointermove = (event) => {
      if (!event.buttons) return;
      pause();
      const x = event.clientX - svg.getBoundingClientRect().left;
      show(Math.round(((x - box.left) / (box.right - box.left)) * steps));
    };
    return box;
  }
  function cursor(svg, box) {
    const now = add(svg, "line", { class: "now", y1: box.top, y2: box.bottom });
    moves.push((t) => { now.setAttribute("x1", box.x(t)); now.setAttribute("x2", box.x(t)); });
  }

  function drawValue() {
    const svg = $("value"), box = chart(svg);
    const log = (v) => Math.log10(Math.max(v, 1e-300));
    const seen = scene().paths.flatMap((p) => p.f.map(log));
    const low = Math.floor(Math.min(...seen)), high = Math.ceil(Math.max(...seen));
    const y = (v) => box.bottom - ((v - low) / (high - low || 1)) * (box.bottom - box.top);
    const every = Math.ceil((high - low) / 6) || 1;
    for (let k = low; k <= high; k += every) {
      add(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: y(k), y2: y(k) });
      add(svg, "text", { class: "tick y", x: box.left - 6, y: y(k) + 4 }, k >= -2 && k <= 3 ? String(+(10 ** k).toPrecision(1)) : `1e${k}`.replace("-", "−"));
    }
    for (const [p, g] of groups(svg)) {
      const points = p.f.map((f, t) => [box.x(t), y(log(f))]);
      add(g, "polyline", { class: "path whole", points: line(points) });
      const path = add(g, "polyline", { class: strong(p) });
      moves.push((t) => path.setAttribute("points", line(points.slice(0, t + 1))));
    }
    cursor(svg, box);
  }

  function drawCosine() {
    const svg = $("cosine"), box = chart(svg), high = (box.bottom - box.top) / scene().paths.length;
    groups(svg).reverse().forEach(([p, g], row) => {
      const middle = box.top + (row + 0.5) * high, y = (c) => middle - c * (high / 2 - 10);
      add(g, "rect", { class: "uphill", x: box.left, y: middle, width: box.right - box.left, height: high / 2 - 5 });
      for (const c of [-1, 0, 1]) add(g, "text", { class: "tick y", x: box.left - 6, y: y(c) + 4 }, c < 0 ? "−1" : c);
      if (p.optimizer === "acmo") add(g, "line", { class: "bound", x1: box.left, x2: box.right, y1: y(bound), y2: y(bound) });
      const points = p.cos.map((c, t) => (c === null ? null : [box.x(t + 1), y(c)]));
      const dots = points.map((at) => at && add(g, "circle", { class: "point", cx: at[0], cy: at[1], r: 1.7 }));
      moves.push((t) => dots.forEach((dot, i) => dot && dot.setAttribute("opacity", i < t ? 1 : 0.2)));
    });
    cursor(svg, box);
  }

  const degrees = (c) => (c === undefined || c === null ? "–" : `${Math.round((Math.acos(Math.max(-1, Math.min(1, c))) * 180) / Math.PI)}°`);
  const number = (v) => (v === 0 || (v >= 0.001 && v < 1e4) ? String(+v.toPrecision(3)) : v.toExponential(1).replace("-", "−"));

  function show(t) {
    state.t = Math.max(0, Math.min(steps, t));
    for (const move of moves) move(state.t);
    $("step").value = state.t;
    $("step").setAttribute("aria-valuetext", `step ${state.t} of ${steps}`);
    $("count").textContent = `step ${state.t} of ${steps}`;
    rows.forEach((row, i) => {
      const p = scene().paths[i], t = state.t, uphill = p.cos.slice(0, t).filter((c) => c < 0).length;
      const texts = [number(p.lr), number(p.f[t]), number(p.away[t]), degrees(p.cos[t - 1]), uphill];
      [...row.cells].slice(1).forEach((cell, k) => { cell.textContent = texts[k]; });
    });
  }

  function draw() {
    moves = [];
    const s = scene();
    $("formula").textContent = `f = ${s.formula}` + (s.noise ? `, gradients with noise of σ = ${s.noise}` : "");
    drawMap();
    drawValue();
    drawCosine();
    show(state.t);
  }

  let before = 0, owed = 0;
  function tick(now) {
    if (!state.playing) return;
    owed += (Math.min(now - before, 250) / 1000) * Number($("speed").value);
    before = now;
    const whole = Math.floor(owed);
    owed -= whole;
    if (whole) show(state.t + whole);
    if (state.t >= steps) pause();
    else requestAnimationFrame(tick);
  }
  function pause() {
    state.playing = false;
    $("play").textContent = "▶ Play";
  }
  function play() {
    if (state.t >= steps) show(0);
    state.playing = true;
    $("play").textContent = "❚❚ Pause";
    before = performance.now();
    owed = 0;
    requestAnimationFrame(tick);
  }

  $("play").addEventListener("click", () => (state.playing ? pause() : play()));
  $("step").addEventListener("input", (event) => { pause(); show(Number(event.target.value)); });
  $("surface").addEventListener("change", (event) => { state.scene = Number(event.target.value); draw(); });
  for (const row of rows) {
    const button = row.querySelector("button");
    button.addEventListener("click", () => {
      const { optimizer } = row.dataset;
      if (!state.hidden.delete(optimizer)) state.hidden.add(optimizer);
      button.setAttribute("aria-pressed", String(!state.hidden.has(optimizer)));
      draw();
    });
  }
  $("surface").querySelector(":checked").dispatchEvent(new Event("change", { bubbles: true })); // what a reload remembers
  let wide = $("value").clientWidth; // an iframe may be hidden at first
  new ResizeObserver(() => { if ($("value").clientWidth !== wide) { wide = $("value").clientWidth; draw(); } }).observe($("value"));
  performance.mark("drawn");
})();
