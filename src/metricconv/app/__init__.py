"""The explorer: an interactive local page that shows unit balls of clicked pixels (the extra ``app``)."""

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read by gradio on import

from .page import launch

__all__ = ["launch"]
