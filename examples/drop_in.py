"""Convert the convolutions of a trained network: weights are kept, and outputs are equal until training continues."""

from pathlib import Path

import matplotlib.pyplot as plt
import skimage
import torch
from torch import nn

import metricconv as mc

TEXTURES = ("brick", "grass", "gravel")


def batch(count, size=32):
    """Return random patches of scikit-image's textures, and the label of each patch."""
    images = torch.stack([torch.tensor(getattr(skimage.data, name)() / 255.0).float() for name in TEXTURES])
    kinds = torch.randint(len(TEXTURES), (count,))
    corners = torch.randint(images.shape[-1] - size, (count, 2)).tolist()
    patches = [images[k, y : y + size, x : x + size] for k, (y, x) in zip(kinds, corners, strict=True)]
    return torch.stack(patches).unsqueeze(1) - 0.5, kinds


def train(net, optimizer, steps, count):
    """Train for the given number of steps and return the loss at each step."""
    losses = []
    for _ in range(steps):
        patches, kinds = batch(count)
        loss = nn.functional.cross_entropy(net(patches), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(folder="outputs/examples", steps=150, count=32):
    """Write drop_in.png and return the losses before and after the conversion."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(TEXTURES))),
    )
    before = train(net, torch.optim.AdamW(net.parameters(), lr=1e-3), steps, count)

    adaptive = mc.convert(net, report=print)
    patches, _ = batch(count)
    gap = (adaptive.eval()(patches) - net.eval()(patches)).abs().max().item()

    groups = mc.nn.param_groups(adaptive, lr=1e-3, metric_lr_mult=0.1)
    after = train(adaptive.train(), torch.optim.AdamW(groups), steps, count)

    figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    ax.plot(range(steps), before, label="ordinary convolutions")
    ax.plot(range(steps, 2 * steps), after, label="metric convolutions, same weights")
    ax.set(xlabel="step", ylabel="loss", yscale="log", title=f"converted at step {steps}: outputs differ by {gap:.0e}")
    ax.axvline(steps, color="0.6", linestyle="dashed")
    ax.legend()
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "drop_in.png")
    return {"gap": gap, "before": before, "after": after}


if __name__ == "__main__":
    main()
