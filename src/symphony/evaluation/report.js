// Draws the report from the JSON in #data. Names in it come from users, so they only ever become text nodes.
"use strict";
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const metric = Object.fromEntries(D.metrics.map((m) => [m.name, m]));
  const state = { base: D.baseline, sort: "mean_completion_s", descending: false, metric: "mean_completion_s", distribution: "slow-down" };

  // ---------------------------------------------------------------------------------------------- small helpers
  function build(parent, tag, attributes, ...children) {
    const svg = parent instanceof SVGElement || tag === "svg";
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    for (const child of children) node.append(child);
    parent.append(node);
    return node;
  }
  const meanOf = (policy, name) => metric[name].means[policy];
  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Long names often differ at their ends, so they are cut in the middle.
  const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 7)}…${text.slice(-6)}` : text);
  const minus = (text) => text.replace(/-/g, "\u2212");

  function significant(x, digits = 3) {
    if (x === null || x === undefined) return "never";
    if (x === 0) return "0";
    const decimals = clamp(digits - 1 - Math.floor(Math.log10(Math.abs(x))), 0, 6);
    return minus(x.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));
  }
  function timeScale(seconds) {
    for (const [factor, unit] of [[3600, "h"], [60, "min"]]) if (seconds >= 2 * factor) return [factor, unit];
    return seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  }
  function duration(seconds) {
    if (seconds === null) return "never";
    if (seconds === 0) return "0 s";
    const [factor, unit] = timeScale(Math.abs(seconds));
    return `${significant(seconds / factor)} ${unit}`;
  }
  function show(m, value) {
    if (value === null) return m.unit === "s" || m.unit === "times" ? "never" : "–";
    if (m.unit === "s") return duration(value);
    if (m.unit === "share") return `${(100 * value).toFixed(1)}%`;
    if (m.unit === "times") return value.toFixed(2);
    return significant(value, 4);
  }
  function signed(m, pair, value) {
    if (value === null) return "–";
    const sign = (x) => (x < 0 ? "\u2212" : "+");
    if (pair[0]) return `${sign(value - 1)}${Math.abs(100 * (value - 1)).toFixed(1)}%`;
    return sign(value) + (m.unit === "share" ? `${Math.abs(100 * value).toFixed(1)} pp` : show(m, Math.abs(value)));
  }
  const pairOf = (m, policy) => m.paired[D.baselines.indexOf(state.base)][policy];
  const tone = (verdict) => ({ better: "good", worse: "bad" }[verdict] || "dim");

  // ---------------------------------------------------------------------------------------------------- tooltip
  const tip = byId("tip");
  function showTip(event, title, rows) {
    tip.replaceChildren();
    build(tip, "b", {}, title);
    const list = build(tip, "dl");
    for (const [key, value, colour] of rows) {
      const term = build(list, "dt");
      if (colour) build(term, "span", { class: "swatch", style: `background:${colour}` });
      term.append(key);
      build(list, "dd", {}, value);
    }
    tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${clamp(event.clientY + 14, 4, Math.max(4, innerHeight - box.height - 4))}px`;
  }
  const hideTip = () => { tip.style.display = "none"; };

  // -------------------------------------------------------------------------------------------------- the header
  const counted = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  byId("facts").textContent = [
    `${D.workload} on ${D.topology} (${counted(D.machines, "machine")}, ${counted(D.devices, "device")})`,
    D.policies.length === 1 ? "1 policy" : `${D.policies.length} policies`,
    counted(D.seeds.length, "seed"), `${counted(D.jobs, "job")} a run`,
    `baseline ${D.policies[D.baseline].name}`].join(" · ");
  for (const note of D.notes) build(byId("notes"), "li", {}, note);
  if (D.policies.some((p) => p.cheats)) build(byId("notes"), "li", {}, "† cheats: sees the true state, where the others see noisy readings.");
  byId("disturbances").textContent = "Disturbances: " + Object.entries(D.disturbances).map(([k, v]) => `${k} = ${v}`).join(", ") + ".";
  byId("copy").addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents(byId("command"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    if (navigator.clipboard) navigator.clipboard.writeText(byId("command").textContent).catch(() => {});
  });

  // --------------------------------------------------------------------------------------------------- summary
  function column(name, title, options = {}) {
    return { name, title, value: (p) => meanOf(p, name), ...options };
  }
  function summary() {
    const table = byId("summary");
    table.replaceChildren();
    const scaleOf = (name) => {
      const known = D.policies.map((_, p) => meanOf(p, name)).filter((v) => v !== null).sort((a, b) => a - b);
      return timeScale(known.length ? known[known.length >> 1] : 1);
    };
    const [factor, unit] = scaleOf("p50_completion_s"), [spanFactor, spanUnit] = scaleOf("makespan_s");
    const time = (v) => (v === null ? "never" : significant(v / factor));
    const percent = (v) => (v === null ? "–" : `${(100 * v).toFixed(0)}%`);
    const headline = metric.mean_completion_s;
    const groups = [
      ["", [{ name: "policy", title: "policy", value: (p) => D.policies[p].name, policy: true }]],
      [`completion time, ${unit}`, ["mean", "p50", "p90", "p99"].map((k) => column(`${k}_completion_s`, k, { text: time }))],
      ["slow-down", ["mean", "p99"].map((k) => column(`${k}_slowdown`, k, { text: (v) => significant(v) }))],
      ["makespan", [column("makespan_s", spanUnit, { text: (v) => (v === null ? "never" : significant(v / spanFactor)) })]],
      ["gangs, by loss to contention", [["isolated_share", "isolated"], ["within10_share", "≤ 10%"], ["within20_share", "≤ 20%"], ["worse_share", "worse"]]
        .map(([name, title], i) => column(name, title, { text: percent, bar: D.loss_colours[i] }))],
      [`mean time against ${shorten(D.policies[state.base].name, 16)}`, [
        { name: "paired", title: "difference (95% interval)", value: (p) => (pairOf(headline, p) || [1, 1])[1], forest: true }]],
      ["decisions", [column("decisions_per_s", "per s", { text: (v) => (v === null ? "–" : Math.round(v).toLocaleString("en")) })]],
    ];
    const columns = groups.flatMap(([, list]) => list);
    const head = build(table, "thead"), top = build(head, "tr"), below = build(head, "tr");
    for (const [title, list] of groups) {
      build(top, "th", { class: `group ${title ? "edge" : ""}`, colspan: list.length, scope: "colgroup" }, title);
      list.forEach((c, i) => {
        const sorted = state.sort === c.name ? (state.descending ? "descending" : "ascending") : "none";
        const cell = build(below, "th", { "aria-sort": sorted, class: `${i === 0 && title ? "edge" : ""} ${c.forest ? "left" : ""}`, scope: "col" });
        build(cell, "button", { type: "button" }, c.title).addEventListener("click", () => {
          state.descending = state.sort === c.name ? !state.descending : false;
          state.sort = c.name;
          summary();
        });
      });
    }
    const by = columns.find((c) => c.name === state.sort);
    const last = (v) => v === null || v === undefined;
    const order = D.policies.map((_, p) => p).sort((a, b) => {
      const x = by.value(a), y = by.value(b);
      if (last(x) || last(y)) return last(x) - last(y);
      return (x < y ? -1 : x > y ? 1 : 0) * (state.descending ? -1 : 1);
    });
    const pairs = order.map((p) => pairOf(headline, p)).filter((x) => x && x[1] !== null);
    const ends = pairs.flatMap((x) => [x[1], x[2] ?? x[1], x[3] ?? x[1], 1]);
    const low = Math.min(0.95, ...ends), high = Math.max(1.05, ...ends);
    const body = build(table, "tbody");
    for (const p of order) {
      const row = build(body, "tr");
      groups.forEach(([title, list]) => list.forEach((c, i) => {
        const cell = build(row, "td", { class: i === 0 && title ? "edge" : "" });
        const pair = pairOf(headline, p);
        if (c.policy) {
          build(cell, "span", { class: "swatch", style: `background:${D.policies[p].colour}` });
          cell.append(shorten(D.policies[p].label, 26));
          cell.title = D.policies[p].label;
        } else if (c.forest) {
          cell.classList.add("left");
          if (!pair) { cell.append("baseline"); cell.classList.add("dim"); } else { miniForest(cell, pair, p, low, high); }
        } else {
          const value = c.value(p);
          cell.textContent = c.text(value);
          if (value === null) cell.classList.add("bad");
          if (c.bar && value !== null) {
            cell.classList.add("bar");
            cell.style.backgroundImage = `linear-gradient(${c.bar}, ${c.bar})`;
            cell.style.backgroundSize = `calc((100% - 10px) * ${value.toFixed(3)}) 3px`;
          }
        }
      }));
    }
  }
  function miniForest(cell, pair, policy, low, high) {
    const width = 64, x = (v) => 3 + ((v - low) / (high - low)) * (width - 6);
    const box = build(cell, "div", { class: "against" }), colour = D.policies[policy].colour;
    const svg = build(box, "svg", { viewBox: `0 0 ${width} 18`, style: `width:${width}px;flex:none`, "aria-hidden": "true" });
    build(svg, "line", { x1: x(1), x2: x(1), y1: 0, y2: 18, class: "axis" });
    if (pair[1] !== null) {
      if (pair[2] !== null) build(svg, "line", { x1: x(pair[2]), x2: x(pair[3]), y1: 9, y2: 9, stroke: colour, "stroke-width": 3 });
      build(svg, "circle", { cx: x(pair[1]), cy: 9, r: 3.5, fill: colour });
    }
    const m = metric.mean_completion_s;
    const text = build(box, "span", {}, signed(m, pair, pair[1]));
    if (pair[2] !== null) build(text, "span", { class: "small" }, ` (${signed(m, pair, pair[2])} … ${signed(m, pair, pair[3])})`);
    build(text, "span", { class: `verdict ${tone(pair[5])}` }, pair[5]);
  }

  // ------------------------------------------------------------------------------- one metric: a forest of seeds
  function niceTicks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw);
    const ticks = [];
    for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) ticks.push(Math.abs(t) < step * 1e-9 ? 0 : t);
    return ticks;
  }
  function forest() {
    const holder = byId("forest"), m = metric[state.metric];
    holder.replaceChildren();
    byId("metric-definition").textContent = m.definition + (m.better === "neither" ? "" : ` ${m.better === "lower" ? "Lower" : "Higher"} is better.`);
    if (D.policies.length === 1) { holder.textContent = "One policy: there is nothing to compare it with."; return; }
    const base = state.base, rows = [...D.policies.keys()];
    const rank = (p) => meanOf(p, m.name) ?? Infinity;
    rows.sort((a, b) => (m.better === "lower" ? rank(a) - rank(b) : rank(b) - rank(a)));
    const pairs = rows.map((p) => pairOf(m, p));
    const ratio = pairs.some((x) => x && x[0]), nothing = ratio ? 1 : 0;
    const seeds = rows.map((p) => m.values[p].map((v, i) => {
      const b = m.values[base][i];
      return v === null || b === null || (ratio && b === 0) ? null : ratio ? v / b : v - b;
    }));
    const all = [nothing, ...seeds.flat(), ...pairs.flatMap((x) => (x && (x[0] === 1) === ratio ? [x[2], x[3]] : []))].filter((v) => v !== null);
    let low = Math.min(...all), high = Math.max(...all);
    const pad = (high - low || 0.1) * 0.06;
    low -= pad; high += pad;
    const width = Math.max(900, holder.clientWidth), left = 270, right = 330, rowHeight = 46, top = 28;
    const height = top + rows.length * rowHeight + 40;
    const x = (v) => left + ((v - low) / (high - low)) * (width - left - right);
    const wrap = build(holder, "div", { class: "scroll" });
    const svg = build(wrap, "svg", { viewBox: `0 0 ${width} ${height}`, style: `min-width:${width}px;height:${height}px`, role: "img", "aria-label": m.title });
    build(svg, "text", { x: 0, y: 14, class: "dim" }, "policy");
    build(svg, "text", { x: left - 22, y: 14, class: "dim", "text-anchor": "end" }, "mean");
    build(svg, "text", { x: width - right + 20, y: 14, class: "dim" }, `against ${shorten(D.policies[base].name, 18)}, 95% interval, p`);
    const bottom = top + rows.length * rowHeight;
    for (const t of niceTicks(low, high, 6)) {
      build(svg, "line", { x1: x(t), x2: x(t), y1: top, y2: bottom, class: "grid" });
      const label = ratio ? `${Number(t.toPrecision(4))}×` : m.unit === "share" ? `${minus(Number((100 * t).toPrecision(4)).toString())} pp` : minus(Number(t.toPrecision(4)).toString());
      build(svg, "text", { x: x(t), y: bottom + 17, class: "dim", "text-anchor": "middle" }, label);
    }
    build(svg, "line", { x1: x(nothing), x2: x(nothing), y1: top - 4, y2: bottom, class: "axis", "stroke-width": 1.3 });
    const less = m.better === "lower" ? "better" : m.better === "higher" ? "worse" : "lower";
    const more = { better: "worse", worse: "better", lower: "higher" }[less];
    build(svg, "text", { x: left, y: bottom + 34, class: "dim" }, `← ${less} than ${shorten(D.policies[base].name, 18)}`);
    build(svg, "text", { x: width - right, y: bottom + 34, class: "dim", "text-anchor": "end" }, `${more} →`);
    rows.forEach((p, i) => {
      const y = top + i * rowHeight + rowHeight / 2, colour = D.policies[p].colour, pair = pairs[i];
      build(svg, "rect", { x: 0, y: y - 6, width: 11, height: 11, rx: 3, fill: colour });
      build(svg, "text", { x: 18, y: y + 4 }, shorten(D.policies[p].label, 24));
      build(svg, "text", { x: left - 22, y: y + 4, "text-anchor": "end" }, show(m, meanOf(p, m.name)));
      if (!pair) {
        build(svg, "text", { x: width - right + 20, y: y + 4, class: "dim" }, "baseline");
        return;
      }
      seeds[i].forEach((v, s) => {
        if (v === null) return;
        const dot = build(svg, "circle", { cx: x(v), cy: y + 10 + ((s * 7) % 5) * 1.6, r: 3.2, fill: colour, "fill-opacity": 0.6 });
        dot.addEventListener("mousemove", (event) => showTip(event, `seed ${D.seeds[s]}`, [
          [D.policies[p].label, show(m, m.values[p][s]), colour],
          [D.policies[base].label, show(m, m.values[base][s]), D.policies[base].colour],
          [ratio ? "ratio" : "difference", ratio ? significant(v, 4) : signed(m, [0], v)]]));
        dot.addEventListener("mouseleave", hideTip);
      });
      if (pair[1] !== null && (pair[0] === 1) === ratio) {
        if (pair[2] !== null) build(svg, "line", { x1: x(pair[2]), x2: x(pair[3]), y1: y - 3, y2: y - 3, stroke: colour, "stroke-width": 4, "stroke-linecap": "round" });
        build(svg, "circle", { cx: x(pair[1]), cy: y - 3, r: 5.5, fill: colour, stroke: css("--card"), "stroke-width": 1.5 });
      }
      const interval = pair[2] === null ? "" : ` (${signed(m, pair, pair[2])} … ${signed(m, pair, pair[3])})`;
      const p_value = pair[4] === null ? "" : `, p ${pair[4] < 1e-4 ? "< 0.0001" : pair[4].toPrecision(2)}`;
      build(svg, "text", { x: width - right + 20, y: y - 2 }, signed(m, pair, pair[1]) + interval + p_value);
      build(svg, "text", { x: width - right + 20, y: y + 15, style: `fill:var(--${{ better: "good", worse: "bad" }[pair[5]] || "soft"});font-weight:600` }, pair[5]);
    });
  }

  // ------------------------------------------------------------------------------------------------ distributions
  function logTicks(low, high) {
    const ticks = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const f of high / low < 8 ? [1, 1.5, 2, 3, 4, 5, 7] : high / low < 200 ? [1, 2, 5] : [1]) ticks.push(f * 10 ** e);
    return ticks.filter((t) => t >= low && t <= high);
  }
  function cdf() {
    // A job that never finished has no value: its policy's curve ends below 100%.
    const holder = byId("cdf"), rows = D.distributions[state.distribution].map((values) => values.filter((v) => v !== null));
    holder.replaceChildren();
    const slow = state.distribution === "slow-down";
    const text = (v) => (slow ? `${significant(v)}×` : duration(v));
    const all = rows.flat();
    if (!all.length) { holder.textContent = "No job finished."; return; }
    const low = Math.min(...all) * 0.96, high = Math.max(...all) * 1.04;
    const width = Math.max(320, holder.clientWidth), height = 300, left = 42, right = 12, bottom = height - 26;
    const x = (v) => left + (Math.log(v / low) / Math.log(high / low)) * (width - left - right), y = (q) => bottom - q * (bottom - 8);
    const svg = build(holder, "svg", { viewBox: `0 0 ${width} ${height}`, style: `height:${height}px`, role: "img", "aria-label": `distribution of ${state.distribution}` });
    for (const q of [0, 0.25, 0.5, 0.75, 0.9, 1]) {
      build(svg, "line", { x1: left, x2: width - right, y1: y(q), y2: y(q), class: "grid" });
      build(svg, "text", { x: left - 6, y: y(q) + 4, class: "dim", "text-anchor": "end" }, `${100 * q}%`);
    }
    for (const t of logTicks(low, high)) {
      build(svg, "line", { x1: x(t), x2: x(t), y1: y(1), y2: bottom, class: "grid" });
      build(svg, "text", { x: x(t), y: bottom + 17, class: "dim", "text-anchor": "middle" }, slow ? `${Number(t.toPrecision(2))}×` : duration(t).replace(/\.0+ /, " "));
    }
    rows.forEach((values, p) => {
      const points = values.map((v, i) => `${x(v).toFixed(1)},${y(D.levels[i]).toFixed(1)}`);
      build(svg, "polyline", { points: points.join(" "), fill: "none", stroke: D.policies[p].colour, "stroke-width": 2.2, "stroke-dasharray": dash(p) });
    });
    const cross = build(svg, "line", { y1: y(1), y2: bottom, class: "axis", visibility: "hidden" });
    svg.addEventListener("mousemove", (event) => {
      const at = ((event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width) * width;
      if (at < left || at > width - right) { cross.setAttribute("visibility", "hidden"); hideTip(); return; }
      cross.setAttribute("x1", at); cross.setAttribute("x2", at); cross.setAttribute("visibility", "visible");
      const value = low * (high / low) ** ((at - left) / (width - left - right));
      showTip(event, `${state.distribution} at most ${text(value)}`, D.ranking.map((p) => [D.policies[p].label, `${(100 * shareBelow(rows[p], value)).toFixed(1)}% of jobs`, D.policies[p].colour]));
    });
    svg.addEventListener("mouseleave", () => { cross.setAttribute("visibility", "hidden"); hideTip(); });
    policyLegend(holder);
  }
  function shareBelow(values, value) {
    if (!values.length || value < values[0]) return 0;
    let i = 0;
    while (i + 1 < values.length && values[i + 1] <= value) i++;
    if (i + 1 === values.length) return D.levels[i];
    return D.levels[i] + ((value - values[i]) / (values[i + 1] - values[i])) * (D.levels[i + 1] - D.levels[i]);
  }
  // Once the palette is used up, lines of one colour differ in their dashes.
  const dash = (p) => ["", "7 3", "2 3", "9 3 2 3"][Math.floor(p / D.palette.length) % 4];
  function policyLegend(holder) {
    const legend = build(holder, "div", { class: "legend" });
    for (const p of D.ranking) {
      const item = build(legend, "span");
      const line = build(item, "svg", { viewBox: "0 0 24 10", class: "line", "aria-hidden": "true" });
      build(line, "line", { x1: 0, x2: 24, y1: 5, y2: 5, stroke: D.policies[p].colour, "stroke-width": 4, "stroke-dasharray": dash(p) });
      item.append(D.policies[p].label);
    }
  }
  function utilisation() {
    const holder = byId("utilisation");
    holder.replaceChildren();
    const kinds = D.metrics.filter((m) => m.name.startsWith("utilisation."));
    const thick = clamp(Math.round(44 / D.policies.length), 4, 12), gap = 16;
    const width = Math.max(320, holder.clientWidth), left = 108, right = 46, rowHeight = thick * D.policies.length + gap;
    const height = kinds.length * rowHeight + 6;
    const most = Math.max(0.01, ...kinds.flatMap((m) => D.policies.map((_, p) => meanOf(p, m.name) || 0)));
    const svg = build(holder, "svg", { viewBox: `0 0 ${width} ${height}`, style: `height:${height}px`, role: "img", "aria-label": "utilisation by kind of resource" });
    kinds.forEach((m, k) => {
      const y = k * rowHeight + gap / 2;
      build(svg, "text", { x: left - 10, y: y + (thick * D.policies.length) / 2 + 4, "text-anchor": "end" }, m.name.slice(12).replace("_", " "));
      D.ranking.forEach((p, i) => {
        const value = meanOf(p, m.name);
        if (value === null) return;
        const length = (value / most) * (width - left - right);
        const bar = build(svg, "rect", { x: left, y: y + i * thick, width: Math.max(1, length), height: thick - 1.5, rx: 1.5, fill: D.policies[p].colour });
        if (thick > 8) build(svg, "text", { x: left + length + 5, y: y + i * thick + thick - 2.5, class: "dim", style: "font-size:10.5px" }, show(m, value));
        bar.addEventListener("mousemove", (event) => showTip(event, m.title, D.ranking.map((q) => [D.policies[q].label, show(m, meanOf(q, m.name)), D.policies[q].colour])));
        bar.addEventListener("mouseleave", hideTip);
      });
      build(svg, "line", { x1: left, x2: left, y1: y - 3, y2: y + thick * D.policies.length + 1, class: "axis" });
    });
    policyLegend(holder);
  }

  // ---------------------------------------------------------------------------------------------------- schedules
  const GUTTER = 132, AXIS = 20, STRIP = 40, HEAD = 18, MOST_HEIGHT = 460;
  const shared = { seed: 0, colour: "kernel", waiting: true, t0: 0, t1: 1, job: null, kernel: null, panels: [] };
  const schedule = () => D.schedules[shared.seed];

  function decode(run, plan) {
    if (run.stays) return run;
    const t = plan.tick;
    let start = 0, bar = 0;
    run.stays = run.job.map((job, i) => {
      start += run.start[i];
      const s = { job, i, gang: run.gang[i], kernel: run.kernel[i], start: start * t, finish: (start + run.length[i]) * t,
        placed: (start - run.queued[i]) * t, ready: (start - run.queued[i] - run.undecided[i]) * t, setup: run.setup[i] * t,
        stretch: run.stretch[i] / 1000, outcome: run.cut[i] || "finished", bars: [] };
      for (let w = 0; w < run.workers[i]; w++, bar++) s.bars.push([run.bar_device[bar], run.bar_lane[bar]]);
      return s;
    });
    const steps = run.stays.flatMap((s) => [[s.ready, 1, 0], [s.start, -1, s.bars.length], [s.finish, 0, -s.bars.length]]).sort((a, b) => a[0] - b[0]);
    let waiting = 0, running = 0;
    run.load = steps.map(([time, w, r]) => [time, (waiting += w), (running += r)]);
    run.most = Math.max(1, ...run.load.map((step) => Math.max(step[1], step[2])));
    return run;
  }
  function layout(run, plan) {
    const lanes = plan.devices.map(() => 1);
    for (const s of run.stays) for (const [d, lane] of s.bars) lanes[d] = Math.max(lanes[d], lane + 1);
    const height = clamp(Math.floor(420 / lanes.reduce((a, b) => a + b, 0)), 9, 18);
    const machines = new Map();
    plan.devices.forEach(([, , machine], d) => machines.set(machine, [...(machines.get(machine) || []), d]));
    const top = [], heads = [];
    let y = 0;
    for (const [machine, devices] of machines) {
      heads.push([machine, y]);
      y += HEAD;
      for (const d of devices) { top[d] = y; y += lanes[d] * height + 3; }
      y += 3;
    }
    return { lanes, height, top, heads, total: y };
  }
  function colourOf(stay) {
    if (shared.colour === "job") return `hsl(${(stay.job * 137.508) % 360} 52% ${stay.job % 2 ? 56 : 46}%)`;
    const index = schedule().kernels.indexOf(stay.kernel);
    return index < 0 ? "#999" : D.kernel_palette[index % D.kernel_palette.length];
  }

  function panel(holder, first, optional) {
    const self = { policy: first, scroll: 0 };
    const head = build(holder, "div", { class: "panel-head" });
    const select = build(head, "select", { "aria-label": "policy of this schedule" });
    if (optional) build(select, "option", { value: -1 }, "(one schedule only)");
    for (const p of D.ranking) build(select, "option", { value: p }, D.policies[p].label);
    select.value = first;
    const about = build(head, "span");
    const canvas = build(holder, "canvas", { tabindex: 0, role: "img", "aria-label": "Gantt chart of a schedule" });
    const pen = canvas.getContext("2d");
    const hatch = document.createElement("canvas");
    let width = 0, height = 0, plan, run, rows;

    const X = (t) => GUTTER + ((t - shared.t0) / (shared.t1 - shared.t0)) * (width - GUTTER);
    const T = (x) => shared.t0 + ((x - GUTTER) / (width - GUTTER)) * (shared.t1 - shared.t0);
    const body = AXIS + STRIP;

    self.load = () => {
      self.policy = Number(select.value);
      const hidden = self.policy < 0;
      canvas.style.display = hidden ? "none" : "block";
      about.textContent = "";
      if (hidden) return;
      plan = schedule();
      run = decode(plan.runs[self.policy], plan);
      rows = layout(run, plan);
      self.scroll = 0;
      about.textContent = `mean completion time ${duration(run.mean)}` + (run.left_out ? ` · the first ${run.stays.length.toLocaleString("en")} stays, ${run.left_out.toLocaleString("en")} more are in the records` : "") +
        (plan.hidden ? ` · ${plan.hidden.toLocaleString("en")} idle devices not shown` : "");
      self.draw();
    };
    self.end = () => (self.policy < 0 ? 0 : Math.max(0, ...run.stays.map((s) => s.finish)));
    self.draw = () => {
      if (self.policy < 0) return;
      const ratio = devicePixelRatio || 1;
      width = canvas.clientWidth;
      height = body + Math.min(MOST_HEIGHT, rows.total + 4);
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      const ink = css("--ink"), soft = css("--soft"), line = css("--line"), grid = css("--grid"), card = css("--card"), red = css("--hatch");
      pen.fillStyle = card;
      pen.fillRect(0, 0, width, height);
      pen.font = '11px system-ui, "DejaVu Sans", sans-serif';
      pen.textBaseline = "middle";
      // Time axis.
      const [factor, unit] = timeScale((shared.t1 - shared.t0) / 3);
      for (const t of niceTicks(shared.t0 / factor, shared.t1 / factor, 8)) {
        const x = X(t * factor);
        if (x < GUTTER) continue;
        pen.fillStyle = grid;
        pen.fillRect(x, AXIS - 4, 1, height);
        pen.fillStyle = soft;
        pen.textAlign = x > width - 30 ? "right" : "center";
        pen.fillText(`${Number(t.toPrecision(6))} ${unit}`, x, AXIS / 2);
      }
      drawStrip(ink, soft, line);
      // Machines, devices and bars.
      pen.save();
      pen.beginPath();
      pen.rect(0, body, width, height - body);
      pen.clip();
      pen.translate(0, body - self.scroll);
      for (const [machine, y] of rows.heads) {
        pen.fillStyle = css("--shade");
        pen.fillRect(0, y, width, HEAD - 2);
        pen.fillStyle = ink;
        pen.textAlign = "left";
        pen.font = '600 11px system-ui, "DejaVu Sans", sans-serif';
        pen.fillText(shorten(machine, 60), 8, y + HEAD / 2 - 1);
      }
      pen.font = '11px system-ui, "DejaVu Sans", sans-serif';
      plan.devices.forEach(([name, , machine], d) => {
        const size = rows.lanes[d] * rows.height;
        pen.fillStyle = grid;
        pen.fillRect(0, rows.top[d] + size + 1, width, 1);
        pen.fillStyle = soft;
        pen.textAlign = "right";
        const short = name.startsWith(`${machine}/`) ? name.slice(machine.length + 1) : name; // the heading has the rest
        pen.fillText(shorten(short, 19), GUTTER - 8, rows.top[d] + size / 2, GUTTER - 14);
      });
      pen.beginPath();
      pen.rect(GUTTER, self.scroll, width - GUTTER, height);
      pen.clip();
      drawBars(card, ink, red);
      pen.restore();
      pen.fillStyle = line;
      pen.fillRect(GUTTER - 1, AXIS, 1, height);
      if (rows.total > MOST_HEIGHT) { // a scroll bar
        const visible = height - body;
        pen.fillStyle = soft;
        pen.globalAlpha = 0.5;
        pen.fillRect(width - 5, body + (self.scroll / rows.total) * visible, 4, (visible / rows.total) * visible);
        pen.globalAlpha = 1;
      }
    };
    function drawStrip(ink, soft, line) {
      const bottom = AXIS + STRIP - 4, y = (n) => bottom - (n / run.most) * (STRIP - 8);
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, 0, width - GUTTER, height);
      pen.clip();
      for (const [index, style] of [[2, "area"], [1, "line"]]) {
        pen.beginPath();
        pen.moveTo(X(0), y(0));
        let last = 0;
        for (const step of run.load) { pen.lineTo(X(step[0]), y(last)); last = step[index]; pen.lineTo(X(step[0]), y(last)); }
        pen.lineTo(X(self.end()), y(0));
        if (style === "area") { pen.fillStyle = soft; pen.globalAlpha = 0.32; pen.fill(); pen.globalAlpha = 1; }
        else { pen.strokeStyle = D.loss_colours[3]; pen.lineWidth = 1.2; pen.stroke(); }
      }
      pen.restore();
      pen.fillStyle = line;
      pen.fillRect(0, bottom + 1, width, 1);
      pen.textAlign = "right";
      pen.fillStyle = soft;
      pen.fillText("running workers", GUTTER - 8, AXIS + 9);
      pen.fillStyle = D.loss_colours[3];
      pen.fillText("waiting gangs", GUTTER - 8, AXIS + 24);
    }
    function hatchPattern(red) {
      hatch.width = hatch.height = 12;
      const p = hatch.getContext("2d");
      p.strokeStyle = red;
      p.lineWidth = 1.6;
      for (const shift of [-12, -6, 0, 6, 12]) { p.moveTo(shift, 12); p.lineTo(shift + 12, 0); }
      p.stroke();
      return pen.createPattern(hatch, "repeat");
    }
    function drawBars(card, ink, red) {
      const pattern = hatchPattern(red), h = rows.height - 2;
      const faded = (s) => (shared.job !== null && s.job !== shared.job) || (shared.kernel !== null && s.kernel !== shared.kernel);
      for (const s of run.stays) {
        const x0 = X(s.start), x1 = X(s.finish), wait = X(s.placed);
        if (x1 < GUTTER || Math.min(x0, wait) > width) continue;
        const colour = colourOf(s), w = Math.max(1, x1 - x0 - 0.5), dim = faded(s);
        for (const [d, lane] of s.bars) {
          const y = rows.top[d] + lane * rows.height + 1;
          if (y > self.scroll + height || y + h < self.scroll) continue;
          pen.globalAlpha = dim ? 0.13 : 1;
          pen.fillStyle = colour;
          pen.fillRect(x0, y, w, h);
          if (shared.waiting && x0 - wait > 1) {
            pen.globalAlpha = dim ? 0.08 : 0.6;
            pen.fillRect(wait, y + h - 1.5, x0 - wait, 1.5);
            pen.fillRect(wait, y + h - 4.5, 1, 4.5);
            pen.globalAlpha = dim ? 0.13 : 1;
          }
          if (s.setup > 0) {
            pen.fillStyle = card;
            pen.globalAlpha *= 0.62;
            pen.fillRect(x0 + 1, y + 1, Math.max(0, X(s.start + s.setup) - x0 - 1), h - 2);
            pen.globalAlpha = dim ? 0.13 : 1;
          }
          if (s.stretch > D.contended) {
            if (w > 7) {
              pen.fillStyle = pattern;
              pen.globalAlpha *= clamp((s.stretch - 1) * 2.2, 0.25, 0.8);
              pen.fillRect(x0, y, w, h);
              pen.globalAlpha = dim ? 0.13 : 1;
              pen.strokeStyle = red;
              pen.lineWidth = 1;
              pen.strokeRect(x0 + 0.5, y + 0.5, w - 1, h - 1);
            } else { pen.fillStyle = red; pen.fillRect(x0, y, w, 2); }
          }
          if (s.outcome !== "finished") {
            pen.fillStyle = ink;
            pen.beginPath();
            pen.moveTo(x1 + 1, y); pen.lineTo(x1 - 6, y + h / 2); pen.lineTo(x1 + 1, y + h);
            pen.fill();
          }
          if (w > 54 && h >= 12 && !dim) {
            pen.save();
            pen.beginPath();
            pen.rect(x0 + 2, y, w - 4, h);
            pen.clip();
            pen.textAlign = "left";
            pen.lineWidth = 2.5;
            pen.strokeStyle = "rgba(0,0,0,.45)";
            pen.fillStyle = "#fff";
            const label = shared.colour === "job" ? `job ${s.job}` : plan.names[s.gang] || "";
            pen.strokeText(label, x0 + 5, y + h / 2 + 0.5);
            pen.fillText(label, x0 + 5, y + h / 2 + 0.5);
            pen.restore();
          }
        }
      }
      pen.globalAlpha = 1;
    }
    function hit(event) {
      const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top - body + self.scroll;
      if (x < GUTTER || event.clientY - box.top < body) return null;
      const t = T(x), slack = ((shared.t1 - shared.t0) / (width - GUTTER)) * 1.5;
      return run.stays.find((s) => s.start - slack <= t && t <= s.finish + slack && s.bars.some(([d, lane]) => {
        const top = rows.top[d] + lane * rows.height;
        return top <= y && y < top + rows.height;
      })) || null;
    }
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, t0: shared.t0, t1: shared.t1, scroll: self.scroll };
      canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("dragging");
      hideTip();
    });
    canvas.addEventListener("pointerup", () => { drag = null; canvas.classList.remove("dragging"); });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const shift = ((event.clientX - drag.x) / (width - GUTTER)) * (drag.t1 - drag.t0);
        look(drag.t0 - shift, drag.t1 - shift);
        scrollTo(drag.scroll - (event.clientY - drag.y));
        return;
      }
      const stay = hit(event), job = stay ? stay.job : null;
      if (job !== shared.job) { shared.job = job; drawAll(); }
      if (!stay) { hideTip(); return; }
      const about = run.jobs[stay.job];
      const rowsOf = [
        ["job", about ? `${stay.job} (${plan.names[about[0]]})` : String(stay.job)],
        ["kernel", plan.names[stay.kernel] ?? "?"],
        ["on", stay.bars.slice(0, 4).map(([d]) => plan.devices[d][0]).join(", ") + (stay.bars.length > 4 ? ` and ${stay.bars.length - 4} more` : "")],
        ["waited", `${duration(stay.placed - stay.ready)} for a decision, ${duration(stay.start - stay.placed)} in the queue or for inputs`],
        ["start", duration(stay.start)], ["duration", duration(stay.finish - stay.start)]];
      if (stay.setup > 0) rowsOf.push(["set-up", duration(stay.setup)]);
      rowsOf.push(stay.outcome === "finished" ? ["stretch", `${stay.stretch.toFixed(3)}${stay.stretch > D.contended ? " (contended)" : ""}`] : ["ended", stay.outcome]);
      if (about) rowsOf.push(["job took", `${duration(about[1])}, slow-down ${significant(about[2])}`]);
      showTip(event, plan.names[stay.gang] ?? `gang ${stay.i}`, rowsOf);
    });
    canvas.addEventListener("pointerleave", () => { hideTip(); if (shared.job !== null) { shared.job = null; drawAll(); } });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const shift = ((event.deltaX || event.deltaY) / (width - GUTTER)) * (shared.t1 - shared.t0);
        look(shared.t0 + shift, shared.t1 + shift);
      } else zoom(Math.exp(clamp(event.deltaY, -100, 100) * 0.0022), T(event.clientX - canvas.getBoundingClientRect().left));
    }, { passive: false });
    canvas.addEventListener("dblclick", wholeRun);
    canvas.addEventListener("keydown", (event) => {
      const span = shared.t1 - shared.t0, middle = (shared.t0 + shared.t1) / 2;
      const act = {
        "+": () => zoom(0.7, middle), "=": () => zoom(0.7, middle), "-": () => zoom(1.4, middle), 0: wholeRun,
        ArrowLeft: () => look(shared.t0 - span / 8, shared.t1 - span / 8), ArrowRight: () => look(shared.t0 + span / 8, shared.t1 + span / 8),
        ArrowUp: () => scrollTo(self.scroll - 60), ArrowDown: () => scrollTo(self.scroll + 60) }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    function scrollTo(y) {
      self.scroll = clamp(y, 0, Math.max(0, rows.total + 4 - MOST_HEIGHT));
      drawAll();
    }
    select.addEventListener("change", () => { self.load(); wholeRun(); });
    shared.panels.push(self);
    return self;
  }
  let pending = 0;
  function drawAll() {
    if (!pending) pending = requestAnimationFrame(() => { pending = 0; for (const p of shared.panels) p.draw(); });
  }
  function look(t0, t1) {
    const end = Math.max(...shared.panels.map((p) => p.end()), 1e-9) * 1.01;
    const span = clamp(t1 - t0, end * 1e-5, end);
    shared.t0 = clamp(t0, 0, end - span);
    shared.t1 = shared.t0 + span;
    drawAll();
  }
  const zoom = (factor, about) => look(about - (about - shared.t0) * factor, about + (shared.t1 - about) * factor);
  const wholeRun = () => look(0, Infinity);

  function kernelLegend() {
    const legend = byId("kernels"), plan = schedule();
    legend.replaceChildren();
    if (shared.colour === "job") { legend.append("One colour a job; point at a bar to see all of its job."); return; }
    for (const kernel of plan.kernels.slice(0, 40)) {
      const off = shared.kernel !== null && shared.kernel !== kernel;
      const item = build(legend, "button", { type: "button", class: off ? "off" : "", title: "show this kernel alone" });
      build(item, "span", { class: "swatch", style: `background:${colourOf({ kernel })}` });
      item.append(plan.names[kernel] ?? "?");
      item.addEventListener("click", () => { shared.kernel = shared.kernel === kernel ? null : kernel; kernelLegend(); drawAll(); });
    }
    if (plan.kernels.length > 40) legend.append(`and ${plan.kernels.length - 40} more`);
  }
  function loadSeed() {
    const plan = schedule();
    shared.kernel = null;
    for (const p of shared.panels) p.load();
    kernelLegend();
    wholeRun();
  }
  function schedules() {
    const select = byId("seed");
    D.schedules.forEach((plan, i) => build(select, "option", { value: i }, `${plan.seed}${plan.why ? `: ${plan.why}` : ""}`));
    const listed = D.schedules.map((plan) => plan.seed).join(", ");
    byId("schedule-about").textContent = D.schedules.length === D.seeds.length ? "Rows are devices, one lane for each worker at a time."
      : `Rows are devices, one lane for each worker at a time. This page holds the schedules of ${D.schedules.length === 1 ? "seed" : "seeds"} ${listed}, out of ${D.seeds.length}; the records hold all.`;
    select.addEventListener("change", () => { shared.seed = Number(select.value); loadSeed(); });
    byId("colour").addEventListener("change", (event) => { shared.colour = event.target.value; kernelLegend(); drawAll(); });
    byId("waiting").addEventListener("change", (event) => { shared.waiting = event.target.checked; drawAll(); });
    byId("reset").addEventListener("click", wholeRun);
    const fair = D.ranking.filter((p) => !D.policies[p].cheats), best = (fair.length ? fair : D.ranking)[0];
    const other = best !== D.baseline ? D.baseline : D.ranking.find((p) => p !== best) ?? -1;
    panel(byId("panel-a"), best, false);
    if (D.policies.length > 1) panel(byId("panel-b"), other, true);
    const marks = [
      ["red hatch", `slowed by over ${Math.round(100 * (D.contended - 1))}% by contention, denser with the loss`], ["pale start", "set-up: reconfiguring or restoring"],
      ["thin line before a bar", "placed, waiting in the device's queue or for its inputs"], ["notched end", "preempted or lost to a failure"]];
    for (const [mark, meaning] of marks) {
      const item = build(byId("marks"), "span", { class: "small" });
      build(item, "strong", {}, mark);
      item.append(`: ${meaning}`);
    }
    loadSeed();
  }

  // -------------------------------------------------------------------------------------------------- definitions
  function definitions() {
    const table = byId("definitions"), head = build(build(table, "thead"), "tr"), body = build(table, "tbody");
    for (const title of ["metric", "in the JSON", "better", "definition"]) build(head, "th", { scope: "col" }, title);
    for (const m of D.metrics) {
      const row = build(body, "tr");
      build(row, "td", {}, m.title);
      build(build(row, "td"), "code", {}, m.name);
      build(row, "td", {}, m.better);
      build(row, "td", {}, m.definition);
    }
  }

  // ------------------------------------------------------------------------------------------------------ controls
  for (const select of document.querySelectorAll("select.baseline")) {
    for (const p of D.baselines) build(select, "option", { value: p }, D.policies[p].label);
    select.value = state.base;
    select.addEventListener("change", () => {
      state.base = Number(select.value);
      for (const other of document.querySelectorAll("select.baseline")) other.value = state.base;
      summary();
      forest();
    });
  }
  for (const m of D.metrics) build(byId("metric"), "option", { value: m.name }, m.title);
  byId("metric").value = state.metric;
  byId("metric").addEventListener("change", (event) => { state.metric = event.target.value; forest(); });
  for (const name of Object.keys(D.distributions)) build(byId("distribution"), "option", { value: name }, name);
  byId("distribution").addEventListener("change", (event) => { state.distribution = event.target.value; cdf(); });

  function redraw() { summary(); forest(); cdf(); utilisation(); drawAll(); }
  definitions();
  schedules();
  redraw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 120); });
})();
