const DASHES = ["", "7 4", "2 3", "", "9 3 2 3", "4 2", "1 4", "12 3"];
const LEFT = 46, RIGHT = 12, BOTTOM = 40;
let TOP = 10;

/** The marker of a style, centred at x, y: shapes differ, so colours need not. */
function marker(style, x, y, r, name) {
  const p = (...pairs) => "M" + pairs.map(([a, b]) => `${(x + a * r).toFixed(2)} ${(y + b * r).toFixed(2)}`).join("L") + "Z";
  const shapes = [
    null,
    p([-.9, -.9], [.9, -.9], [.9, .9], [-.9, .9]),
    p([-1.1, -.85], [1.1, -.85], [0, 1.15]),
    p([0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]),
    p([-1.1, .85], [1.1, .85], [0, -1.15]),
    p([-.4, -1.2], [.4, -1.2], [.4, -.4], [1.2, -.4], [1.2, .4], [.4, .4], [.4, 1.2], [-.4, 1.2], [-.4, .4], [-1.2, .4], [-1.2, -.4], [-.4, -.4]),
    p([-1.2, -.7], [-.7, -1.2], [0, -.5], [.7, -1.2], [1.2, -.7], [.5, 0], [1.2, .7], [.7, 1.2], [0, .5], [-.7, 1.2], [-1.2, .7], [-.5, 0]),
    p([0, -1.4], [.4, -.4], [1.4, -.3], [.6, .35], [.9, 1.3], [0, .75], [-.9, 1.3], [-.6, .35], [-1.4, -.3], [-.4, -.4]),
  ];
  return shapes[style] ? svg("path", {d: shapes[style], class: name}) : svg("circle", {cx: x, cy: y, r, class: name});
}

/** Round numbers that cover low to high: [ticks], in steps of 1, 2 or 5. */
function ticks(low, high, wanted) {
  const rough = (high - low || 1) / wanted, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(k => k * size).find(s => s >= rough * .999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= high / step + 1e-9; i++) out.push(+(i * step).toPrecision(12));
  return out;
}

function logTicks(low, high) {
  const out = [], parts = Math.log10(high / low) > 1.6 ? [1] : [1, 2, 5];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const k of parts) { const v = +(k * 10 ** e).toPrecision(6); if (v >= low * .999 && v <= high * 1.001) out.push(v); }
  }
  return out.length >= 2 ? out : ticks(low, high, 4).filter(v => v > 0);
}

/** {to: value → 0…1, ticks} of an axis over some values. */
function axis(about, values) {
  let low = about.low ?? Math.min(...values), high = about.high ?? Math.max(...values);
  const bend = about.scale === "log2" ? Math.log2 : about.scale === "log" ? Math.log10 : v => v;
  if (about.format === "percent") { low = 0; high = Math.min(1, Math.max(...values) * 1.08); }
  if (low === high) { low = about.scale === "linear" ? low - .5 : low / 1.5; high = about.scale === "linear" ? high + .5 : high * 1.5; }
  if (about.low === undefined && about.format !== "percent") {
    const room = (bend(high) - bend(low)) * .06;
    if (about.scale === "linear") { low -= room; high += room; }
    else { const base = about.scale === "log2" ? 2 : 10; low = base ** (bend(low) - room); high = base ** (bend(high) + room); }
  }
  const at = about.scale === "log2" ? [...new Set(values)].sort((a, b) => a - b)
    : about.scale === "log" ? logTicks(low, high) : ticks(low, high, about.format === "percent" ? 5 : about.wanted || 5);
  return {to: v => (bend(v) - bend(low)) / (bend(high) - bend(low) || 1), ticks: at};
}

/** Draw one chart into its figure, as wide as that is. */
function draw(figure) {
  const chart = DATA.charts[figure.dataset.chart];
  const width = figure.clientWidth;
  if (!chart || !width || figure.drawn === width) return;
  figure.drawn = width;
  figure.querySelectorAll("svg, .tip").forEach(old => old.remove());
  const height = Math.round(Math.max(190, Math.min(300, width * .66)));
  TOP = chart.y.label === chart.caption ? 10 : 26;
  const points = chart.series.flatMap(one => one.points), marks = chart.marks || [], refs = chart.refs || [];
  const x = axis({...chart.x, wanted: width < 330 ? 4 : 5}, [...points, ...marks].map(p => p.x));
  const y = axis(chart.y, [...points.flatMap(p => [p.y, p.low, p.high]), ...marks.map(m => m.y), ...refs.map(r => r.y)].filter(v => v !== undefined && (chart.y.scale !== "log" || v > 0)));
  const px = v => LEFT + x.to(v) * (width - LEFT - RIGHT), py = v => height - BOTTOM - y.to(v) * (height - TOP - BOTTOM);
  const words = chart.series.map(one => one.name).join(", ");
  const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${chart.title}: ${words}. The numbers are in the table below.`});
  frame(picture, chart, x, y, px, py, width, height);
  for (const ref of refs) {
    picture.append(svg("line", {class: "ref", x1: LEFT, x2: width - RIGHT, y1: py(ref.y), y2: py(ref.y)}));
  }
  const spots = chart.series.flatMap((one, index) => line(picture, chart, one, index, px, py));
  for (const ref of refs) picture.append(aside(ref.label, py(ref.y), spots, width, height));
  for (const mark of marks) {
    picture.append(svg("circle", {class: "target", cx: px(mark.x), cy: py(mark.y), r: 7}), svg("circle", {class: "bull", cx: px(mark.x), cy: py(mark.y), r: 2.5}));
    const far = px(mark.x) > width / 2;
    picture.append(svg("text", {class: "reflabel", x: px(mark.x) + (far ? -11 : 11), y: py(mark.y) + 4, "text-anchor": far ? "end" : "start"}, mark.label));
    spots.push({x: px(mark.x), y: py(mark.y), text: `${mark.label}: ${pretty(mark.y)} at ${pretty(mark.x)}`});
  }
  figure.append(picture);
  hover(figure, picture, spots, width, height);
}

/** A line's label where the fewest points are: at its left or right end, above or below it. */
function aside(label, y, spots, width, height) {
  const places = [];
  for (const right of [false, true]) for (const below of [false, true]) {
    const x = right ? width - RIGHT - 4 : LEFT + 4, base = below ? y + 14 : y - 5;
    const crowd = spots.filter(s => Math.abs(s.y - base + 4) < 13 && (right ? s.x > x - label.length * 7 : s.x < x + label.length * 7)).length;
    const out = base < TOP + 4 || base > height - BOTTOM - 2 ? 99 : 0;
    places.push({x, base, right, cost: crowd + out});
  }
  const best = places.reduce((a, b) => b.cost < a.cost ? b : a);
  return svg("text", {class: "reflabel", x: best.x, y: best.base, "text-anchor": best.right ? "end" : "start"}, label);
}

function frame(picture, chart, x, y, px, py, width, height) {
  if (TOP > 10) picture.append(svg("text", {class: "unit", x: 0, y: 10}, chart.y.label));
  for (const v of y.ticks) {
    picture.append(svg("line", {class: "rule", x1: LEFT, x2: width - RIGHT, y1: py(v), y2: py(v)}));
    picture.append(svg("text", {x: LEFT - 7, y: py(v) + 4, "text-anchor": "end"}, pretty(v, chart.y.format).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")));
  }
  picture.append(svg("line", {class: "axis", x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM}));
  let last = -99;
  for (const v of x.ticks) {
    const at = px(v);
    picture.append(svg("line", {class: "axis", x1: at, x2: at, y1: height - BOTTOM, y2: height - BOTTOM + 4}));
    if (at - last < 26) continue;
    last = at;
    picture.append(svg("text", {x: at, y: height - BOTTOM + 17, "text-anchor": "middle"}, pretty(v).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")));
  }
  picture.append(svg("text", {x: (LEFT + width - RIGHT) / 2, y: height - 5, "text-anchor": "middle"}, chart.x.label));
}

/** One series: band or whiskers, curve, markers. Series that share x stand a little apart, so that whiskers do not hide each other. */
function line(picture, chart, one, index, px, py) {
  const group = svg("g", {class: "s" + one.style});
  const apart = chart.x.scale === "log2" ? (index - (chart.series.length - 1) / 2) * 3.5 : 0;
  const fits = v => chart.y.scale !== "log" || v > 0;
  const at = one.points.filter(p => fits(p.y)).map(p => ({...p, px: px(p.x) + apart, py: py(p.y)}));
  if (one.band) {
    const edge = [...at.map(p => [p.px, py(p.high)]), ...at.slice().reverse().map(p => [p.px, py(p.low)])];
    group.append(svg("polygon", {class: "band", points: edge.map(e => e.join(",")).join(" ")}));
  } else {
    for (const p of at) if (p.low !== undefined && fits(p.low)) group.append(svg("line", {class: "whisker", x1: p.px, x2: p.px, y1: py(p.low), y2: py(p.high)}));
  }
  group.append(svg("polyline", {class: "curve", "stroke-dasharray": DASHES[one.style] || null, points: at.map(p => `${p.px.toFixed(1)},${p.py.toFixed(1)}`).join(" ")}));
  const every = chart.dots === false ? Math.max(1, Math.ceil(at.length / 5)) : Math.max(1, Math.ceil(at.length / 16));
  at.forEach((p, i) => { if (i % every === every - 1 || at.length < 9 || i === at.length - 1) group.append(marker(one.style, p.px, p.py, 4, p.hollow ? "hollow" : "dot")); });
  picture.append(group);
  return at.map(p => ({x: p.px, y: p.py, text: spoken(chart, one, p)}));
}

function spoken(chart, one, p) {
  const ends = p.low === undefined ? "" : ` (${pretty(p.low, chart.y.format)} to ${pretty(p.high, chart.y.format)})`;
  return `${one.name}: ${pretty(p.y, chart.y.format)}${ends}, ${chart.x.label} ${pretty(p.x)}${p.note ? ", " + p.note : ""}`;
}

/** The nearest point's numbers beside the pointer. */
function hover(figure, picture, spots, width, height) {
  const tip = html("div", {class: "tip", hidden: "", "aria-hidden": "true"});
  figure.append(tip);
  picture.addEventListener("pointermove", event => {
    const box = picture.getBoundingClientRect(), scale = width / box.width;
    const mx = (event.clientX - box.left) * scale, my = (event.clientY - box.top) * scale;
    let best = null, near = 34 ** 2;
    for (const spot of spots) { const d = (spot.x - mx) ** 2 + (spot.y - my) ** 2; if (d < near) { near = d; best = spot; } }
    tip.hidden = !best;
    if (!best) return;
    tip.textContent = best.text;
    const left = Math.max(0, Math.min(best.x / scale - tip.offsetWidth / 2, box.width - tip.offsetWidth));
    tip.style.left = left + "px";
    tip.style.top = picture.offsetTop + best.y / scale - tip.offsetHeight - 10 + "px";
  });
  picture.addEventListener("pointerleave", () => { tip.hidden = true; });
}

/** One legend for the charts beside it. */
function legend(place) {
  const seen = new Map();
  for (const name of place.dataset.legend.split(" ")) for (const one of DATA.charts[name]?.series || []) seen.set(one.name, one.style);
  for (const [name, style] of seen) {
    const sign = svg("svg", {viewBox: "0 0 34 12", class: "s" + style, "aria-hidden": "true"},
      svg("line", {class: "curve", x1: 0, x2: 34, y1: 6, y2: 6, "stroke-dasharray": DASHES[style] || null}), marker(style, 17, 6, 4, "dot"));
    place.append(html("span", {}, sign, html("b", {}, name)));
  }
}
