"""A training iteration of ResNet-18 with a CIFAR stem: standard, and with layers 2 to 4 adaptive."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import metricconv as mc
from metricconv._torchvision import import_torchvision
from metricconv.convert import dilate_last_layer
from metricconv.nn import AdaptiveConv, DeformableConv2d, MetricConv2d, ShiftedConv2d

BATCH, CLASSES = 128, 100
SHAPE = f"ResNet-18, ({BATCH},3,32,32)"
NETWORKS = ("standard", "metric", "deformable", "shifted", "torchvision deformable")


class TorchvisionDeformable(DeformableConv2d):
    """The deformable convolution of the comparison, with its last step done by torchvision's operator."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (B, C_in, H, W)."""
        deform_conv2d = import_torchvision("torchvision.ops").deform_conv2d
        offsets = mc.supports.to_torchvision_offsets(self.predict_support(x)[0])
        return deform_conv2d(x.float(), offsets, self.weight, self.bias, self.stride, self.padding, self.dilation)


def network(name: str) -> nn.Module:
    """Return a ResNet-18 whose first convolution keeps the image's size, converted as the paper does."""
    model = import_torchvision("torchvision.models").resnet18(num_classes=CLASSES)
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


def cases() -> list[tuple[str, str]]:
    """Return the networks and the precisions they are trained in."""
    dtypes = ("float32", "bfloat16")
    return [(name, dtype) for name in NETWORKS for dtype in dtypes[: 1 if name.startswith("torchvision") else 2]]


def iteration(name: str, dtype: str) -> Callable[[], object]:
    """Return one iteration of a network (forward, backward, Adam)."""
    torch.manual_seed(0)
    model = network(name).cuda().train()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(BATCH, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    target = torch.randint(CLASSES, (BATCH,), device="cuda")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, capturable=True)

    def iterate() -> object:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimiser.step()
        return loss

    return iterate
