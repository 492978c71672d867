"""Does the derivative at lattice points matter for training? A paired comparison on a small ResNet and CIFAR-10.

A converted layer starts with every sample on a pixel, where bilinear interpolation has a kink. Version 0.1 used the
one-sided slope that rounding selected; the definition now is the central difference. ``metricconv reproduce lattice``
trains the same networks on the same batches with both, and writes runs.csv, curves.csv, a figure and README.md.
"""
