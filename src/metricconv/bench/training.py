"""A training iteration of ResNet-18 with a CIFAR stem: standard, and with layers 2 to 4 adaptive."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import metricconv as mc
from metricconv.convert import dilate_last_layer
from metricconv.nn import AdaptiveConv, DeformableConv2d, MetricConv2d, ShiftedConv2d

SHAPE = "ResNet-18, (128,3,32,32)"
NETWORKS = ("standard", "metric", "deformable", "shifted", "torchvision deformable")


class TorchvisionDeformable(DeformableConv2d):
    """The deformable convolution of the comparison, with its last step done by torchvision's operator."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (B, C_in, H, W)."""
        from torchvision.ops import deform_conv2d

        offsets = mc.supports.to_torchvision_offsets(self.look(x)[0])
        return deform_conv2d(x.float(), offsets, self.weight, self.bias, self.stride, self.padding, self.dilation)


def network(name: str, classes: int = 100) -> nn.Module:
    """Return a ResNet-18 whose first convolution keeps the image's size, converted as the paper does."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    if name == "standard":  # which keeps layer4 at stride 1 too
        dilate_last_layer(model)
        return model
    kinds: dict[str, type[AdaptiveConv]] = {
        "metric": MetricConv2d,
        "deformable": DeformableConv2d,
        "shifted": ShiftedConv2d,
        "torchvision deformable": TorchvisionDeformable,
    }
    return mc.convert(model, "paper", to=kinds[name])


def iterations(batch: int = 128) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Yield, for each network and precision, its name, the precision and one iteration (forward, backward, Adam)."""
    for name in NETWORKS:
        for dtype in ("float32", "bfloat16"):
            if dtype == "bfloat16" and name.startswith("torchvision"):
                continue  # it has none
            torch.manual_seed(0)
            model = network(name).cuda().train()
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            x = torch.randn(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
            target = torch.randint(100, (batch,), device="cuda")
            optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, capturable=True)
            yield name, dtype, _iteration(model, optimiser, x, target, dtype)


def _iteration(
    model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, target: Tensor, dtype: str
) -> Callable[[], object]:
    def iterate() -> object:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimiser.step()
        return loss

    return iterate
