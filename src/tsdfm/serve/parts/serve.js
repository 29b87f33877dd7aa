/** The page of the server: ask, watch every pass as it comes, and step through them again. Uses `html` and `paint`. */
const $ = id => document.getElementById(id), LEAST = 120;  // milliseconds a pass is shown at least, so that eyes can follow
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
let models = [], runs = [], frame = 0, timer = null;

/** What one side of the comparison is asked with. */
function side(number, given = {}) {
  const model = html("select", {name: "model"}, ...models.map(m => html("option", {value: m.id}, m.id)));
  const steps = html("input", {name: "steps", type: "number", min: 1, step: 1, required: "", inputmode: "numeric"});
  const heat = html("input", {name: "temperature", type: "number", min: 0, max: 10, step: "any", required: "", inputmode: "decimal"});
  const card = () => models.find(m => m.id === model.value);
  const usual = () => { steps.value = card().steps; heat.value = card().temperature; };
  model.value = models.some(m => m.id === given.model) ? given.model : models[Math.min(number, models.length - 1)].id;
  usual();
  if (given.steps) steps.value = given.steps; else if (number && models.length === 1) steps.value = 2 * steps.value;
  if (given.temperature != null) heat.value = given.temperature;
  model.addEventListener("change", usual);
  const box = html("fieldset", {class: "side"}, html("legend", {}, ["First", "Second"][number]), html("label", {}, "Model", model),
    html("label", {}, "Passes", steps), html("label", {}, "Temperature", heat));
  return {box, card, read: () => ({model: model.value, steps: +steps.value, temperature: +heat.value})};
}

let sides = [];
function compare(on, given = []) {
  sides = (on ? [0, 1] : [0]).map(n => side(n, given[n] || sides[n]?.read()));
  $("sides").replaceChildren(...sides.map(s => s.box));
  $("sides").classList.toggle("two", on);
  $("compare").setAttribute("aria-pressed", on);
}

/** The request of a side: a text with gaps goes to infill, any other is a beginning. */
function request(ask) {
  const text = $("text").value, gaps = /\{\d+(-\d+)?\}/.test(text);
  const body = {...ask, seed: +$("seed").value, stream: true};
  return gaps ? ["/v1/infill", {...body, template: text}] : ["/v1/completions", {...body, prompt: text, echo: true}];
}

/** One text on its way, and its states as they come. */
function begin(asked, number) {
  const ask = asked.read(), card = asked.card(), [path, body] = request(ask), stop = new AbortController();
  const step = html("small"), text = html("p", {class: "text", "aria-busy": "true"});
  const head = html("h4", {}, html("span", {}, ask.model), step);
  const box = html("article", {class: `panel going s${[3, 1][number]}`, "aria-label": `${ask.model}, ${ask.steps} passes`}, head, text);
  return {ask, path, body, stop, step, text, box, card, states: [], pieces: {}, mask: null, given: [], whole: null, done: false};
}

/** A pass becomes a state: what was noise and changed is new, what had been written before is replaced. */
function take(run, told) {
  const before = run.states[run.states.length - 1], tokens = before ? before.tokens.slice() : [];
  if (told.given) run.given = told.given;
  for (const [place, token, piece] of told.changes) {
    tokens[place] = token;
    if (piece === null) run.mask = token; else run.pieces[token] = piece;
  }
  const noise = new Set(before ? before.noise : tokens.map((_, i) => i).filter(i => !run.given.includes(i)));
  const fresh = new Set(), swapped = new Set();
  if (before) for (const [place, token] of told.changes) {
    const masked = token === run.mask;
    (noise.has(place) && !masked ? fresh : swapped).add(place);
    if (masked) noise.add(place); else noise.delete(place);
  }
  run.states.push({t: told.t, tokens, fresh, swapped, noise, pass: told.pass, of: told.of});
}

function headers(more) { return {...more, ...($("key").value ? {Authorization: "Bearer " + $("key").value} : {})}; }

async function listen(run) {
  const how = {method: "POST", headers: headers({"Content-Type": "application/json"}), signal: run.stop.signal};
  const answer = await fetch(run.path, {...how, body: JSON.stringify(run.body)});
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).error.message), {status: answer.status});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", part; !(part = await reader.read()).done;) {
    const lines = (rest + part.value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") continue;
      const told = JSON.parse(line.slice(6));
      if (told.error) throw new Error(told.error.message);
      if (told.provisional) { take(run, told.provisional); follow(); }
      else if (told.pieces) { run.whole = told.pieces; follow(); }
    }
  }
}

const last = () => Math.max(0, ...runs.map(run => run.states.length - 1));  // the newest pass there is
const all = () => Math.max(0, ...runs.map(run => run.done ? run.states.length - 1 : run.states[0]?.of ?? 0));
/** The states of this frame; `clean` without marks, to be read. */
function show(clean = false) {
  for (const run of runs) {
    const share = last() ? frame / last() : 0, goes = runs.some(r => !r.done);
    const at = Math.min(run.states.length - 1, goes ? frame : Math.round(share * (run.states.length - 1)));
    const state = run.states[at];
    if (!state) { run.step.textContent = "waiting"; continue; }
    const panel = {mask: run.mask, end: run.card.end_of_text, pieces: run.pieces};
    run.step.textContent = at ? `pass ${state.pass} of ${state.of}: ${state.fresh.size} new, ${state.swapped.size} replaced` : `noise, ${state.of} passes to go`;
    const whole = at === run.states.length - 1 ? run.whole : null;  // a character of several tokens is known once they all are
    run.text.replaceChildren(paint(panel, run, {...state, whole, ...clean ? {fresh: new Set(), swapped: new Set()} : {}}));
  }
  $("slide").max = all();
  $("slide").value = frame;
  $("said").textContent = runs.length ? `pass ${frame} of ${all()}` : "";
  $("slide").setAttribute("aria-valuetext", $("said").textContent);
}
const go = to => { frame = Math.max(0, Math.min(last(), to)); show(); };
const halt = () => { clearInterval(timer); timer = null; };
/** Show passes as they come, none of them for less than a moment. */
function follow() {
  if (still) { go(last()); show(runs.every(run => run.done)); return; }
  if (timer) return;
  if (!runs.some(run => run.states.length > 1)) { show(); return; }
  timer = setInterval(() => {
    if (frame < last()) go(frame + 1);
    else if (runs.every(run => run.done)) { halt(); show(true); root.dataset.played = "1"; }
  }, LEAST);
}

function complain(problem) {
  if (problem.name === "AbortError") return;
  if (problem.status === 401) { $("locked").hidden = false; $("key").focus(); }
  $("problem").textContent = problem.message;
  $("problem").hidden = false;
}

function stopAll() { runs.forEach(run => run.stop.abort()); halt(); }
const busy = () => runs.some(run => !run.done);
/** While a text is being written the button stops it: a phone has no Escape. */
function label() { $("write").textContent = busy() ? "Stop" : "Write"; }

async function write() {
  stopAll();
  if (!models.length || !$("ask").reportValidity()) return;
  $("problem").hidden = true;
  root.dataset.written = root.dataset.played = "";
  frame = 0;
  runs = sides.map(begin);
  const mine = runs;
  $("panels").replaceChildren(...runs.map(run => run.box));
  for (const id of ["scrub", "legend"]) $(id).hidden = false;
  remember();
  label();
  show();
  await Promise.all(runs.map(async run => {
    try { await listen(run); } catch (problem) { complain(problem); }
    run.done = true;
    run.box.classList.remove("going");
    run.text.removeAttribute("aria-busy");
    if (!run.states.length) run.box.remove();  // it was refused, or stopped before it began
  }));
  if (mine !== runs) return;
  for (const id of ["scrub", "legend"]) $(id).hidden = !runs.some(run => run.states.length);
  label();
  follow();
  root.dataset.written = "1";
}

/** The address holds all that was asked, so that it can be passed on; a curl command says the same. */
function remember() {
  const words = new URLSearchParams({text: $("text").value, seed: $("seed").value});
  runs.forEach(({ask}, n) => Object.entries(ask).forEach(([name, value]) => words.set(name + (n || ""), value)));
  history.replaceState(null, "", "#" + words);
  $("link").href = location.href;
  curl();
}

function curl() {
  const [path, body] = request(sides[0].read()), quoted = JSON.stringify({...body, stream: undefined}).replaceAll("'", "'\\''");
  $("curl").textContent = `curl ${location.origin}${path} -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1)), pick = n => ({model: words.get("model" + n), steps: words.get("steps" + n), temperature: words.get("temperature" + n)});
  $("text").value = words.get("text") ?? "";
  $("seed").value = words.get("seed") ?? Math.floor(Math.random() * 2 ** 31);
  compare(words.has("model1"), [pick(""), pick("1")]);
  curl();
  const strange = ["model", "model1"].map(name => words.get(name)).find(name => name && !models.some(m => m.id === name));
  if (strange) complain(new Error(`no model called ${strange} is served here: choose one, and write`));
  return words.has("seed") && !strange;
}

/** Learn which models there are, and write what the address asks for. */
async function meet() {
  try {
    const answer = await fetch("/v1/models", {headers: headers()});
    if (!answer.ok) throw Object.assign(new Error((await answer.json()).error.message), {status: answer.status});
    models = (await answer.json()).data;
    $("problem").hidden = true;
    if (recall()) await write();
  } catch (problem) { complain(problem); }
}

async function start() {
  $("ask").addEventListener("submit", event => { event.preventDefault(); if (busy()) stopAll(); else write(); });
  $("api").addEventListener("toggle", () => { if (sides.length) curl(); });
  $("compare").addEventListener("click", () => compare($("compare").getAttribute("aria-pressed") !== "true"));
  $("dice").addEventListener("click", () => { $("seed").value = Math.floor(Math.random() * 2 ** 31); write(); });
  $("again").addEventListener("click", () => { halt(); frame = 0; show(); follow(); });
  $("slide").addEventListener("input", () => { halt(); go(+$("slide").value); });
  addEventListener("hashchange", () => { if (recall()) write(); });
  addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); write(); }
    else if (event.key === "Escape") stopAll();
    else if (runs.length && !event.target.matches("input, select, textarea, button")) {
      if (event.key === "ArrowRight") { halt(); go(frame + 1); } else if (event.key === "ArrowLeft") { halt(); go(frame - 1); }
    }
  });
  $("key").addEventListener("change", () => { if (!models.length) meet(); });
  await meet();
  root.dataset.overflow = String(Math.max(0, root.scrollWidth - root.clientWidth));
  root.dataset.width = String(root.clientWidth);
  root.dataset.ready = "1";
}
addEventListener("unhandledrejection", event => { problems.push(String(event.reason)); root.dataset.errors = problems.join(" | "); });
start();
