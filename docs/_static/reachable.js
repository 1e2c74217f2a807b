// On a narrow screen a table that does not fit shows its rows one below the other, with the header before each cell. On a
// wide one its long names may break.
// A picture leads to itself alone, where it can be made larger.
// What can be scrolled must be reachable by keyboard: wide tables and long lines of code get the focus where they do not fit.
// And the parts of the page have names, for those who hear it.
(() => {
  "use strict";
  const WIDE = ".highlight pre, .table-wrapper, pre.literal-block";

  const narrow = window.matchMedia("(max-width: 40rem)");

  function stack(box) {
    const table = box.querySelector("table");
    table.classList.remove("ebb-stacked", "ebb-tight");
    if (box.scrollWidth <= box.clientWidth) return;
    if (!narrow.matches) {
      table.classList.add("ebb-tight");
      return;
    }
    const headers = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.children].forEach((cell, at) => { cell.dataset.label = headers[at] ?? ""; });
    }
    table.classList.add("ebb-stacked");
  }

  function update() {
    document.querySelectorAll(".table-wrapper").forEach(stack);
    for (const box of document.querySelectorAll(WIDE)) {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
      } else {
        box.removeAttribute("tabindex");
      }
    }
  }

  for (const [name, label] of [["sidebar-drawer", "All pages"], ["toc-drawer", "On this page"]]) {
    document.querySelector(`aside.${name}`)?.setAttribute("aria-label", label);
  }
  for (const picture of document.querySelectorAll('article p > img[src$=".svg"]')) {
    const link = document.createElement("a");
    link.href = picture.src;
    picture.replaceWith(link);
    link.append(picture);
  }
  update();
  window.addEventListener("load", update); // pictures have their size by then
  window.addEventListener("resize", update);
  document.addEventListener("change", update); // a tab that is chosen shows other boxes
})();
