"""Which kernels compute a call, and for how many images at a time.

How a call proceeds: ``run`` in __init__.py → library.py (operators) → forward_pass.py or backward_pass.py, by this
plan → bound_kernel.py (launches) → forward_kernel.py, backward_data_kernel.py or backward_weight_kernel.py, which share
geometry.py and slopes.py. For geodesic balls, ray_tables.py and trace.py compute the displacements first.

============== ====================================================================================================
kind           of support: "ball", "one-sided ball", "shifted", "deformable", "dilated" or "grid", see geometry.py
field, drift   its parameters per pixel: metric M, vector, displacements or scale; and ω
geometry       modulation, field and drift, as far as their gradients are concerned
sample         one of the P sampling locations of a pixel; also the value there
corner         one of the four pixels around a sample
tile           the output pixels that a program handles at a time
run            consecutive input channels that share sampling locations and a weight group
depthwise      a convolution in which each channel is a group of its own
im2col buffer  the samples of some images, or their gradients, as a matrix for torch's products
window         the pixels of the image over which a program sums the image's gradient in registers, see window.py
outlier        a sample outside the window of its tile
node           a point at which the metric field of a geodesic ball is stored, see geodesic_field.py
============== ====================================================================================================
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import tiles

if TYPE_CHECKING:
    from .conv_call import ConvCall


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which kernels compute a call, and for how many images at a time.

    Attributes:
        contraction: how samples are multiplied by the weights, see ``tiles.contraction``.
        im2col_images: images whose samples, or their gradients, fit in the im2col buffer; 0: samples are not stored.
        window: over which pixels a program sums the image's gradient: "image", "patch" or "none", see window.py.
        images_per_sum: images whose gradient is summed in float32 before it is rounded to half precision.
        geometry_with_weight: compute the gradients of the geometry in the kernel for the weights.
        large_shared_memory: programs may use 163 KB of shared memory, not only 99 KB.
    """

    contraction: str
    im2col_images: int
    window: str
    images_per_sum: int
    geometry_with_weight: bool
    large_shared_memory: bool


# Bytes of the buffer for the displacements of geodesic samples, unless the image is larger. The buffer for the states
# of a backward pass has twice as many, with which one launch fills a GPU several times over.
_CHUNK_BYTES = 2**24

_fixed: dict[str, Any] = {}


def make_plan(call: "ConvCall") -> Plan:
    """Return the plan for a call: by its sizes, but for the choices inside ``fixed_choices``."""
    dims, channels, itemsize = call.dims(), call.channels(), call.x.element_size()
    contraction = tiles.contraction(channels)
    large_shared_memory = _fixed.get("large_shared_memory", tiles.has_large_shared_memory(call.x.device))
    # cuBLAS is deterministic only with CUBLAS_WORKSPACE_CONFIG; torch raises an error without it.
    gemm = call.groups == 1 and not call.deterministic
    choices = {
        "contraction": contraction,
        "im2col_images": tiles.im2col_images(dims, channels, itemsize) if gemm else 0,
        "window": tiles.window(contraction, dims, call.padding_mode, call.x.dtype, call.precision, large_shared_memory),
        "images_per_sum": tiles.images_per_sum(dims, channels),
        "geometry_with_weight": tiles.geometry_with_weight(contraction, channels) and not call.deterministic,
        "large_shared_memory": large_shared_memory,
    }
    return Plan(**{name: _fixed.get(name, choice) for name, choice in choices.items()})


def chunk_bytes() -> int:
    """Return the size of the buffer for the displacements of geodesic samples."""
    size: int = _fixed.get("chunk_bytes", _CHUNK_BYTES)
    return size


@contextlib.contextmanager
def fixed_choices(**choices: Any) -> Iterator[None]:
    """Fix attributes of the plans made inside, or ``chunk_bytes``, to reach all kernels on small problems."""
    unknown = set(choices) - {field.name for field in dataclasses.fields(Plan)} - {"chunk_bytes"}
    if unknown:
        raise TypeError(f"no choices of a plan: {sorted(unknown)}")
    before = _fixed.copy()
    _fixed.update(choices)
    try:
        yield
    finally:
        _fixed.clear()
        _fixed.update(before)


def fixed_key() -> tuple[Any, ...]:
    """Return the fixed choices, as part of the keys of cached plans."""
    return tuple(_fixed.items())
