document.querySelectorAll("[data-player]").forEach(player);
root.dataset.overflow = root.scrollWidth > root.clientWidth ? String(root.scrollWidth - root.clientWidth) : "0";
root.dataset.width = String(root.clientWidth);
root.dataset.ready = "1";
