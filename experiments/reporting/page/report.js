"use strict";
// ---- the answer ----

function answer() {
  const { claims, simulation, config } = data;
  document.title = `${data.model} on ${devices(data.devices, data.device)}: sbplan report`;
  byId("title").textContent = `${data.model} on ${devices(data.devices, data.device)}`;
  const laps = config.virtual_stages > 1 ? ` x ${config.virtual_stages} laps` : "";
  const axes = [["dp", "data"], ["ep", "expert"], ["tp", "tensor"], ["cp", "context"]].filter(([key]) => config[key] > 1 || key === "dp");
  byId("subtitle").textContent =
    `${data.name}: ${count(data.parameters)} parameters, cluster ${data.cluster}, ${data.precision} precision; ` +
    `${axes.map(([key, word]) => `${word} ${config[key]}`).join(", ")}, pipeline ${config.pp}${laps}, ` +
    `${microBatches(config.num_micro_batches, config.micro_batch)} (${config.schedule}), ` +
    `recompute ${config.recompute}, ZeRO stage ${config.zero_stage}`;
  const peak = Math.max(...simulation.peak_memory_bytes);
  const { interval } = data, whose = interval && (interval.calibrated ? "calibration" : "data sheet");
  const between = interval ? `; 90 % between ${time(interval.lo_s)} and ${time(interval.hi_s)}, by how far the ${whose} may be off` : "";
  const tiles = [
    [time(simulation.step_time_s), `a step, simulated${between}`],
    [percent(claims.gap), `at most from the best: nothing takes less than ${time(claims.lower_bound_s)} (objective ${time(claims.objective_s)}, ${claims.status})`],
    [count(simulation.tokens_per_s), "tokens a second"],
  ];
  if (simulation.mfu !== null) tiles.push([percent(simulation.mfu), `model FLOPs utilisation (hardware: ${percent(simulation.hfu)})`]);
  tiles.push([bytes(peak), `on the fullest device, of ${bytes(claims.memory_limit_bytes)}`]);
  tiles.push([percent(simulation.idle_share), `of the step no computing (bubble overhead ${digits(simulation.bubble_overhead)})`]);
  if (data.run) {
    const { run } = data;
    const spread = run.fastest_s === null ? "" : `; ${run.steps} steps from ${time(run.fastest_s)} to ${time(run.slowest_s)}`;
    tiles.splice(1, 0, [time(run.step_time_s), `the last step measured in ${run.name}${spread}`]);
  }
  byId("tiles").append(...tiles.map(([figure, text]) => make("div", { class: "tile" }, make("b", {}, figure), make("span", {}, text))));
  const accepted = data.verification.accepted ? "The plan was verified: legal, and what it claims of itself" : "The plan was refused";
  byId("proof").textContent = `${accepted}. Certificate: ${data.bound}. Plan hash ${data.verification.plan_hash.slice(0, 16)}.`;
}

// ---- causes ----

function causes() {
  const { groups, meanings, seconds } = data.causes, step = data.simulation.step_time_s;
  const stack = make("div", { class: "stack", role: "img", "aria-label": "the step by cause" });
  const rows = [];
  for (const [group, names] of Object.entries(groups)) {
    const total = names.reduce((sum, name) => sum + seconds[name], 0);
    rows.push(make("tr", { class: "group" }, make("td", {}, group), make("td", { class: "number" }, time(total)), make("td", { class: "number" }, percent(total / step))));
    for (const name of names) {
      const share = seconds[name] / step;
      if (share > 0) stack.append(withTip(make("div", { style: { width: `${100 * share}%`, background: color(name) } }), `${meanings[name]}\n${time(seconds[name])}, ${percent(share)}`));
      if (Math.abs(share) < 5e-5) continue;
      const swatch = make("span", { class: "swatch", style: { background: color(name) } });
      rows.push(make("tr", { class: "part" }, make("td", {}, swatch, meanings[name]), make("td", { class: "number" }, time(seconds[name])), make("td", { class: "number" }, percent(share))));
    }
  }
  byId("causes").append(stack, table(["cause", "a step", "share"], rows, [1, 2]));
  byId("binding").append(...data.binding_lines.map((line) => make("li", {}, line)));
}

function others() {
  const place = byId("others");
  if (data.others === null) {
    place.append(make("p", { class: "muted" }, "Other plans were not looked for (--others 0)."));
    return;
  }
  const groups = Object.keys(data.causes.groups), step = data.simulation.step_time_s;
  const signed = (seconds) => (Math.abs(seconds) < 5e-4 * step ? "" : `${seconds > 0 ? "+" : "−"}${time(Math.abs(seconds))}`);
  const rows = [[make("b", {}, "this plan"), time(step), "", ...groups.map(() => "")]];
  for (const one of data.others) {
    if (one.step_time_s === null) {
      const cells = [make("td", { class: "code settings" }, one.settings), make("td", { colspan: 2 + groups.length }, one.reason)];
      rows.push(make("tr", {}, ...cells));
      continue;
    }
    const added = Object.fromEntries(one.added_by_group_s);
    const more = one.step_time_s / step - 1;
    rows.push([make("span", { class: "code settings" }, one.settings), time(one.step_time_s), `${more >= 0 ? "+" : "−"}${percent(Math.abs(more))}`, ...groups.map((group) => signed(added[group]))]);
  }
  place.append(
    make("p", { class: "muted" }, "The best plans that a search found with these settings, and what their steps take more than this one, by cause."),
    table(["best plan with", "a step", "slower", ...groups], rows, [1, 2, ...groups.map((_, i) => 3 + i)]),
  );
  place.append(make("p", { id: "best" }, data.best_line));
}

// ---- timeline ----

function timeline() {
  const { drawn, causes: names, ranks, all_ranks: all } = data.timelines;
  const clocks = drawn.map((one) => one.clock).join(" above ");
  const joined = Math.max(...drawn.map((one) => one.joined_below_ns));
  byId("timeline-note").textContent =
    `One step, ${clocks}. ` +
    (ranks.length < all ? `${plural("Rank", ranks)} of ${all} ${ranks.length === 1 ? "stands" : "stand"} for all. ` : "") +
    (joined ? `Acts closer than ${time(joined / 1e9)} are joined. ` : "") +
    "Drag to move; zoom by the buttons, with Ctrl and the wheel, or by a double click.";
  const lines = [];
  const measured = drawn.length > 1;
  for (const rank of ranks) {
    for (const one of drawn) {
      for (const row of one.rows.filter((row) => row.rank === rank)) lines.push({ ...row, clock: one.clock, names: one.names });
    }
  }
  const span = Math.max(...drawn.map((one) => one.span_ns), 1);
  let begin = 0, end = span;
  const rowHeight = 18, axisHeight = 26, gap = 3;
  const axis = make("canvas", { style: { height: `${axisHeight}px` } });
  const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": "timeline of one step, a row per rank and stream" });
  const height = lines.length * rowHeight + 6;
  canvas.style.height = `${height}px`;
  const button = (text, label, action) => {
    const made = make("button", { type: "button", "aria-label": label }, text);
    made.addEventListener("click", action);
    return made;
  };
  const shown = [...new Set(lines.flatMap((row) => row.cause))].sort((a, b) => a - b);
  const legend = make("div", { class: "legend" }, ...shown.map((cause) => make("span", {}, make("span", { class: "swatch", style: { background: color(names[cause]) } }), data.causes.meanings[names[cause]])));
  byId("timeline").append(
    make("div", { class: "bar" },
      button("Zoom in", "zoom in", () => zoom(0.5)), button("Zoom out", "zoom out", () => zoom(2)),
      button("Whole step", "show the whole step", () => view(0, span))),
    legend,
    make("div", { class: "frame" }, axis, make("div", { class: "rows" }, canvas)));

  const gutter = () => Math.min(190, Math.max(measured ? 150 : 124, canvas.clientWidth * 0.16));
  const only = (row, name) => row.cause.every((cause) => names[cause] === name);
  const stream = (row) => (only(row, "transfers") ? `stage ${row.stream}` : row.stream);
  const label = (row) => `${measured ? (row.clock === "measured" ? "meas. " : "sim. ") : ""}rank ${row.rank} ${stream(row)}`;
  function view(from, to) {
    const width = Math.min(Math.max(to - from, 20), span);
    begin = Math.min(Math.max(from, 0), span - width);
    end = begin + width;
    draw();
  }
  function zoom(factor, at = (begin + end) / 2) { view(at - (at - begin) * factor, at + (end - at) * factor); }
  function context(element, tall) {
    const ratio = window.devicePixelRatio || 1, wide = element.clientWidth;
    element.width = Math.round(wide * ratio);
    element.height = Math.round(tall * ratio);
    const pen = element.getContext("2d");
    pen.scale(ratio, ratio);
    return pen;
  }
  function ticks(width) {
    const rough = (end - begin) / Math.max(2, width / 95), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const found = [];
    for (let at = Math.ceil(begin / step) * step; at <= end; at += step) found.push(at);
    return [found, step];
  }
  function tickText(at, step) {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]].find(([size]) => span >= size && step >= size / 1000) || [1, "ns"];
    const places = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
    return `${(at / size).toFixed(places)} ${unit}`;
  }
  function draw() {
    const style = getComputedStyle(document.documentElement);
    const paint = Object.fromEntries([...names, "text", "muted", "grid", "line", "card"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    const left = gutter(), width = canvas.clientWidth - left - 8;
    if (width <= 0) return;
    const x = (at) => left + ((at - begin) / (end - begin)) * width;
    const pen = context(canvas, height), top = context(axis, axisHeight);
    const font = '12px system-ui, "DejaVu Sans", sans-serif';
    const [marks, step] = ticks(width);
    top.font = font;
    top.fillStyle = paint.muted;
    top.textBaseline = "middle";
    top.fillText("time", 8, axisHeight / 2);
    for (const at of marks) {
      const text = tickText(at, step), wide = top.measureText(text).width;
      top.fillText(text, Math.max(left, Math.min(x(at) - wide / 2, left + width - wide + 6)), axisHeight / 2);
      pen.fillStyle = paint.grid;
      pen.fillRect(Math.round(x(at)), 0, 1, height);
    }
    pen.font = font;
    pen.textBaseline = "middle";
    lines.forEach((row, i) => {
      const y = 3 + i * rowHeight;
      if (i && (lines[i - 1].rank !== row.rank || lines[i - 1].clock !== row.clock)) {
        pen.fillStyle = paint.line;
        pen.fillRect(0, y - 2, canvas.clientWidth, 1);
      }
      pen.fillStyle = paint.text;
      pen.fillText(label(row), 8, y + rowHeight / 2 - 1, left - 14);
      for (let k = firstAfter(row.end_ns, begin); k < row.start_ns.length && row.start_ns[k] < end; k += 1) {
        const from = Math.max(x(row.start_ns[k]), left), to = Math.min(x(row.end_ns[k]), left + width);
        pen.fillStyle = paint[names[row.cause[k]]];
        pen.fillRect(from, y, Math.max(to - from, 0.6), rowHeight - gap);
        if (to - from > 5) { pen.fillStyle = paint.card; pen.fillRect(to - 0.5, y, 0.5, rowHeight - gap); }
      }
    });
  }
  function firstAfter(ends, at) {
    let low = 0, high = ends.length;
    while (low < high) { const middle = (low + high) >> 1; if (ends[middle] <= at) low = middle + 1; else high = middle; }
    return low;
  }
  function under(event) {
    const box = canvas.getBoundingClientRect(), left = gutter(), width = canvas.clientWidth - left - 8;
    const row = lines[Math.floor((event.clientY - box.top - 3) / rowHeight)];
    const at = begin + ((event.clientX - box.left - left) / width) * (end - begin);
    if (!row || event.clientX - box.left < left) return [at, null, 0];
    const slack = ((end - begin) / width) * 1.5;
    const k = firstAfter(row.end_ns, at - slack);
    return [at, k < row.start_ns.length && row.start_ns[k] <= at + slack ? row : null, k];
  }
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX, begin, end }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const moved = ((held.x - event.clientX) / (canvas.clientWidth - gutter() - 8)) * (held.end - held.begin);
      view(held.begin + moved, held.end + moved);
      return;
    }
    const [, row, k] = under(event);
    if (!row) { hideTip(); return; }
    const acts = row.acts[k] > 1 ? `${row.acts[k]} acts, most of it ` : "";
    const from = row.start_ns[k], to = row.end_ns[k];
    showTip(event, `${acts}${row.names[row.name[k]]}\n${data.causes.meanings[names[row.cause[k]]]}\n${time((to - from) / 1e9)} from ${time(from / 1e9)}; ${label(row)}`);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, under(event)[0]);
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, under(event)[0]));
  canvas.addEventListener("keydown", (event) => {
    const part = (end - begin) / 5;
    const keys = { ArrowLeft: () => view(begin - part, end - part), ArrowRight: () => view(begin + part, end + part), "+": () => zoom(0.5), "-": () => zoom(2), 0: () => view(0, span) };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}

// ---- memory ----

const PURPOSES = {
  parameters: "parameters", "optimizer state": "state", "gradients and updates": "gradients", activations: "activations",
  "backward pass": "pass", inputs: "inputs", "not filled": "gaps",
};
const DEEP = new Set(["parameters", "gradients and updates", "activations", "inputs"]);

// Squarified (Bruls, Huizing, van Wijk 2000): rows along the shorter side, as long as boxes get squarer by it.
function squarified(items, x, y, width, height) {
  const found = [];
  let rest = items.filter((item) => item.size > 0), total = rest.reduce((sum, item) => sum + item.size, 0);
  while (rest.length) {
    const along = Math.min(width, height), scale = (width * height) / total;
    const worst = (row, sum) => Math.max(...row.map((item) => { const side = (sum * scale) / along, other = (item.size * scale) / side; return Math.max(side / other, other / side); }));
    let row = [rest[0]], sum = rest[0].size;
    for (const item of rest.slice(1)) {
      if (worst([...row, item], sum + item.size) > worst(row, sum)) break;
      row.push(item);
      sum += item.size;
    }
    const side = (sum * scale) / along;
    let at = 0;
    for (const item of row) {
      const length = (item.size * scale) / side;
      found.push(width >= height ? { item, x, y: y + at, width: side, height: length } : { item, x: x + at, y, width: length, height: side });
      at += length;
    }
    if (width >= height) { x += side; width -= side; } else { y += side; height -= side; }
    total -= sum;
    rest = rest.slice(row.length);
  }
  return found;
}

function memory() {
  const place = byId("memory"), limit = data.claims.memory_limit_bytes;
  const stages = data.config.pp > 1;
  const name = (one) => `${stages ? `stage ${one.stage}, ` : ""}${plural("rank", one.ranks)}`;
  const peaks = make("div", { class: "peaks" }, ...data.memory.flatMap((one) => [
    make("span", {}, name(one)),
    make("div", { class: "track" }, make("div", { style: { width: `${Math.min(100, (100 * one.peak_bytes) / limit)}%` } })),
    make("span", { class: "number" }, `${bytes(one.peak_bytes)}, ${percent(one.peak_bytes / limit)}`)]));
  const choice = make("select", { "aria-label": "which ranks the boxes are of" }, ...data.memory.map((one, i) => make("option", { value: i }, `${name(one)}: ${bytes(one.peak_bytes)}`)));
  const fullest = data.memory.reduce((best, one, i) => (one.peak_bytes > data.memory[best].peak_bytes ? i : best), 0);
  choice.value = fullest;
  const legend = make("div", { class: "legend" }), boxes = make("div", { class: "treemap" });
  place.append(peaks, make("div", { class: "bar" }, choice), legend, boxes);
  function draw() {
    const one = data.memory[choice.value], groups = new Map();
    for (const [purpose, tensor, size] of one.tensors) {
      if (!groups.has(purpose)) groups.set(purpose, []);
      groups.get(purpose).push({ label: tensor, size });
    }
    const outer = [...groups].map(([purpose, items]) => ({ purpose, items, size: items.reduce((sum, item) => sum + item.size, 0) })).sort((a, b) => b.size - a.size);
    legend.replaceChildren(...outer.map((group) => make("span", {}, make("span", { class: "swatch", style: { background: color(PURPOSES[group.purpose]) } }), `${group.purpose} ${bytes(group.size)}`)));
    boxes.replaceChildren();
    for (const area of squarified(outer, 0, 0, boxes.clientWidth - 2, boxes.clientHeight - 2)) {
      for (const box of squarified(area.item.items, area.x, area.y, area.width, area.height)) {
        const { label, size } = box.item, purpose = area.item.purpose;
        const text = `${label} ${bytes(size)}`;
        const roomy = box.width > 56 && (Math.ceil((7.6 * text.length) / (box.width - 14)) * 16 + 8 <= box.height);
        const element = make("div", { class: DEEP.has(purpose) ? "deep" : "", style: { left: `${box.x}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px`, background: color(PURPOSES[purpose]) } }, roomy ? text : "");
        if (box.width < 14 || box.height < 8) element.style.padding = "0";
        boxes.append(withTip(element, `${label}\n${purpose}: ${bytes(size)}, ${percent(size / one.peak_bytes)} of what the rank holds`));
      }
    }
  }
  choice.addEventListener("change", draw);
  window.addEventListener("resize", draw);
  draw();
}

// ---- layouts and configuration ----

function layouts() {
  const { axes, mesh, layers } = data.layouts;
  byId("layouts-note").textContent =
    `How every op of the forward pass is laid out along the mesh (${axes.map((axis, i) => `${axis} ${mesh[i]}`).join(", ")}): ` +
    "S(d) is split along dim d, B is whole on every rank, P is a term of a sum. Tensors are divided by ;.";
  for (const one of layers) {
    const what = one.layers.length ? plural("Layer", one.layers) : "Outside of layers";
    const where = data.config.pp > 1 ? ` on ${plural("stage", one.stages)}` : "";
    const rows = one.ops.map(([op, kind, reads, writes]) => [make("span", { class: "code" }, op), kind, make("span", { class: "code" }, reads), make("span", { class: "code" }, writes)]);
    byId("layouts").append(make("details", {}, make("summary", {}, `${what}${where}: ${one.ops.length} ops`), table(["op", "kind", "reads", "writes"], rows)));
  }
}

function configuration() {
  const text = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : String(value));
  for (const [title, values, open] of [["Plan", data.config, true], ["Training", data.training, false], ["Model", data.dimensions, false]]) {
    const rows = Object.entries(values).map(([key, value]) => [key, make("span", { class: "code" }, text(value).slice(0, 2000))]);
    const details = make("details", {}, make("summary", {}, title), table(null, rows));
    details.open = open;
    byId("configuration").append(details);
  }
}

answer();
causes();
others();
timeline();
memory();
layouts();
configuration();
