"""The documentation as a site: `make docs` builds it from the pages of this folder with Sphinx, furo and MyST."""

from minikafka import __version__

project = "minikafka"
version = release = __version__
project_copyright = "the minikafka authors"

extensions = ["myst_parser"]
# Pages link to each other's headings by the anchors that GitHub gives them.
myst_heading_anchors = 4
# A link without a target is an error, but for blocks of code in formats that no lexer knows.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"minikafka {release}"
# Nothing of the reader's visit goes to other hosts, and the pages' sources are in the repository.
html_show_sourcelink = False
html_copy_source = False
