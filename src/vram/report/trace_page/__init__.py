"""A trace as one HTML file that needs nothing else, and as a small picture for notebooks."""

from vram.report.trace_page.document import page
from vram.report.trace_page.fragment import fragment

__all__ = ["fragment", "page"]
