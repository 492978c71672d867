"""Training iterations of ResNet-18 with a CIFAR stem: standard, and with adaptive layers 2 to 4."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import metricconv as mc
from metricconv._torchvision import import_torchvision
from metricconv.nn import DeformableConv2d, MetricConv2d, ShiftedConv2d

BATCH, CLASSES = 128, 100
SHAPE = f"ResNet-18, ({BATCH},3,32,32)"


class TorchvisionDeformable(DeformableConv2d):
    """Deformable convolution with torchvision's operator."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (B, C_in, H, W)."""
        deform_conv2d = import_torchvision("torchvision.ops").deform_conv2d
        offsets = mc.supports.to_torchvision_offsets(self.predict_support(x)[0])
        return deform_conv2d(x.float(), offsets, self.weight, self.bias, self.stride, self.padding, self.dilation)


LAYERS = {
    "standard": None,
    "metric": MetricConv2d,
    "deformable": DeformableConv2d,
    "shifted": ShiftedConv2d,
    "torchvision deformable": TorchvisionDeformable,
}


def network(name: str) -> nn.Module:
    """Return a ResNet-18 for 32×32 images with layer4 dilated instead of strided, as in the paper's experiments."""
    model = import_torchvision("torchvision.models").resnet18(num_classes=CLASSES)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    for index, block in enumerate(model.layer4):
        for conv in (module for module in block.modules() if isinstance(module, nn.Conv2d)):
            conv.stride = (1, 1)
            if index and conv.kernel_size == (3, 3):
                conv.dilation, conv.padding = (2, 2), (2, 2)
    layer = LAYERS[name]
    return model if layer is None else mc.convert(model, ["layer2.*", "layer3.*", "layer4.*"], to=layer)


def cases() -> list[tuple[str, str]]:
    """Return the pairs of network and dtype to train."""
    dtypes = ("float32", "bfloat16")
    return [(name, dtype) for name in LAYERS for dtype in dtypes[: 1 if name.startswith("torchvision") else 2]]


def iteration(name: str, dtype: str) -> Callable[[], object]:
    """Return a function that runs one training iteration: forward, backward, Adam."""
    torch.manual_seed(0)
    model = network(name).cuda().train()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(BATCH, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    target = torch.randint(CLASSES, (BATCH,), device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, capturable=True)

    def iterate() -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    return iterate
