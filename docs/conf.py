"""The documentation site: `make docs` builds it into build/docs, with warnings as errors."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

from equipoise.version import __version__  # noqa: E402


def package_digest() -> str:
    """Of every source file: outputs of notebooks are those of this package, not of an earlier one."""
    digest = hashlib.sha256()
    for file in sorted((DOCS.parent / "src").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


project = "Equipoise"
author = "The Equipoise developers"
copyright = "The Equipoise developers, MIT licence"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",  # docs/_ext: formulas without JavaScript or a network
    "source_lines",  # docs/_ext: links to lines of the source
    "repository_links",  # docs/_ext: links that work on the code host work here, too
    "docstrings",  # docs/_ext: the docstrings' notation as reStructuredText
]
exclude_patterns = ["_ext"]
highlight_language = "text"  # of blocks that do not say theirs
default_role = "py:obj"  # `name` in a docstring links where it can

# -- MyST and notebooks -------------------------------------------------------------------------------------------
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # a notebook is executed again if it or the package has changed
nb_execution_cache_path = str(DOCS.parent / "build" / "notebooks" / package_digest())
nb_execution_in_temp = True  # what a notebook writes is gone afterwards
nb_execution_timeout = 900  # seconds for a cell, on a busy machine too
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_number_source_lines = False

# -- API ----------------------------------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
add_module_names = False
toc_object_entries_show_parents = "hide"

# -- HTML ---------------------------------------------------------------------------------------------------------
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"Equipoise {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f8b", "color-brand-content": "#1f5f8b"},
    "dark_css_variables": {"color-brand-primary": "#7db8e0", "color-brand-content": "#7db8e0"},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
suppress_warnings = ["mystnb.unknown_mime_type"]
