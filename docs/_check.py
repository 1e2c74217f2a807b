"""Look at the built site: its links, and its pages in a browser. ``nox -s docs`` runs it.

Every link within the site leads to a page and a place that are there. In a browser (Debian's chromium, without a
window) each page is shown narrow and wide, light and dark: nothing is wider than the window, no table is cut off, nor
any code on a narrow one, the title is the largest heading, no script fails, and axe, which looks for what keeps people
from using a page, finds nothing. Where there is no such browser one line says so, and that part is left out.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ebbpool.socketserver import AdaptivePoolHTTPServer

VIEWS = [(width, scheme) for width in (360, 1280) for scheme in ("light", "dark")]
ASKED = {(360, "light"), (1280, "dark")}
"""The views in which axe is asked: each width and each scheme once, since it takes a while."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SPARED = {"genindex.html", "search.html"}
"""Pages that are Sphinx's, in which axe is not asked."""

SETTLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until the page has noticed its new size."""

WIDER = """() => {
  const width = document.documentElement.clientWidth;
  const cut = [...document.querySelectorAll("article .table-wrapper, article pre")]
    .filter((one) => (width < 500 || one.tagName !== "PRE") && one.scrollWidth > one.clientWidth + 1)
    .map((one) => `${one.tagName} ${one.textContent.trim().slice(0, 60)} is cut off`);
  const [title, heading] = ["h1", "h2"].map((name) => document.querySelector(`article ${name}`));
  const size = (one) => parseFloat(getComputedStyle(one).fontSize);
  if (title && heading && size(title) <= size(heading)) cut.push("the title is no larger than a heading");
  if (document.documentElement.scrollWidth <= width) return cut;
  return cut.concat([...document.querySelectorAll("article *")]
    .filter((one) => one.getBoundingClientRect().right > width + 1 && !one.closest(".table-wrapper, pre, svg"))
    .slice(0, 3).map((one) => `${one.tagName} ${one.className} ${one.textContent.trim().slice(0, 60)}`))
    .concat(`${document.documentElement.scrollWidth} px`);
}"""

AXE = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  const places = (one) => one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ");
  return found.violations.map((one) => `${one.id}: ${places(one)}`);
}"""


class Links(HTMLParser):
    """What a page refers to, and the places in it that can be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note the target and the place of a tag."""
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.targets.add(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


def broken(site: Path) -> Iterator[str]:
    """Yield what is wrong with the links of a site."""
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for page, links in pages.items():
        for target in sorted(links.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if path.is_dir():
                path /= "index.html"
            if not path.exists():
                yield f"{page.relative_to(site)}: {target} is not there"
            elif path in pages and unquote(parts.fragment) not in pages[path].places:
                yield f"{page.relative_to(site)}: {target} has no such place"


def browser() -> str | None:
    """Return the path of a browser, if there is one, and what drives it."""
    if importlib.util.find_spec("playwright") is None or importlib.util.find_spec("axe_playwright_python") is None:
        return None
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def axe() -> str:
    """Return the script that looks for what keeps people from using a page."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def look(address: str, names: list[str], pictures: Path | None) -> list[str]:
    """Show pages in a browser of one's own; return what is wrong with them."""
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    script = axe()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        page = chromium.new_page()
        current = ""
        page.on("pageerror", lambda error: wrong.append(f"{current}: {error}"))
        page.on("console", lambda line: wrong.append(f"{current}: {line.text}") if line.type == "error" else None)
        for name in names:
            current = name
            page.goto(f"{address}/{name}")
            page.evaluate(script)
            for width, scheme in VIEWS:
                where = f"{name} ({width} px, {scheme})"
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                page.evaluate(SETTLED)
                wrong += [f"{where}: wider than the window: {one}" for one in page.evaluate(WIDER)]
                if (width, scheme) in ASKED and name not in SPARED:
                    wrong += [f"{where}: {one}" for one in page.evaluate(AXE)]
                if pictures:
                    picture = f"{name.removesuffix('.html').replace('/', '-')}-{width}-{scheme}.png"
                    page.screenshot(path=pictures / picture, full_page=True)
        chromium.close()
    return wrong


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing about it."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def look_at_all(site: Path, names: list[str], pictures: Path | None) -> list[str]:
    """Show pages in as many browsers as there are processors; return what is wrong with them."""
    share = max(1, min(4, os.cpu_count() or 1))
    handler = functools.partial(Quiet, directory=str(site))
    with AdaptivePoolHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with ThreadPoolExecutor(share) as each:
                address = f"http://127.0.0.1:{server.server_port}"
                parts = each.map(lambda number: look(address, names[number::share], pictures), range(share))
                return sorted(one for part in parts for one in part)
        finally:
            server.shutdown()


def main() -> int:
    """Check a site; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="the folder that Sphinx has built")
    parser.add_argument("--pictures", type=Path, help="a folder for a picture of each page in each view")
    parser.add_argument("--only", nargs="*", help="the pages to show, such as index.html")
    options = parser.parse_args()
    site = options.site.resolve()
    wrong = list(broken(site))
    names = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts)
    chosen = [name for name in names if not options.only or name in options.only]
    if browser() is None:
        print("docs: no chromium (or no playwright) here, so the pages are not shown in a browser")
    else:
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
        wrong += look_at_all(site, chosen, options.pictures)
    for one in wrong:
        print(one, file=sys.stderr)
    print(f"docs: {len(names)} pages, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
