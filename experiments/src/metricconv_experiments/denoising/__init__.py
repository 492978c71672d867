"""Denoising, the paper's first experiments: one local convolution whose supports are metric unit balls.

Commands, each with a configuration and a CSV that includes the published numbers:

- ``denoise-heuristic``: supports computed from the image, without learning;
- ``denoise-tuned``: the tuned filters of ``denoise-heuristic`` on many images;
- ``denoise-image``: sampling locations learned on one image, tested with other noise;
- ``denoise-dataset``: one layer trained on a dataset.
"""
