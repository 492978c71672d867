"""Segment thin curves with a small U-Net, ordinary or with metric convolutions, and draw balls along the curves."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate, max_pool2d

import metricconv as mc
from metricconv import viz


def block(inputs, outputs):
    """Return a convolution with normalization and ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """An encoder-decoder of two stages, (B, 1, H, W) → (B, 1, H, W)."""

    def __init__(self, width=12):
        super().__init__()
        self.fine, self.coarse, self.merge = block(1, width), block(width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        """Return the logits of the curves."""
        fine = self.fine(x)
        coarse = interpolate(self.coarse(max_pool2d(fine, 2)), scale_factor=2, mode="bilinear")
        return self.head(self.merge(torch.cat([coarse, fine], 1)))


def curves(count, size=64):
    """Return noisy images (B, 1, size, size) of three random sine curves each, and their masks."""
    y, x = torch.meshgrid(torch.arange(size) - size / 2, torch.arange(size) - size / 2, indexing="ij")
    angle, bend, phase, shift = torch.rand(4, count, 3, 1, 1) * torch.tensor([3.14, 6, 6, size]).view(4, 1, 1, 1, 1)
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    mask = ((across - shift + size / 2 - bend * torch.sin(along / 6 + phase)).abs().amin(1, keepdim=True) < 1).float()
    return mask + 0.8 * torch.randn_like(mask), mask


def main(folder="outputs/examples", steps=150, count=8):
    """Write thin_structures.png and return the Dice of both networks on new images."""
    torch.manual_seed(0)
    standard = UNet()
    nets = {"standard": standard, "metric": mc.convert(standard, ["coarse.0", "merge.0"])}
    for net in nets.values():
        optimizer = torch.optim.AdamW(mc.nn.param_groups(net, lr=1e-2, metric_lr_mult=0.1))
        for _ in range(steps):
            x, mask = curves(count)
            logits = net(x)
            p = logits.sigmoid()
            loss = binary_cross_entropy_with_logits(logits, mask) + 1 - 2 * (p * mask).sum() / (p + mask).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    x, mask = curves(16)
    with torch.no_grad(), mc.nn.record_supports(nets["metric"]) as seen:
        found = {name: net.eval()(x) > 0 for name, net in nets.items()}
    dice = {name: float(2 * (y * mask).sum() / (y.sum() + mask.sum())) for name, y in found.items()}
    figure, axes = plt.subplots(1, 5, figsize=(15, 3.4), layout="constrained")
    panels = {"image": x, "mask": mask} | {f"{name}, Dice {dice[name]:.2f}": y for name, y in found.items()}
    for ax, (title, image) in zip(axes, panels.items(), strict=False):
        ax.imshow(image[0, 0].numpy(), cmap="gray")
        ax.set(title=title, xticks=[], yticks=[])
    viz.plot_unit_balls(seen["merge.0"], mask[0, 0], mask[0, 0].nonzero()[::12].tolist(), axes=axes[4])
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "thin_structures.png")
    return dice


if __name__ == "__main__":
    print(main())
