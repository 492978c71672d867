"""Segmentation of vessels and cracks from few labeled images."""
