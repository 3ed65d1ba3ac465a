"use strict";

const COLORS = ["forward", "recompute", "backward", "update", "collectives", "transfers", "gathers", "exchange", "local", "imbalance", "bubble"];
const shade = (i) => color(COLORS[i % COLORS.length]);

// Parts of a whole: a bar of them, largest first, above their table; what rounds to nothing is left out.
function parts(place, found, whole, text, what) {
  const shown = Object.entries(found).filter(([, size]) => Math.abs(size) >= 5e-4 * whole).sort((a, b) => b[1] - a[1]);
  const stack = make("div", { class: "stack", role: "img", "aria-label": `${what} by cause` });
  const rows = shown.map(([name, size], i) => {
    const share = size / whole;
    if (share > 0) stack.append(withTip(make("div", { style: { width: `${100 * share}%`, background: shade(i) } }), `${name}\n${text(size)}, ${percent(share)}`));
    return [make("span", {}, make("span", { class: "swatch", style: { background: shade(i) } }), name), text(size), percent(share)];
  });
  place.append(stack, table(["part", what, "share"], rows, [1, 2]));
}

const say = (place, text) => place.append(make("p", {}, text));
const degrees = (one) => ["dp", "tp", "pp", "cp", "ep", "virtual_stages"].filter((key) => key === "dp" || one[key] > 1).map((key) => `${key} ${one[key]}`).join(", ");

function answer() {
  const { read } = data, dp = data.gpus / (read.tp * read.pp * read.cp);
  document.title = `${data.file} on ${data.gpus} x ${data.gpu}: sbplan price`;
  byId("title").textContent = `${data.model.layers} layers of ${data.model.width} on ${data.gpus} ${data.gpu}`;
  byId("subtitle").textContent = `${data.file} (${data.trainer}): ${degrees({ ...read, dp, virtual_stages: read.virtual })}, micro-batches of ${read.micro_batch}, global batch ${data.global_batch}, ${read.sequence} tokens a sample, ZeRO ${read.zero}, recompute ${read.recompute}${read.recompute_layers ? ` of ${read.recompute_layers} layers` : ""}`;
  const margin = data.memory_margin_bytes;
  const room = `of ${bytes(data.memory_limit_bytes)}; ${bytes(Math.abs(margin))} ${margin < 0 ? "too much" : "from running out"}`;
  const sure = data.fit_probability === null ? "" : ` (${data.fits ? "" : "it would with "}probability ${data.fit_probability.toFixed(2)})`;
  const tiles = [
    [time(data.step_time_s), `a step; 90 % between ${time(data.lo_s)} and ${time(data.hi_s)}`],
    [count(data.tokens_per_s_per_gpu), "tokens a second and GPU"],
    [percent(data.mfu), "model FLOPs utilisation"],
    [bytes(data.peak_memory_bytes), room],
    [data.fits ? "fits" : "does not fit", `the memory of a GPU${sure}`],
  ];
  if (data.training) tiles.push([`${digits(data.training.days)} days`, `for ${count(data.training.tokens)} tokens (${digits(data.training.lo_days)} to ${digits(data.training.hi_days)})`]);
  byId("tiles").append(...tiles.map(([figure, text]) => make("div", { class: "tile" }, make("b", {}, figure), make("span", {}, text))));
  byId("about").textContent = data.extrapolated.length ? `No run that the constants rest on was like this in: ${data.extrapolated.join(", ")}.` : "Runs that the constants rest on were like this one.";
}

function search() {
  const place = byId("search"), found = data.search;
  if (found === null) return say(place, `Left out: ${data.search_left_out}`);
  const ratio = data.step_time_s / found.step_time_s;
  const { config } = found;
  const told = `${degrees(config)}, ${microBatches(config.num_micro_batches, config.micro_batch)} (${config.schedule}), recompute ${config.recompute}, ZeRO ${config.zero_stage}`;
  say(place, `${told}: ${time(found.step_time_s)} a step (90 % between ${time(found.lo_s)} and ${time(found.hi_s)}), ` +
    `${ratio > 1 ? `${ratio.toFixed(2)} times as fast` : "no faster"} by the same judge${found.fits ? "" : "; it does not fit"}.`);
  const rows = Object.entries(found.saved_s).filter(([, seconds]) => Math.abs(seconds) >= 1e-3 * data.step_time_s).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  place.append(table(["part", "this takes more"], rows.map(([name, seconds]) => [name, time(seconds)]), [1]));
}

function keys() {
  const place = byId("keys"), pairs = (found) => Object.entries(found).map(([key, value]) => [make("span", { class: "code" }, key), String(value)]);
  for (const line of data.assumed) say(place, `Assumed: ${line}.`);
  if (data.not_understood.length) say(place, `Not understood: ${data.not_understood.join(", ")}.`);
  const lists = [["taken where the file has no key", data.defaults], ["not priced: what they change no figure follows", data.unpriced], ["change neither time nor memory", data.unused]];
  for (const [what, found] of lists) {
    const rows = pairs(found);
    if (rows.length) place.append(make("details", {}, make("summary", {}, `${rows.length} keys ${what}`), table(["key", ""], rows)));
  }
}

answer();
parts(byId("causes"), data.time_by_cause_s, data.step_time_s, time, "a step");
parts(byId("memory"), data.memory_by_cause, data.memory_limit_bytes, bytes, "memory");
search();
keys();
