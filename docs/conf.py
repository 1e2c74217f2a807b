"""How Sphinx builds the site; ``nox -s docs`` does it, and looks at the pages in a browser."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.inspect import stringify_signature

import ebbpool

project = "ebbpool"
author = "The ebbpool authors"
project_copyright = author
release = ebbpool.__version__
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_*"]

# Other projects' inventories are on the network, and the site has to build without one. With this variable names of the
# standard library become links.
if os.environ.get("EBBPOOL_DOCS_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "anyio": ("https://anyio.readthedocs.io/en/stable", None),
    }

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4

default_role = "py:obj"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# What a module of ours imports and the site can be built without.
autodoc_mock_imports = [
    name
    for name in (
        *("anyio", "asgiref", "celery", "cloudpickle", "dask", "distributed", "django", "gunicorn", "opentelemetry"),
        *("outcome", "prometheus_client", "tornado", "trio"),
    )
    if importlib.util.find_spec(name) is None
]
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"ebbpool {release.partition('+')[0]}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("reachable.js", {"defer": "defer"})]
html_favicon = "_static/wave.svg"
html_copy_source = False
html_show_sourcelink = False
html_theme_options: dict[str, Any] = {
    "light_css_variables": {
        "color-brand-primary": "#0b5e8a",
        "color-brand-content": "#0b5e8a",
        "color-brand-visited": "#6b3fa0",
        "color-foreground-muted": "#5f6368",
        "color-api-name": "#0b5e8a",
        "color-api-pre-name": "#0b5e8a",
        "ebb-line": "#0b6e99",
        "ebb-load": "#b45309",
        "ebb-fill": "#0b6e9926",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7cc4ec",
        "color-brand-content": "#7cc4ec",
        "color-brand-visited": "#c4a5f0",
        "color-foreground-muted": "#a3a8af",
        "color-api-name": "#7cc4ec",
        "color-api-pre-name": "#7cc4ec",
        "ebb-line": "#6cc5ef",
        "ebb-load": "#f5b041",
        "ebb-fill": "#6cc5ef2e",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

copybutton_exclude = ".linenos, .gp, .go"

PUBLIC = (
    "ebbpool",
    "ebbpool.aio",
    "ebbpool.anyio",
    "ebbpool.dask",
    "ebbpool.fastthreadpool",
    "ebbpool.monitor",
    "ebbpool.opentelemetry",
    "ebbpool.prefork",
    "ebbpool.prometheus",
    "ebbpool.socketserver",
    "ebbpool.sync",
    "ebbpool.testing",
)
"""The modules whose names the reference has to have."""

log = logging.getLogger(__name__)


def public_names() -> set[str]:
    """Return the full names of all public objects, and of the public methods of public classes of ours."""
    found = set()
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            thing = getattr(module, name)
            found.add(f"{module_name}.{name}")
            # Another name for a class is described where the class is.
            if inspect.isclass(thing) and thing.__name__ == name and thing.__module__.startswith("ebbpool"):
                found.update(
                    f"{module_name}.{name}.{member}"
                    for member, value in vars(thing).items()
                    if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
                )
    return found


def miss_nothing(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of each public name that the reference does not have."""
    described = {name for name, *_ in env.get_domain("py").get_objects()}
    for name in sorted(public_names() - described):
        log.warning("the reference lacks %s", name)


def without_aliases(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples that say nothing but their number: the class describes them."""
    if re.match(r"Alias for field number \d+", getattr(thing, "__doc__", None) or ""):
        return True
    return None


def own_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Show how a class is made by its `__init__`, where its `__new__` takes anything."""
    if what != "class" or not (signature or "").startswith("(*args"):
        return None
    made = inspect.signature(thing.__init__)
    made = made.replace(parameters=list(made.parameters.values())[1:])
    return stringify_signature(made, unqualified_typehints=True), None


def without_types(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from taking what stands before a colon in the docstring of a property for its type."""
    if what in ("attribute", "data", "property") and lines and ": " in lines[0]:
        lines.insert(0, "\u200b")


def with_links(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make links of the pages that a docstring names as files."""
    lines[:] = [re.sub(r"`{0,2}\bdocs/([\w/-]+)\.md`{0,2}", r":doc:`/\1`", line) for line in lines if line != "\u200b"]


def public_bases(app: Sphinx, name: str, thing: Any, options: Any, bases: list[Any]) -> None:
    """Show no base class whose name is private, or that comes from a private module."""
    bases[:] = [
        base
        for base in bases
        if not base.__name__.startswith("_") and not base.__module__.startswith("ebbpool._") and base is not object
    ] or [object]


def mend_page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the captions of the navigation a level."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("env-check-consistency", miss_nothing)
    app.connect("autodoc-skip-member", without_aliases)
    app.connect("autodoc-process-signature", own_signature)
    app.connect("autodoc-process-docstring", without_types, priority=400)
    app.connect("autodoc-process-docstring", with_links, priority=600)
    app.connect("autodoc-process-bases", public_bases)
    app.connect("html-page-context", mend_page, priority=900)
