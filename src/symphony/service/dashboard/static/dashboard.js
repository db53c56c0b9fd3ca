// Live updates, charts and the timeline. Names come from users, so they only ever become text.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const leaving = new AbortController(); // after the user has logged out, nothing more is asked
  const get = (address, as = "json") => fetch(address, { headers: { "hx-request": "true" }, signal: leaving.signal }).then((answer) => {
    if (answer.status === 401) location.assign("/ui/login");
    return answer.ok ? answer[as]() : Promise.reject(new Error(`${answer.status}`));
  });

  // ------------------------------------------------------------------------------------------------------- login
  // A link may bring the token after "#", which browsers do not send. The user still has to press the button.
  const login = byId("login");
  if (login && location.hash.startsWith("#sy_")) {
    login.elements.token.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname + location.search);
  }

  // ------------------------------------------------------------------------------------------------ live updates
  // One stream for a page, and none while it is hidden: browsers allow few connections to a server.
  const address = document.body.dataset.events;
  let stream = null;
  function say(text) {
    const place = byId("connection");
    if (place && place.textContent !== text) place.textContent = text;
  }
  function connect() {
    const machines = document.body.dataset.machines;
    stream = new EventSource(address + (machines ? `?${new URLSearchParams({ machines })}` : ""));
    stream.onopen = () => { say("live"); refresh(); }; // what changed before it was open is not in the stream
    stream.onerror = () => {
      say("not connected");
      if (stream.readyState !== EventSource.CLOSED) return; // else the browser tries again by itself
      stream = null;
      setTimeout(() => { refresh(); follow(); }, 2000); // a session that has ended leads to the sign-in page
    };
    stream.addEventListener("change", refresh);
    stream.addEventListener("rows", (event) => Object.entries(JSON.parse(event.data)).forEach(drawRow));
  }
  function follow() {
    if (document.hidden && stream) { stream.close(); stream = null; }
    if (!document.hidden && !stream) connect();
  }
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.requestConfig.path !== "/ui/logout") return;
    leaving.abort();
    if (stream) stream.close();
  });
  if (address) {
    follow();
    document.addEventListener("visibilitychange", follow);
    addEventListener("load", () => { document.querySelectorAll("#when").forEach(update); document.querySelectorAll(".log").forEach(read); });
  }
  function drawRow([id, value]) {
    const node = byId(id);
    if (!node) return;
    if (id[0] === "d") {
      node.querySelector("tspan").textContent = value[0];
      node.classList.toggle("down", !value[1]);
      return;
    }
    const [percent, opacity, text] = value;
    node.setAttribute("class", `fill u${Math.min(Math.floor(percent / 10), 10)}`);
    node.setAttribute("width", Math.min((34 * percent) / 100, 34));
    node.setAttribute("fill-opacity", opacity);
    const title = node.parentNode.querySelector("title");
    title.textContent = `${title.textContent.split(": ")[0]}: ${text}`;
  }

  // Parts with `data-live` are asked for again after each change, and changed in place: what is pressed, focused or
  // scrolled stays as it is. `data-every`: seconds between two updates, at least; `data-poll`: also without a change.
  const states = new WeakMap();
  function refresh() {
    document.querySelectorAll("[data-live]").forEach(update);
    document.querySelectorAll(".log").forEach(read);
    document.dispatchEvent(new Event("refreshed"));
  }
  // One call at a time for each element, and one more afterwards if there was another reason meanwhile.
  const oneByOne = (work) => function call(element) {
    if (!states.has(element)) states.set(element, { busy: false, again: false });
    const state = states.get(element);
    if (state.busy) { state.again = true; return; }
    state.busy = true;
    work(element).then(() => { if (stream && stream.readyState === EventSource.OPEN) say("live"); }, () => say("not connected")).finally(() => {
      setTimeout(() => {
        state.busy = false;
        if ((state.again || "poll" in element.dataset) && element.isConnected) { state.again = false; call(element); }
      }, 1000 * (element.dataset.every || 0));
    });
  };
  const update = oneByOne(async (part) => {
    if (document.hidden || part.closest("details:not([open])")) return;
    const found = (await fragment(part.dataset.live)).getElementById(part.id);
    while (released) await released; // also the next press, if one has begun meanwhile
    if (found) morph(part, found);
  });
  const fragment = (address) => get(address, "text").then((text) => new DOMParser().parseFromString(text, "text/html"));
  document.body.addEventListener("refresh", refresh);
  document.addEventListener("toggle", (event) => event.target.querySelectorAll("[data-live]").forEach(update), true);

  // While a button or link is pressed nothing moves: a press on one element that ends on another one is no click.
  // The end of other presses, on a scroll bar, a list or a menu of the browser, is not told.
  let released = null, end = () => {}; // a promise, during a press
  const release = () => { released = null; end(); };
  addEventListener("pointerdown", (event) => {
    if (released || event.button || !event.target.closest("a, button, summary")) return;
    released = new Promise((resolve) => { end = resolve; });
  }, true);
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => setTimeout(release), true);
  addEventListener("pointermove", (event) => { if (!event.buttons && (event.movementX || event.movementY)) release(); }, true);
  addEventListener("blur", (event) => { if (event.target === window) release(); }, true);

  // Make an element like another one, and keep what is alike. Elements with an id are matched by it.
  function morph(old, fresh) {
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const named = new Map([...old.children].filter((one) => one.id).map((one) => [one.id, one]));
    const wanted = new Set([...fresh.children].map((one) => one.id));
    for (const [id, one] of named) if (!wanted.has(id)) one.remove();
    let next = old.firstChild;
    for (const one of [...fresh.childNodes]) {
      const same = one.id ? named.get(one.id) : next && !next.id && next.nodeName === one.nodeName ? next : null;
      if (!same) {
        const added = old.insertBefore(document.importNode(one, true), next);
        if (added.nodeType === Node.ELEMENT_NODE) htmx.process(added);
        continue;
      }
      while (next && next !== same && !next.id) { const after = next.nextSibling; next.remove(); next = after; }
      if (same === next) next = next.nextSibling;
      else old.insertBefore(same, next);
      if (one.nodeType === Node.ELEMENT_NODE) morph(same, one);
      else if (same.data !== one.data) same.data = one.data;
    }
    while (next) { const after = next.nextSibling; next.remove(); next = after; }
  }

  // htmx does not keep links within SVG from being followed.
  document.addEventListener("click", (event) => {
    if (event.target.closest("svg a[hx-get]") && !event.ctrlKey && !event.metaKey) event.preventDefault();
  });

  // ------------------------------------------------------------------------------------------------------- charts
  const columns = ["time", "high90", "low90", "high50", "low50", "use", "reading", "ours"];
  const percent = (x) => (x === null || x === undefined ? "–" : `${Math.round(100 * x)}%`);
  function chart(place) {
    const edge = { stroke: "transparent", points: { show: false } };
    const line = (label, color, more) => ({ label, stroke: css(color), width: 2, points: { show: false }, value: (_, x) => percent(x), ...more });
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 } };
    const plot = new uPlot({
      width: Math.max(place.clientWidth, 240), height: 220,
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high || 1)] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => new Date(1000 * t).toISOString().slice(11, 19)), space: 70 }, { ...axis, values: (_, ticks) => ticks.map(percent) }],
      series: [{ label: "time", value: (_, t) => (t ? new Date(1000 * t).toISOString().slice(11, 19) : "–") }, { label: "90% up to", ...edge, value: (_, x) => percent(x) }, { label: "90% from", ...edge, value: (_, x) => percent(x) },
        { label: "50% up to", ...edge, value: (_, x) => percent(x) }, { label: "50% from", ...edge, value: (_, x) => percent(x) }, line("believed", "--running"),
        line("read", "--late", { width: 0, points: { show: true, size: 3, fill: css("--late") } }), line("ours", "--done", { dash: [4, 3] })],
      bands: [{ series: [1, 2], fill: css("--band90") }, { series: [3, 4], fill: css("--band50") }],
    }, columns.map(() => []), place);
    const update = () => {
      if (!place.isConnected) { clearInterval(timer); plot.destroy(); return; }
      if (!document.hidden) get(place.dataset.history).then((found) => {
        plot.setData(columns.map((name) => found[name]));
        if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: found.time.length - 1 }, false);
      }).catch(() => say("not connected"));
    };
    const timer = setInterval(update, 2000);
    update();
  }
  const begin = (root) => root.querySelectorAll(".chart:empty").forEach(chart);
  begin(document);
  document.addEventListener("htmx:afterSettle", (event) => begin(event.detail.elt.parentNode || document));

  // ------------------------------------------------------------------------------------------------------ output
  // The last line of a log that goes on says where. The log stays at its end, unless the reader has scrolled up.
  const read = oneByOne(async (log) => {
    for (let mark = log.querySelector("[data-next]"), more = true; mark && more; mark = log.querySelector("[data-next]")) {
      const lines = (await fragment(mark.dataset.next)).body;
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      mark.replaceWith(...lines.childNodes);
      if (atEnd) log.scrollTop = log.scrollHeight;
      more = log.querySelector("[data-next][data-more]") !== null;
    }
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "answer") event.detail.shouldSwap = true; // also what is wrong with a question
  });

  // ---------------------------------------------------------------------------------------------------- timeline
  const canvas = byId("timeline");
  if (!canvas) return;
  const [EVENT, JOB, TASK, DEVICES, SENT, BEGAN, SECONDS, EXPECTED, , ENDED] = Array(10).keys();
  const MAX_KEPT = 20000, MARGIN = 120, TOP = 22, HEIGHT = 16;
  const devices = JSON.parse(byId("devices").textContent);
  const view = { span: 120, end: null, top: 0, filter: "" }; // end null: follows now
  let ended = [], underWay = [], offset = 0, last = 0, asked = false;
  const now = () => Date.now() / 1000 - offset;
  const matches = (run) => !view.filter || run[TASK].toLowerCase().includes(view.filter) || `job ${run[JOB]}` === view.filter;
  function load() {
    if (asked || document.hidden) return;
    asked = true;
    get(`${canvas.dataset.runs}?after=${last}`).then((found) => {
      offset = Date.now() / 1000 - found.now_s;
      ended = ended.concat(found.ended).slice(-MAX_KEPT);
      if (found.ended.length) last = found.ended.at(-1)[EVENT];
      underWay = found.under_way;
      draw();
    }).catch(() => say("not connected")).finally(() => { asked = false; });
  }
  // The lanes of each device: runs that overlap are drawn below one another.
  function lanes(runs) {
    const of = new Map();
    for (const run of runs) {
      for (const name of run[DEVICES]) {
        if (!of.has(name)) of.set(name, { free: [], bars: [] });
        const device = of.get(name), start = run[SENT], stop = run[ENDED] ? (run[BEGAN] ?? start) + (run[SECONDS] ?? 0) : Infinity;
        let lane = device.free.findIndex((free) => free <= start + 1e-3);
        if (lane < 0) lane = device.free.push(0) - 1;
        device.free[lane] = stop;
        device.bars.push([run, lane, stop]);
      }
    }
    return of;
  }
  function draw() {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight, pen = canvas.getContext("2d");
    canvas.width = width * ratio; canvas.height = height * ratio;
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height);
    const stop = view.end ?? now(), start = stop - view.span, x = (t) => MARGIN + ((t - start) / view.span) * (width - MARGIN);
    const color = Object.fromEntries(["ink", "quiet", "line", "running", "done", "failed", "cancelled", "start", "late"].map((name) => [name, css(`--${name}`)]));
    const seen = (run) => run[SENT] < stop && (!run[ENDED] || (run[BEGAN] ?? run[SENT]) + (run[SECONDS] ?? 0) > start);
    const shown = [...ended, ...underWay].filter((run) => seen(run) && (matches(run) || run[DEVICES].some((name) => name.toLowerCase().includes(view.filter))));
    const by = lanes(shown.sort((a, b) => a[SENT] - b[SENT]));
    const listed = devices.filter((one) => by.has(one.name) || !view.filter || one.name.toLowerCase().includes(view.filter));
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    let y = TOP - view.top, drawn = 0;
    for (const one of listed) {
      const device = by.get(one.name), count = Math.max(1, device ? device.free.length : 1), tall = count * HEIGHT + 6;
      if (y + tall > TOP && y < height) {
        pen.fillStyle = color.ink;
        pen.fillText(one.name.length > 18 ? `…${one.name.slice(-17)}` : one.name, 4, y + HEIGHT / 2 + 2, MARGIN - 8);
        for (const [run, lane, end] of device ? device.bars : []) bar(run, y + lane * HEIGHT, end);
        pen.strokeStyle = color.line;
        pen.strokeRect(-1, y + tall - 2.5, width + 2, 0);
      }
      y += tall;
    }
    view.bottom = Math.max(0, y + view.top - height + 8);
    function bar(run, top, end) {
      const left = Math.max(x(run[SENT]), MARGIN), right = Math.min(x(Math.min(end, now())), width);
      if (right < MARGIN) return;
      drawn += 1;
      const began = run[BEGAN] ?? run[SENT], beyond = began + run[EXPECTED], box = (from, to, fill) => {
        const a = Math.max(x(from), left), b = Math.min(x(to), right);
        if (b > a) { pen.fillStyle = fill; pen.fillRect(a, top + 1, Math.max(b - a, 1), HEIGHT - 2); }
      };
      const fill = { "": color.running, done: color.done, stopped: color.cancelled }[run[ENDED]] || (run[ENDED].startsWith("killed") ? color.cancelled : color.failed);
      box(run[SENT], began, color.start);
      box(began, Math.min(end, now()), fill);
      if (run[EXPECTED] > 0 && ["", "done"].includes(run[ENDED])) box(beyond, Math.min(end, now()), color.late);
      if (right - left < 2) { pen.fillStyle = fill; pen.fillRect(left, top + 1, 1, HEIGHT - 2); }
      if (right - left > 40) {
        pen.save(); pen.beginPath(); pen.rect(left, top, right - left, HEIGHT); pen.clip();
        pen.fillStyle = css("--back");
        pen.fillText(run[JOB] ? `${run[TASK]} (job ${run[JOB]})` : run[TASK], left + 3, top + HEIGHT / 2);
        pen.restore();
      }
    }
    pen.clearRect(0, 0, width, TOP - 4);
    pen.fillStyle = color.quiet;
    const step = [0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 14400, 86400].find((s) => (s / view.span) * (width - MARGIN) > 80) || 86400;
    for (let t = Math.ceil(start / step) * step; t < stop; t += step) {
      pen.fillText(new Date(1000 * t).toISOString().slice(11, step < 1 ? 21 : 19), x(t) + 2, 9);
      pen.fillRect(x(t), TOP - 6, 1, 4);
    }
    const text = `${drawn} runs on ${by.size} of ${devices.length} devices, from ${new Date(1000 * start).toISOString().slice(0, 19).replace("T", " ")}, ${Math.round(view.span)} s${view.end === null ? ", following now" : ""}`;
    if (byId("timeline-text").textContent !== text && (view.end !== null || !draw.said || now() - draw.said > 5)) { byId("timeline-text").textContent = text; draw.said = drawn ? now() : 0; }
  }
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  function zoom(factor, at = 0.5) {
    const stop = view.end ?? now(), middle = stop - view.span * (1 - at), before = view.span;
    view.span = clamp(view.span * factor, 0.5, 7 * 86400);
    if (view.end !== null) view.end = middle + (stop - middle) * (view.span / before);
    draw();
  }
  function pan(share) {
    const stop = (view.end ?? now()) + share * view.span;
    view.end = stop >= now() ? null : stop;
    draw();
  }
  const doing = { in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25), right: () => pan(0.25), now: () => { view.end = null; draw(); } };
  byId("timeline-controls").addEventListener("submit", (event) => event.preventDefault());
  document.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", () => doing[button.dataset.do]()));
  byId("filter").addEventListener("input", (event) => { view.filter = event.target.value.trim().toLowerCase(); view.top = 0; draw(); });
  canvas.addEventListener("keydown", (event) => {
    const act = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "now" }[event.key];
    if (act) doing[act]();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") { scroll(event.key === "ArrowDown" ? 60 : -60); } else return;
    event.preventDefault();
  });
  function scroll(by) { view.top = clamp(view.top + by, 0, view.bottom || 0); draw(); }
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.ctrlKey) zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, clamp((event.offsetX - MARGIN) / (canvas.clientWidth - MARGIN), 0, 1));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / canvas.clientWidth);
    else scroll(event.deltaY);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); canvas.dataset.x = event.clientX; canvas.dataset.y = event.clientY; });
  canvas.addEventListener("pointermove", (event) => {
    if (!canvas.hasPointerCapture(event.pointerId)) return;
    pan((canvas.dataset.x - event.clientX) / (canvas.clientWidth - MARGIN));
    scroll(canvas.dataset.y - event.clientY);
    canvas.dataset.x = event.clientX; canvas.dataset.y = event.clientY;
  });
  addEventListener("resize", draw);
  document.addEventListener("refreshed", load);
  setInterval(() => { if (view.end === null && !document.hidden) { load(); draw(); } }, 1000);
  load();
})();
