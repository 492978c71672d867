"""Sampling locations learned on one noisy image, and tested with other noise on the same image.

Every pixel has its own trainable parameters: five of a Cholesky metric, or 2k² free offsets. Weights are fixed at 1/k².
Training minimizes the MSE on one noisy image. The test with other noise shows whether the image or the noise was
learned.

As in the released code, noise is neither clamped nor rounded, the padding mode is zeros, and the ball is sampled by the
polar stencil. Offsets start at 0, metrics at the gradient metric of the noisy image with ι = 0.1, α = 10, ω = 0.
"""

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

from metricconv import _checks
from metricconv._images import psnr_from_mse
from metricconv.metrics import Cholesky, gradient_metric
from metricconv.ops import support_conv
from metricconv.stencils import polar
from metricconv.supports import Deformable, Support, TangentBall

from .._lightning import lightning
from ..lr_range import RangeTest, range_test
from ..results import Results, add_curve
from ..training import device_of, fit, history, make_trainer, seed_all
from . import published
from .inputs import CAMERAMAN_PIXELS, add_noise, check_grid, save_gray
from .published import PublishedKey
from .tables import IMAGE_KEY as KEY
from .tables import METHODS, RATES, name_of

CURVES = ("train_mse", "test_mse")

# Range of the range test, relative to the paper's rate (or to a default if there is none).
_RANGE = (1e-3, 1e3)
_VALIDATE_EVERY = 5


class Pair(NamedTuple):
    """A clean image, and the image with training noise and with test noise; (1, 1, H, W) each."""

    clean: Tensor
    train: Tensor
    test: Tensor


def make_pair(clean: Tensor, sigma: float, seed: int, device: torch.device | str = "cpu") -> Pair:
    """Add two realizations of noise to an image (H, W)."""
    noises = add_noise(clean, sigma, seed, draws=2)
    return Pair(*(image[None, None].to(device) for image in (clean, *noises)))


class FreeMetric(nn.Module):
    """Five parameters per pixel, the Cholesky factor and ω of a metric; the support is its tangent ball.

    The paper uses (x, y) order, so its Cholesky factor begins with x: the components of our metric are exchanged.
    """

    def __init__(self, noisy: Tensor, k: int, eps_omega: float) -> None:
        super().__init__()
        self.parametrization = Cholesky(eps_omega=eps_omega)
        M_yy, M_xy, M_xx = gradient_metric(noisy, iota=0.1, alpha=10.0, padding_mode="zeros").M.unbind(2)
        L_xx = M_xx.sqrt()
        L_yx = M_xy / L_xx
        omega = [torch.zeros_like(L_xx)] * (self.parametrization.channels - 3)
        self.raw = nn.Parameter(torch.stack([L_xx, L_yx, (M_yy - L_yx**2).sqrt(), *omega], 2))
        self.stencil = polar(k)

    def forward(self) -> Support:
        """Return the unit balls."""
        return TangentBall(self.parametrization(self.raw).map(lambda t: t.flip(2)), self.stencil)


class FreeOffsets(nn.Module):
    """A displacement for each of the k² samples of each pixel."""

    def __init__(self, noisy: Tensor, k: int) -> None:
        super().__init__()
        self.k = k
        self.displacement = nn.Parameter(noisy.new_zeros(1, 1, k * k, 2, *noisy.shape[2:]))

    def forward(self) -> Support:
        """Return the displaced grid."""
        return Deformable(self.displacement, self.k)


class SampleLocations(lightning.LightningModule):
    """The mean over trainable sampling locations, trained by gradient descent on the MSE."""

    def __init__(self, locations: FreeMetric | FreeOffsets, k: int, lr: float, pair: Pair) -> None:
        super().__init__()
        self.locations, self.lr, self.pair = locations, lr, pair
        self.filtered: tuple[Tensor, Tensor] | None = None
        self.register_buffer("weight", torch.full((1, 1, k, k), 1 / k**2))
        self.weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Filter an image (1, 1, H, W)."""
        return support_conv(x, self.locations(), self.weight, padding=self.weight.shape[-1] // 2)

    def training_step(self, pair: Pair, _: int) -> Tensor:
        """Return the MSE on the training noise."""
        return mse_loss(self(pair.train), pair.clean)

    def validation_step(self, pair: Pair, _: int) -> None:
        """Log the MSE for both realizations of noise, with the same locations."""
        for name, noisy in (("train_mse", pair.train), ("test_mse", pair.test)):
            self.log(name, mse_loss(self(noisy), pair.clean), batch_size=1)

    def on_train_end(self) -> None:
        """Filter both noisy images, before Lightning moves the module to another device."""
        with torch.no_grad():
            self.filtered = self(self.pair.train).cpu(), self(self.pair.test).cpu()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD without momentum."""
        return torch.optim.SGD(self.parameters(), self.lr)


class _Repeated(Dataset[Pair]):
    """The same pair, repeated: an epoch of full-batch iterations."""

    def __init__(self, pair: Pair, count: int) -> None:
        self.pair, self.count = pair, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Pair:
        return self.pair


def settings(
    image: str,
    methods: Sequence[str],
    ks: Sequence[int],
    sigmas: Sequence[float],
    rates: Sequence[str],
    *,
    iterations: int,
    seed: int,
    **rest: object,
) -> Iterator[dict[str, object]]:
    """Yield the settings of the table, small k first, the paper's rates before those of the range test."""
    check_grid(ks, sigmas, seed, {"iterations": iterations})
    for method in methods:
        _checks.one_of(method, METHODS, "method")
    for rate in rates:
        _checks.one_of(rate, RATES, "rate")
    for rate, k, sigma, name in itertools.product(rates, sorted(ks), sigmas, methods):
        method, eps_omega = METHODS[name]
        key = {"method": method, "eps_omega": eps_omega, "k": k, "sigma": sigma, "rate": rate}
        yield {"image": image, **key, "iterations": iterations, "seed": seed, **rest}


@dataclasses.dataclass(frozen=True)
class LocationsOutcome:
    """Result of a run: the values of its row, its curve, the filtered images, and its range test, if any."""

    values: Mapping[str, object]
    curve: list[dict[str, float]]
    train: Tensor
    test: Tensor
    sweep: RangeTest | None = None


def learn(setting: Mapping[str, Any], clean: Tensor, **options: Any) -> LocationsOutcome:
    """Train the sampling locations of one setting on an image (H, W).

    Args:
        setting: one of ``settings``.
        clean: the image, in [0, 1].
        **options: options of ``make_trainer``: accelerator, deterministic …
    """
    options["precision"] = setting["precision"]
    pair = make_pair(clean, setting["sigma"], setting["seed"], device_of(options))
    key = PublishedKey(setting["method"], setting["eps_omega"], "fixed", setting["k"], setting["sigma"])
    # The loss is a mean over pixels; the paper's rates are for 256 × 256 pixels.
    rate = published.IMAGE_RATE.get(key, 1e5) * clean.numel() / 256**2
    tested = None
    with tempfile.TemporaryDirectory() as folder:
        if setting["rate"] == "range":
            low, high = _RANGE
            tested = sweep(setting, clean, rate * low, rate * high, **options)
            rate = tested.suggestion
        model = _model(setting, pair, rate)
        iterations = setting["iterations"]
        trainer = make_trainer(
            Path(folder),
            epochs=1,
            seed=setting["seed"],
            checkpoint_every=None,
            val_check_interval=min(_VALIDATE_EVERY, iterations),
            **options,
        )
        fit(
            trainer,
            model,
            DataLoader(_Repeated(pair, iterations), batch_size=None),
            DataLoader(_Repeated(pair, 1), batch_size=None),
        )
        curve = [
            {"iteration": point["step"] + 1, **{name: point[name] for name in CURVES}}
            for point in history(Path(folder), by="step")
        ]
    assert model.filtered is not None
    train, test = model.filtered
    train_mse, test_mse = (float(mse_loss(image, pair.clean.cpu())) for image in (train, test))
    published_image = CAMERAMAN_PIXELS.startswith(setting["pixels"])
    values = {
        "lr": rate,
        "train_mse": train_mse,
        "test_mse": test_mse,
        "gap": test_mse / train_mse - 1,
        "train_psnr": psnr_from_mse(train_mse),
        "test_psnr": psnr_from_mse(test_mse),
        "paper_mse": published.IMAGE_MSE.get(key) if published_image else None,
        "paper_gap": published.IMAGE_GAP.get(key) if published_image else None,
    }
    return LocationsOutcome(values, curve, train[0, 0], test[0, 0], tested)


def sweep(
    setting: Mapping[str, Any], clean: Tensor, low: float, high: float, steps: int = 100, **options: Any
) -> RangeTest:
    """Run the learning-rate range test of one setting on an image (H, W)."""
    pair = make_pair(clean, setting["sigma"], setting["seed"], device_of(options))
    loader = DataLoader(_Repeated(pair, steps), batch_size=None)
    return range_test(_model(setting, pair, low), loader, low, high, steps, **options)


def run(
    results: Results,
    todo: Sequence[Mapping[str, Any]],
    clean: Tensor,
    output: Path,
    max_minutes: float | None = None,
    **options: Any,
) -> None:
    """Add the missing rows to ``results``; write their curves, and their images and range tests below ``output``.

    An interrupted row is run again from the beginning, with the same noise.
    """
    for setting in results.pending(todo, max_minutes):
        seed_all(int(setting["seed"]))  # type: ignore[call-overload]
        start = time.perf_counter()
        outcome = learn(setting, clean, **options)
        seconds = time.perf_counter() - start
        add_curve(results.path.with_name("image_curves.csv"), setting, outcome.curve, (*KEY, "iteration", *CURVES), KEY)
        folder = output / name_of(setting, KEY)
        for name, image in (("train", outcome.train), ("test", outcome.test)):
            save_gray(folder / f"{name}.png", image)
        if outcome.sweep is not None:
            outcome.sweep.write(folder, name_of(setting, KEY))
        results.add(setting, outcome.values, seconds)


def _model(setting: Mapping[str, Any], pair: Pair, rate: float) -> SampleLocations:
    k = setting["k"]
    locations: FreeMetric | FreeOffsets
    if setting["method"] == "utb":
        locations = FreeMetric(pair.train, k, setting["eps_omega"])
    else:
        locations = FreeOffsets(pair.train, k)
    return SampleLocations(locations, k, rate, pair)
