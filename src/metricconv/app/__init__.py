"""The explorer: a page on this machine to click pixels and see their balls (the extra ``app``)."""

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # gradio reads it when it is imported

from .page import launch

__all__ = ["launch"]
