"""Sizes of the parts into which a call is divided for threads and caches."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Bounds on tasks, pixel ranges and tiles. They affect time and memory; results differ by rounding errors only."""

    tasks: int = 16  # enough for many threads
    min_range_pixels: int = 256
    max_weight_sums: int = 2**24  # values in all tasks' weight gradients: 64 MB in float32
    tile_values: int = 2**17  # values in the im2col buffer: half a MB in float32, well within the L2 cache of a core
    max_row_values: int = 4096  # values of one pixel in the im2col buffer
    min_tile_pixels: int = 32  # overrides tile_values; a tile has at most the pixels of a strip
    block_values: int = 2**21  # values in the columns of a block: 8 MB in float32
    min_block_rows: int = 64  # overrides block_values
    min_task_values: int = 2**15  # values in the columns of a block that are worth a task


DEFAULT = Tiling()
