"""Sphinx settings."""

from inlay.version import __version__

project = "Inlay"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "alabaster"
html_theme_options = {"description": "Q/DQ nodes exactly where they pay"}
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_heading_anchors = 3
suppress_warnings = ["ref.python"]  # several classes have an attribute of the same name
