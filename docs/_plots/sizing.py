"""Draw what the pool without arguments loses against the best fixed size: ``python docs/_plots/sizing.py RUN``.

RUN is the JSON of a run of ``python -m benchmarks sizing``; matplotlib draws it. The picture is written to
docs/images/sizing.svg, in colours that the page around it may set.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PICTURE = ROOT / "docs/images/sizing.svg"
COLORS = {
    "#767676": "var(--color-foreground-muted, #767676)",
    "#0072b2": "var(--ebb-line, #0072b2)",
    "#d55e00": "var(--ebb-load, #d55e00)",
}
"""What the page around the picture may set, for each color that the benchmarks draw with."""
TITLE = "The untuned pool's time and thread-seconds over those of the best fixed size"


def for_a_page(drawing: str) -> str:
    """Return a drawing of the benchmarks with the colours of the page that it is put into."""
    for color, ours in COLORS.items():
        drawing = drawing.replace(color, ours)
    # The style would hold for all of the page.
    drawing = re.sub(r"<style.*?</style>", "", drawing, count=1, flags=re.DOTALL)
    drawing = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", drawing, count=1)
    told = 'class="ebb-plot ebb-wide" role="img" aria-labelledby="sizing-title" stroke-linejoin="round"'
    drawing = drawing.replace("<svg", f"<svg {told}", 1)
    drawing = drawing.replace(">", f'>\n <title id="sizing-title">{TITLE}; the table below has the figures</title>', 1)
    return re.sub(r"\s+$", "", drawing, flags=re.MULTILINE) + "\n"


def main() -> None:
    """Draw the picture of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the JSON of a run that has sizing")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from benchmarks.report import pictures, store

    PICTURE.write_text(for_a_page(pictures.drawn(store.read(options.run).answers["sizing"])), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
