"""Denoising, the paper's first experiments: whole images by one local convolution, whose support is a metric ball.

Three commands, each with its configuration, a CSV and the paper's numbers beside ours:

- ``denoise-heuristic``: supports read off the image, with no learning;
- ``denoise-image``: sample locations learnt on one image, tested on another noise;
- ``denoise-dataset``: one layer learnt on a dataset.
"""
