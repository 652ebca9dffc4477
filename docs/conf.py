"""Sphinx's settings: ``sphinx-build -W docs docs/_build`` (extra ``docs``)."""

import strata

project = "strata"
author = "the developers of strata"
version = release = strata.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "figures"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autosummary_generate = False  # numpydoc brings it along
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
html_theme = "alabaster"
html_theme_options = {"description": "Streams Mixture-of-Experts weights to a GPU", "page_width": "1100px"}
# Links to files of the repository that are no pages.
suppress_warnings = ["myst.xref_missing"]
