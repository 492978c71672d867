"""Denoising by one layer that is trained on a dataset.

The paper's recipe: gray images of 256 × 256 pixels, noise that is clamped and stored in 8 bits, a k × k convolution as
predictor, SGD with one learning rate, batches of 32 (of 4 for k = 31). Our recipe: Adam with a cosine schedule, uniform
initial weights, and predictors with a hidden layer.
"""

import itertools
import math
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data import Dataset as TorchDataset

from metricconv import _checks

from .._lightning import lightning
from ..lr_range import range_test
from ..results import Results
from ..training import CHECKPOINT, count_parameters, device_of, fit, make_trainer, now, seed_all
from . import published
from .inputs import SIZE, add_noise, check_grid, load, splits
from .layers import OURS, our_layer, published_layer
from .published import PublishedKey
from .tables import DATASET_KEY as KEY
from .tables import METHODS, RATES, name_of

NOISES = ("8-bit", "float")
NOISE_SEED = 0
OUR_RATE = 3e-3
_OUR_BATCH = 8
_RANGE = (1e-5, 1e5)


class NoisyImages(NamedTuple):
    """Clean and noisy images (N, 1, H, W), for training and for testing."""

    train_clean: Tensor
    train_noisy: Tensor
    test_clean: Tensor
    test_noisy: Tensor


class Batches(TorchDataset[tuple[Tensor, Tensor]]):
    """Pairs (noisy, clean) in memory, indexed by batches."""

    def __init__(self, noisy: Tensor, clean: Tensor) -> None:
        self.noisy, self.clean = noisy, clean

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self.noisy[indices], self.clean[indices]

    def __len__(self) -> int:
        return len(self.noisy)

    def loader(self, size: int, *, shuffle: bool = False) -> DataLoader[Any]:
        """Return a loader of batches of ``size`` images."""
        order = RandomSampler(self) if shuffle else SequentialSampler(self)
        return DataLoader(self, sampler=BatchSampler(order, size, drop_last=False), batch_size=None)


class Denoiser(lightning.LightningModule):
    """One layer that is trained on the MSE.

    Args:
        layer: maps noisy to clean images.
        lr: learning rate.
        recipe: "paper" for SGD, "ours" for Adam with a cosine over all epochs.
    """

    def __init__(self, layer: nn.Module, lr: float, recipe: str) -> None:
        super().__init__()
        self.layer, self.lr, self.recipe = layer, lr, recipe

    def forward(self, x: Tensor) -> Tensor:
        """Denoise (B, 1, H, W)."""
        return self.layer(x)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the MSE."""
        noisy, clean = batch
        loss = mse_loss(self(noisy), clean)
        self.log("train_mse", loss, on_step=False, on_epoch=True, batch_size=len(noisy), sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Log the MSE."""
        noisy, clean = batch
        self.log("test_mse", mse_loss(self(noisy), clean), batch_size=len(noisy), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return the optimizer of the recipe."""
        if self.recipe == "paper":
            return torch.optim.SGD(self.parameters(), self.lr)
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(int(total), 1))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def paper_settings(
    dataset: str,
    methods: Sequence[str],
    weights: Sequence[str],
    ks: Sequence[int],
    sigmas: Sequence[float],
    **rest: Any,
) -> Iterator[dict[str, Any]]:
    """Yield the settings of the paper's table, small k first."""
    _check(sigmas, ks, rest)
    _one_of_each(methods, METHODS, "method")
    _one_of_each(weights, ("fixed", "learnt"), "weights")
    for k, sigma, name, kind in itertools.product(sorted(ks), sigmas, methods, weights):
        method, eps_omega = METHODS[name]
        row = {"method": method, "eps_omega": eps_omega, "weights": kind, "k": k, "sigma": sigma}
        yield {"dataset": dataset, "recipe": "paper", **row, **rest}


def our_settings(
    dataset: str, methods: Sequence[str], ks: Sequence[int], sigmas: Sequence[float], **rest: Any
) -> Iterator[dict[str, Any]]:
    """Yield the settings of our recipe."""
    _check(sigmas, ks, rest)
    _one_of_each(methods, OURS, "method")
    for k, sigma, method in itertools.product(sorted(ks), sigmas, methods):
        row = {"method": method, "eps_omega": None, "weights": "learnt", "k": k, "sigma": sigma}
        yield {"dataset": dataset, "recipe": "ours", **row, **rest, "rate": "ours"}


def read_images(
    dataset: str,
    sigma: float,
    noise: str,
    size: int,
    root: Path | None = None,
) -> NoisyImages:
    """Read a dataset and add noise, which is the same for every run."""
    train, test = (load(paths, (size, size)) for paths in splits(dataset, root))
    (noisy,) = add_noise(torch.cat([train, test]), sigma, NOISE_SEED, stored=noise == "8-bit")
    return NoisyImages(train, noisy[: len(train)], test, noisy[len(train) :])


def learn(setting: Mapping[str, Any], images: NoisyImages, folder: Path, **options: Any) -> dict[str, object]:
    """Train one setting and return the values of its row; interrupted runs are resumed from their last epoch.

    Args:
        setting: one of ``paper_settings`` or ``our_settings``.
        images: images of the setting.
        folder: folder for the checkpoint and the logs.
        **options: options of ``make_trainer``: accelerator, strategy, deterministic …
    """
    options |= {name: setting[name] for name in ("devices", "precision")}
    key = PublishedKey(*(setting[name] for name in PublishedKey._fields))
    seed_all(setting["seed"])
    ours = setting["recipe"] == "ours"
    layer = our_layer(key.method, key.k) if ours else published_layer(*key[:4])
    rate = OUR_RATE if ours else published.DATASET_RATE.get(setting["dataset"], {}).get(key, 1.0)
    size = _OUR_BATCH if ours else 4 if key.k >= 31 else 32
    images = NoisyImages(*(t.to(device_of(options)) for t in images))
    train = Batches(images.train_noisy, images.train_clean)
    test = Batches(images.test_noisy, images.test_clean)
    if setting["rate"] == "range":
        sweep = range_test(Denoiser(layer, rate, "paper"), train.loader(size), *_RANGE, **options)
        sweep.write(folder, name_of(setting, KEY))
        rate = sweep.suggestion
    module = Denoiser(layer, rate, setting["recipe"])
    if not ours:
        _copy_shorter_run(folder, setting)
    trainer = make_trainer(
        folder,
        epochs=setting["epochs"],
        seed=setting["seed"],
        check_val_every_n_epoch=max(setting["epochs"] // 20, 1),
        **options,
    )
    fit(trainer, module, train.loader(size, shuffle=True), test.loader(size))
    module = module.to(device_of(options)).eval()
    train_mse = measure(module, train, size)[0].mean().item()
    errors, seconds = measure(module, test, size)
    test_mse = errors.mean().item()
    comparable = not ours and setting["size"] == SIZE[0]
    printed = published.DATASET_MSE.get(setting["dataset"], {}).get(key) if comparable else None
    return {
        "lr": rate,
        "train_mse": train_mse,
        "test_mse": test_mse,
        "test_psnr": (-10 * errors.log10()).mean().item(),
        "gap": test_mse / train_mse - 1,
        "parameters": count_parameters(layer),
        "ms_per_image": 1000 * seconds / len(test),
        "paper_mse": None if printed is None else printed / published.DATASET_SCALE[setting["dataset"]][key.k],
        "paper_printed": printed,
        "paper_gap": published.DATASET_GAP[setting["dataset"]][key] if printed is not None else None,
    }


@torch.inference_mode()
def measure(module: nn.Module, data: Batches, size: int) -> tuple[Tensor, float]:
    """Return the MSE of each image, and the seconds for all of them, extrapolated from all but the first batch."""
    errors, seconds, counted = [], 0.0, 0
    for n, (noisy, clean) in enumerate(data.loader(size)):
        start = now(noisy.device)
        out = module(noisy)
        if n:
            seconds, counted = seconds + now(noisy.device) - start, counted + len(noisy)
        errors.append((out - clean).square().mean((1, 2, 3)).cpu())
    return torch.cat(errors), seconds * len(data) / counted if counted else math.nan


def run(
    results: Results,
    todo: Sequence[Mapping[str, Any]],
    output: Path,
    root: Path | None = None,
    max_minutes: float | None = None,
    **options: Any,
) -> None:
    """Add the missing rows to ``results``; checkpoints and logs are written below ``output``."""
    cached: tuple[object, NoisyImages] | None = None
    distributed = any(int(setting["devices"]) > 1 for setting in todo)
    for setting in results.pending(todo, max_minutes, distributed=distributed):
        selection: dict[str, Any] = {name: setting[name] for name in ("dataset", "sigma", "noise", "size")}
        if cached is None or cached[0] != selection:
            cached = selection, read_images(**selection, root=root)
        start = time.perf_counter()
        values = learn(setting, cached[1], output / name_of(setting, KEY), **options)
        results.add(setting, values, time.perf_counter() - start)


def _copy_shorter_run(folder: Path, setting: Mapping[str, Any]) -> None:
    """Copy the checkpoint of the same run with fewer epochs: with a constant rate it is the beginning of this run."""
    if (folder / CHECKPOINT).exists():
        return
    for epochs in range(setting["epochs"] - 1, 0, -1):
        earlier = folder.with_name(name_of({**setting, "epochs": epochs}, KEY)) / CHECKPOINT
        if earlier.exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(earlier, folder / CHECKPOINT)
            print(f"copied the checkpoint of the same run with fewer epochs, {earlier}", file=sys.stderr, flush=True)
            return


def _check(sigmas: Sequence[float], ks: Sequence[int], rest: Mapping[str, Any]) -> None:
    check_grid(ks, sigmas, rest["seed"], {name: rest[name] for name in ("epochs", "devices")})
    _one_of_each([rest["noise"]], NOISES, "noise")
    _one_of_each([rest["rate"]], RATES, "rate")


def _one_of_each(values: Sequence[str], choices: Iterable[str], name: str) -> None:
    for value in values:
        _checks.one_of(value, choices, name)
