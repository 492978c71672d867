"""The explorer: a page on this machine to click pixels and see their balls (the extra ``app``)."""

from .page import launch

__all__ = ["launch"]
