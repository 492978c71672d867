"""Functions for tests of layers."""

import torch
from torch import nn

import metricconv as mc


def randomize_predictors(model: nn.Module, std: float = 0.1) -> nn.Module:
    """Draw the parameters of all predictors of a model from a normal distribution, in place."""
    for _, layer in mc.nn.adaptive_layers(model):
        for parameter in layer.predictor.parameters():
            nn.init.normal_(parameter, std=std)
    return model


def assert_equal_outputs(model: nn.Module, converted: nn.Module, *shape: int) -> None:
    """Check that two networks in evaluation mode compute the same from a random input (2, 3, *shape)."""
    x = torch.randn(2, 3, *shape)
    with torch.no_grad():
        torch.testing.assert_close(converted.eval()(x), model.eval()(x), atol=1e-5, rtol=1e-4)
