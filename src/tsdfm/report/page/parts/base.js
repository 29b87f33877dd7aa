"use strict";
const root = document.documentElement;
root.classList.add("js");
const problems = [];
addEventListener("error", event => { problems.push(String(event.message)); root.dataset.errors = problems.join(" | "); });
root.dataset.errors = "";
const DATA = JSON.parse(document.getElementById("data").textContent);

/** An HTML element with attributes and children; text is always put in as text, never as markup. */
function html(name, attributes, ...children) {
  return dress(document.createElement(name), attributes, children);
}

/** The same for SVG. */
function svg(name, attributes, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function dress(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) node.setAttribute(key, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

/** A number with about three digits that matter. */
function pretty(value, format) {
  if (format === "percent") return Math.round(value * 1000) / 10 + "\u202f%";
  const size = Math.abs(value);
  const text = size >= 1e6 ? value.toExponential(1)
    : size >= 100 || Number.isInteger(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f")
    : size >= 10 ? value.toFixed(1) : size >= 0.1 || !size ? value.toFixed(2) : value.toPrecision(2);
  return text.replace("-", "\u2212");
}
