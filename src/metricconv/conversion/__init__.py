"""Conversion of existing networks: adaptive convolutions instead of ordinary ones, and back, with the same weights.

The package is not called ``convert``, because the function ``metricconv.convert`` would hide it.
"""

from ._convert import convert, to_conv
from ._plan import Conversion, plan_conversion
from ._registry import register_conversion

__all__ = ["Conversion", "convert", "plan_conversion", "register_conversion", "to_conv"]
