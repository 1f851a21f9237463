"""The published figures of the three papers as data, and a page that shows them beside what was measured here.

`python -m lightning_nli.published docs/measured.csv` prints `docs/PUBLISHED.md`.
"""

from lightning_nli.published.figures import PAPERS, PublishedTable, published_figures, published_tables
from lightning_nli.published.page import published_page

__all__ = ["PAPERS", "PublishedTable", "published_figures", "published_page", "published_tables"]
