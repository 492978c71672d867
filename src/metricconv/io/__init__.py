"""Reading and writing of image and volume files, whole or in tiles (the extras ``cli`` and ``large``)."""

__all__ = ["image_data", "images", "tiff", "tiled"]
