"""What the tests of layers share."""

from torch import nn

import metricconv as mc


def stir(model: nn.Module, size: float = 0.1) -> nn.Module:
    """Move the heads of a model away from zero."""
    for _, layer in mc.nn.adaptive_layers(model):
        for parameter in layer.predictor.parameters():
            nn.init.normal_(parameter, std=size)
    return model
