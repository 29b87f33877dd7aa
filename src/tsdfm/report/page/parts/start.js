const all = [...document.querySelectorAll("[data-player]")].map(player);
if (document.querySelector("main.viewer") && all.length) keysOfThePage(all);
root.dataset.overflow = root.scrollWidth > root.clientWidth ? String(root.scrollWidth - root.clientWidth) : "0";
root.dataset.width = String(root.clientWidth);
root.dataset.ready = "1";
