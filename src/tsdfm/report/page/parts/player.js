/** Every state of one text: tokens, what is new, what was replaced, what is noise still; and its time, confidence, energy. */
function unroll(row, mask) {
  const tokens = row.start.slice(), given = new Set(row.given);
  const noise = new Set(tokens.map((_, i) => i).filter(i => !given.has(i)));
  const states = [{t: 0, tokens: tokens.slice(), fresh: new Set(), swapped: new Set(), noise: new Set(noise), sure: null, energy: row.energy}];
  for (const step of row.steps) {
    const fresh = new Set(), swapped = new Set(step.r);
    for (let i = 0; i < step.c.length; i += 2) {
      const place = step.c[i], token = step.c[i + 1];
      tokens[place] = token;
      if (!swapped.has(place)) fresh.add(place);
      if (token === mask) noise.add(place); else noise.delete(place);
    }
    states.push({t: step.t, tokens: tokens.slice(), fresh, swapped, noise: new Set(noise), sure: step.p, energy: step.e});
  }
  return states;
}

/** A state as marked tokens. */
function paint(panel, row, state) {
  const out = document.createDocumentFragment(), given = new Set(row.given), done = state.t > .9999;
  state.tokens.forEach((token, place) => {
    if (place === 0 && token === panel.end && given.has(0)) return;  // the anchor before the text says nothing
    if (token === panel.mask) { out.append(html("span", {class: "tok mask", role: "img", "aria-label": "masked"})); return; }
    const mark = state.fresh.has(place) ? "new" : state.swapped.has(place) ? "swap" : given.has(place) ? "given"
      : token === panel.end ? "end" : state.noise.has(place) && !done ? "noise" : "";
    const piece = token === panel.end ? "¶" : state.whole?.[place] ?? panel.pieces[token] ?? "\ufffd";
    if (!mark) { out.append(piece); return; }
    const lead = piece.match(/^\s*/)[0];  // the space before a word is not part of the mark
    out.append(lead, html("span", {class: "tok " + mark}, piece.slice(lead.length) || (lead ? "" : piece)));
  });
  return out;
}

/** A small curve of values over time with the present marked; nulls are left out. */
function spark(states, name, now, low, high) {
  const known = states.filter(s => s[name] !== null && s[name] !== undefined);
  const at = s => [s.t * 100, 23 - (s[name] - low) / (high - low || 1) * 20];
  const path = some => some.map(s => at(s).map(v => v.toFixed(2)).join(",")).join(" ");
  const past = known.filter(s => s.t <= now + 1e-9), last = past[past.length - 1];
  const picture = svg("svg", {viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true"},
    svg("polyline", {class: "all", points: path(known)}), svg("polyline", {class: "past", points: path(past)}));
  if (last) picture.append(svg("line", {class: "now", x1: at(last)[0], x2: at(last)[0], y1: at(last)[1] - 4, y2: at(last)[1] + 4}));
  return {picture, value: last && Math.abs(last.t - now) < 1 ? last[name] : null};
}

/** A player in its place. It plays by itself when it is first seen, but not for readers who asked for less motion. */
function player(place) {
  const group = DATA.players[place.dataset.player], texts = Math.min(...group.panels.map(p => p.rows.length));
  const ways = group.panels.map(panel => panel.rows.map(row => unroll(row, panel.mask)));
  const times = [...new Set(ways.flatMap(way => way[0].map(s => s.t.toFixed(6))))].map(Number).sort((a, b) => a - b);
  const last = times.length - 1, still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const beat = Math.min(700, 12000 / times.length);  // milliseconds a frame: many steps should not take minutes
  let text = 0, frame = still ? Math.ceil(last / 2) : 0, timer = null;  // halfway there is something to see

  const play = html("button", {type: "button", class: "play"}, "Play");
  const back = html("button", {type: "button", "aria-label": "One step back"}, "‹");
  const on = html("button", {type: "button", "aria-label": "One step on"}, "›");
  const slide = html("input", {type: "range", min: 0, max: last, step: 1, value: 0, "aria-label": "Step"});
  const said = html("output", {"aria-live": "polite"});
  const choice = html("select", {"aria-label": "Text"}, ...Array.from({length: texts}, (_, i) => html("option", {value: i}, `text ${i + 1}`)));
  const pace = html("select", {"aria-label": "Speed"}, ...[["slow", 2], ["normal", 1], ["fast", .35]].map(([name, beats]) => html("option", {value: beats}, name)));
  pace.value = "1";
  const bar = html("div", {class: "controls", role: "group", "aria-label": `Player: ${place.dataset.title}`}, play, back, on,
    slide, said, texts > 1 ? html("label", {}, html("span", {}, "Show"), choice) : null, html("label", {}, html("span", {}, "Speed"), pace));

  const panels = group.panels.map(panel => {
    const step = html("small"), body = html("p", {class: "text"}), gauges = html("div", {class: "gauges"});
    const name = html("span", {class: "method"}, html("span", {class: "glyph s" + panel.style, "aria-hidden": "true"}, panel.glyph), panel.name);
    return {step, body, gauges, box: html("article", {class: "panel s" + panel.style, "aria-label": panel.name}, html("h4", {}, name, step), gauges, body)};
  });

  function show() {
    const now = times[frame];
    group.panels.forEach((panel, i) => {
      const states = ways[i][text], upTo = states.filter(s => s.t <= now + 1e-6), state = upTo[upTo.length - 1], at = upTo.length - 1;
      const acted = at > 0 && Math.abs(state.t - now) < 1e-6;
      panels[i].step.textContent = at ? `step ${at} of ${panel.steps}: ${state.fresh.size} new, ${state.swapped.size} replaced` : `noise, ${panel.steps} steps to go`;
      panels[i].body.replaceChildren(paint(panel, panel.rows[text], acted || at === 0 ? state : {...state, fresh: new Set(), swapped: new Set()}));
      panels[i].gauges.replaceChildren(...gauges(states, now, panel.style));
    });
    panels.forEach(({body}) => {
      body.style.minHeight = `${body.offsetHeight}px`;  // what is below should not jump from frame to frame
      if (body.scrollHeight > body.clientHeight + 1) body.tabIndex = 0; else body.removeAttribute("tabindex");
    });
    slide.value = frame;
    said.textContent = `step ${frame} of ${last}, t = ${now.toFixed(3).replace(/\.?0+$/, "")}`;
    slide.setAttribute("aria-valuetext", said.textContent);
    back.disabled = frame === 0;
    on.disabled = frame === last;
  }

  function gauges(states, now, style) {
    const out = [];
    const sure = spark(states, "sure", now, 0, 1);
    out.push(html("span", {}, "confidence"), sure.picture, html("b", {}, sure.value === null ? "–" : sure.value.toFixed(2)));
    const all = ways.flatMap(way => way[text].map(s => s.energy)).filter(e => e !== null && e !== undefined);
    if (states.some(s => s.energy !== null && s.energy !== undefined)) {
      const force = spark(states, "energy", now, Math.min(...all), Math.max(...all));
      out.push(html("span", {}, "energy"), force.picture, html("b", {}, force.value === null ? "–" : pretty(force.value)));
    }
    out.forEach(node => { if (node.tagName === "svg") node.setAttribute("class", "s" + style); });
    return out;
  }

  /** Rows of panels that share the window: each text has its share of the height, and scrolls where it is longer. */
  function fit() {
    grid.style.setProperty("--rows", Math.ceil(panels.length / getComputedStyle(grid).gridTemplateColumns.split(" ").length));
    panels.forEach(({body}) => { body.style.minHeight = ""; });
    show();
  }

  function stop() { eye.disconnect(); clearInterval(timer); timer = null; play.textContent = "Play"; said.setAttribute("aria-live", "polite"); }
  function go(to) { frame = Math.max(0, Math.min(last, to)); show(); }
  function start() {
    eye.disconnect();
    if (frame === last) frame = 0;
    said.setAttribute("aria-live", "off");  // a reader should not hear every frame
    play.textContent = "Pause";
    show();
    timer = setInterval(() => { go(frame + 1); if (frame === last) stop(); }, beat * pace.value);
  }
  play.addEventListener("click", () => timer ? stop() : start());
  back.addEventListener("click", () => { stop(); go(frame - 1); });
  on.addEventListener("click", () => { stop(); go(frame + 1); });
  slide.addEventListener("input", () => { stop(); go(+slide.value); });
  choice.addEventListener("change", () => { text = +choice.value; fit(); });
  pace.addEventListener("change", () => { if (timer) { stop(); start(); } });
  function press(event) {
    const {key, target} = event, inside = target !== document.body;
    if (event.altKey || event.ctrlKey || event.metaKey || target === choice || target === pace) return;
    if (target === slide && key !== " " || target.matches("button") && key === " ") return;  // they know these keys themselves
    if (key === " ") play.click(); else if (key === "ArrowRight") { stop(); go(frame + 1); } else if (key === "ArrowLeft") { stop(); go(frame - 1); }
    else if (inside && key === "Home") { stop(); go(0); } else if (inside && key === "End") { stop(); go(last); } else return;
    event.preventDefault();
  }
  place.addEventListener("keydown", press);

  const masked = group.panels.some(p => p.mask !== null), given = group.panels.some(p => p.rows[0].given.length > 1);
  const odd = group.panels.some(p => Object.values(p.pieces).some(piece => piece.includes("\ufffd")));
  const judged = ways.some(way => way[0].some(s => s.energy !== null && s.energy !== undefined));
  const key = html("p", {class: "key"}, ...[["new", "new", " written in this step"], ["swap", "replaced", " written before, changed now"],
    masked ? ["mask", "", " still masked"] : ["noise", "grey", " noise, not touched yet"], given ? ["given", "dashed", " given"] : null,
    ["end", "¶", " end of the text"], odd ? ["", "\ufffd", " bytes that are no letter by themselves"] : null,
  ].filter(Boolean).map(([mark, sign, means]) => html("span", {}, html("span", {class: "tok " + mark}, sign), means)),
    judged ? html("span", {}, "energy: the compass\u2019s, lower is better") : null,
    html("span", {class: "keys"}, html("kbd", {}, "space"), " plays, ", html("kbd", {}, "←"), " ", html("kbd", {}, "→"), " step"));
  const grid = html("div", {class: group.panels[0].rows[0].start.length > 100 ? "panels long" : "panels", tabindex: "0", role: "group", "aria-label": "Texts; space plays, arrow keys step, Home and End go to the ends"}, ...panels.map(p => p.box));
  place.replaceChildren(bar, grid, key);
  const eye = new IntersectionObserver(seen => {
    const {intersectionRatio, intersectionRect} = seen[seen.length - 1];
    if (intersectionRatio >= .5 || intersectionRect.height >= innerHeight / 3) start();
  }, {threshold: [.1, .2, .3, .4, .5]});
  if (!still) eye.observe(place);
  fit();
  addEventListener("resize", fit);
  addEventListener("beforeprint", () => { stop(); go(last); });
  return {place, press};
}

/** Keys pressed while nothing has the focus are for the player nearest to the middle of the window. */
function keysOfThePage(all) {
  const off = ({place}) => { const {top, bottom} = place.getBoundingClientRect(); return Math.abs((top + bottom - innerHeight) / 2); };
  addEventListener("keydown", event => {
    if (event.target === document.body) all.reduce((near, one) => off(one) < off(near) ? one : near).press(event);
  });
}
