document.querySelectorAll("[data-legend]").forEach(legend);
const figures = [...document.querySelectorAll("[data-chart]")];
figures.forEach(draw);
document.querySelectorAll("[data-player]").forEach(player);
if (window.ResizeObserver) {
  const watch = new ResizeObserver(entries => entries.forEach(entry => draw(entry.target)));
  figures.forEach(figure => watch.observe(figure));
}
root.dataset.overflow = root.scrollWidth > root.clientWidth ? String(root.scrollWidth - root.clientWidth) : "0";
root.dataset.width = String(root.clientWidth);
root.dataset.ready = "1";
