// What can be scrolled must be reachable by keyboard: wide tables, pictures and long lines of code get the focus where they do not fit.
// And the parts of the page have names, for those who hear it.
(() => {
  "use strict";
  const WIDE = ".highlight pre, .table-wrapper, pre.literal-block, article p:has(> img)";

  function update() {
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
  update();
  window.addEventListener("load", update); // pictures have their size by then
  window.addEventListener("resize", update);
  document.addEventListener("change", update); // a tab that is chosen shows other boxes
})();
