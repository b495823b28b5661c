"""Sphinx configuration: MyST pages, API from docstrings, nothing fetched from the network."""

import sys
from importlib.metadata import version as installed
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "pymc_sgmcmc"
author = "The pymc_sgmcmc developers"
copyright = author
release = version = installed("pymc-sgmcmc")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",  # formulas are set by files of the site
    "sphinx_design",
    "results_tables",
]
if find_spec("sphinx_copybutton"):  # a button beside code, which the pages can do without
    extensions.append("sphinx_copybutton")
exclude_patterns = ["_build", "_ext", "scripts", "**.ipynb_checkpoints"]

nb_execution_mode = "off"  # the test suite runs the pages' code, `make gallery` the notebooks
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

default_role = "py:obj"  # docstrings write `name`
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "pymc_sphinx_theme"
html_title = "pymc_sgmcmc"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "logo": {"text": "pymc_sgmcmc"},
    "google_analytics_id": "",
    "navbar_start": ["navbar-logo"],
    "navbar_center": ["navbar-nav"],
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 7,
    "primary_sidebar_end": [],
    "secondary_sidebar_items": {"**": ["page-toc"], "index": [], "gallery": []},
    "show_prev_next": True,
    "use_edit_page_button": False,
}
# Pages without neighbours in their section have no column on the left.
html_sidebars = {page: [] for page in ("index", "quickstart", "search", "genindex", "py-modindex")}
html_show_sourcelink = False
