"""Training one setting, or all settings missing in a table, within a time limit."""

import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from metricconv.nn import capture

from .._lightning import Callback, TQDMProgressBar, lightning, rank_zero_only
from ..results import Results, hardware, text
from ..training import CHECKPOINT, count_parameters, evaluate, fit, history, make_trainer, seed_all
from . import datasets, networks
from .batches import DeviceDataset, TestBatches, TrainBatches
from .module import Classifier, Stopwatch
from .setting import KEY, METHODS, PROTOCOL, Setting

VALUES = (
    "top1", "top5", "held_top1", "held_top5", "train_loss", "parameters", "epoch_seconds", "peak_mb", "processes",
    "launched",
)  # fmt: skip
NETWORK = "network.pt"
# Number of images from which the batch-normalization statistics of a pretrained network are computed.
_RECALIBRATION = 1024

Phase = tuple[str, Callable[[Results], Iterable[Setting]]]


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of runs that should not change their results.

    Args:
        work: folder of checkpoints, logs and trained networks.
        data_root: folder of datasets; see ``metricconv_experiments.data``.
        download: download missing datasets.
        pretrained: file of initial weights, or "torchvision"; see ``networks.read_pretrained``.
        checkpoint_every: epochs between checkpoints.
        eval_every: epochs between evaluations on the test images; 0 evaluates once, at the end.
        compile: compile the network with ``torch.compile``.
        graphs: capture the forward and backward passes of a training step as CUDA graphs and replay them, which removes
            launch overhead; requires one GPU.
        trainer: other options of ``make_trainer``: accelerator, devices, strategy, deterministic …
    """

    work: Path
    data_root: Path | None = None
    download: bool = False
    pretrained: Path | None = None
    checkpoint_every: int = 5
    eval_every: int = 0
    compile: bool = False
    graphs: bool = False
    trainer: dict[str, Any] = dataclasses.field(default_factory=dict)


class Run(NamedTuple):
    """The module and the batches of a setting."""

    module: Classifier
    train: TrainBatches
    tests: list[TestBatches]


class Runner:
    """Trains settings one after the other; the last dataset stays on the device.

    ``earlier`` is the time, in seconds, that the last run took before it was interrupted; 0 if it was not.
    """

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.earlier = 0.0
        self._images: dict[str, datasets.Images] = {}
        self._on_device: dict[tuple[object, ...], DeviceDataset] = {}
        self._weights: dict[str, dict[str, Tensor]] = {}

    def train(self, setting: Setting) -> dict[str, object]:
        """Train a setting and return the values of its row; an interrupted run is resumed from its checkpoint.

        The checkpoint is not deleted, in case the row cannot be written; see ``delete_checkpoint``.
        """
        folder, stopwatch = self.options.work / setting.folder, Stopwatch()
        trainer = self._trainer(setting, folder, stopwatch)
        device = trainer.strategy.root_device
        dataset = self.on_device(setting, device)
        stopwatch.begin(device)
        run = self.prepare(setting, dataset, trainer.global_rank, trainer.world_size)
        fit(trainer, run.module, run.train, run.tests)
        measured = evaluate(trainer, run.module, run.tests)
        if trainer.is_global_zero:
            networks.save_trained(folder / NETWORK, setting, dataset.classes, dataset.channels, run.module.network)
        self.earlier = stopwatch.earlier
        losses = [row["train_loss"] for row in history(folder) if "train_loss" in row]
        values: dict[str, object] = {
            **{name: value for name, value in measured.items() if name in VALUES},
            "train_loss": losses[-1] if losses else None,
            "parameters": count_parameters(run.module.network),
            "epoch_seconds": stopwatch.epoch_seconds,
            "peak_mb": None if self.options.graphs else stopwatch.peak_mb,  # not measured for CUDA graphs
            "processes": trainer.world_size,
            "launched": "as CUDA graphs" if self.options.graphs else "compiled" if self.options.compile else "eagerly",
        }
        # All processes need the same rows, because the next run may depend on them.
        return trainer.strategy.broadcast(values)

    @rank_zero_only
    def delete_checkpoint(self, setting: Setting) -> None:
        """Delete the checkpoint of a run whose row was written."""
        (self.options.work / setting.folder / CHECKPOINT).unlink(missing_ok=True)

    def prepare(self, setting: Setting, dataset: DeviceDataset, rank: int = 0, world: int = 1) -> Run:
        """Return the network of a setting, with weights drawn from its seed, and its batches."""
        train = TrainBatches(dataset, setting.batch, str(setting.augmentation), setting.seed, rank, world)
        subsets = [subset for subset in (dataset.test, dataset.held) if subset is not None]
        tests = [TestBatches(dataset, subset, rank=rank, world=world) for subset in subsets]
        device = dataset.mean.device
        weights = self._pretrained(setting)
        seed_all(setting.seed)
        network = networks.build(setting, dataset.classes, dataset.channels, weights)
        network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if weights is not None:
            images = dataset.train.x[:_RECALIBRATION]
            networks.recalibrate(network, (dataset.normalized(x) for x in images.split(128)))
        if self.options.compile:
            network.compile()
        if self.options.graphs:
            dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(setting.precision)
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                capture(network.train(), next(iter(train))[0])
        return Run(Classifier(network, setting, dataset.classes), train, tests)

    def images(self, dataset: str) -> datasets.Images:
        """Return a dataset, which is read once."""
        if dataset not in self._images:
            self._images[dataset] = datasets.load(dataset, self.options.data_root, download=self.options.download)
        return self._images[dataset]

    def on_device(self, setting: Setting, device: torch.device) -> DeviceDataset:
        """Return the dataset of a setting on a device; only the last one is cached."""
        key = setting.dataset, device, setting.holdout, setting.train_images
        if key not in self._on_device:
            self._on_device = {key: DeviceDataset(self.images(setting.dataset), *key[1:])}
        if setting.augmentation == "pad-crop":
            _ = self._on_device[key].padded  # computed now, so that it does not count as memory of a run
        return self._on_device[key]

    def _trainer(self, setting: Setting, folder: Path, stopwatch: Stopwatch) -> lightning.Trainer:
        options = self.options.trainer
        return make_trainer(
            folder,
            epochs=int(setting.epochs or 1),
            seed=setting.seed,
            checkpoint_every=self.options.checkpoint_every,
            precision=setting.precision,
            callbacks=[stopwatch, *_progress_bar(options.get("progress"))],
            log_every_n_steps=2**31,
            check_val_every_n_epoch=self.options.eval_every or 1,
            limit_val_batches=1.0 if self.options.eval_every else 0,
            benchmark=not options.get("deterministic", False),
            sync_batchnorm=_several_gpus(options),
            **options,
        )

    def _pretrained(self, setting: Setting) -> dict[str, Tensor] | None:
        if setting.start == "scratch":
            return None
        if self.options.pretrained is None or self.options.pretrained.stem != setting.start:
            raise ValueError(f"`start` (={setting.start!r}) requires `pretrained`, the file of these weights")
        if setting.network not in self._weights:
            self._weights[setting.network] = networks.read_pretrained(self.options.pretrained, setting.network)
        return self._weights[setting.network]


def table(output: Path) -> Results:
    """Return the table of all runs in a folder."""
    return Results(output / "runs.csv", KEY, VALUES)


def run_all(results: Results, phases: Sequence[Phase], runner: Runner, max_minutes: float | None = None) -> int:
    """Train the settings missing in the table, phase by phase, and return the number of added rows.

    A phase may depend on the rows of earlier phases; rows in progress in another process are waited for. With
    ``max_minutes``, runs that would not end in time, estimated from the rows of the table, are not started, and other
    processes are not waited for.
    """
    distributed = int(runner.options.trainer.get("devices", 1)) > 1
    if max_minutes is not None and distributed:
        raise ValueError("`max_minutes` requires a single process: several processes would not stop at the same row")
    start = time.monotonic()

    def minutes_left() -> float | None:
        return None if max_minutes is None else max(max_minutes - (time.monotonic() - start) / 60, 0)

    results.prepare()
    added = 0
    for title, settings in phases:
        missing = [setting for setting in dict.fromkeys(settings(results)) if setting.key not in results]
        # First the rows that no other process is computing, then those of other processes that are still missing.
        for wait, (n, setting) in itertools.product((False, True), enumerate(missing, 1)):
            if setting.key in results:
                continue
            minutes, expected = minutes_left(), expected_seconds(results, setting)
            if minutes is not None and (expected or 0) >= 60 * minutes:
                about = "" if expected is None else f", the next run takes about {expected:.0f} s"
                report_progress(f"stopped at {title}, {n} of {len(missing)}: {60 * minutes:.0f} s left{about}")
                return added
            if wait:
                report_progress(f"{title}, {n} of {len(missing)}: in progress in another process")
                if minutes is not None:
                    return added
            with results.claimed(setting.key, wait=wait, distributed=distributed) as claimed:
                if not claimed:
                    continue
                report_progress(f"{title}, {n} of {len(missing)}: {setting}")
                started = time.monotonic()
                values = runner.train(setting)
                results.add(setting.key, values, runner.earlier + time.monotonic() - started)
                runner.delete_checkpoint(setting)
                added += 1
                report_progress(f"    {summary(values)}")
    return added


def trained_networks(
    paths: Sequence[Path], output: Path, work: Path, *, adaptive: bool = False
) -> dict[str, tuple[Setting, nn.Module]]:
    """Return the networks of given files; without files, those in the work folder.

    Networks in the work folder are grouped by dataset, protocol and seed. The group with the most methods is selected
    (the first seed if several have as many), with the best run of each method by the table in ``output``. The keys are
    the names of methods, with the options that differ if several networks have the same method.
    """
    if not paths:
        alike: dict[tuple[str, ...], dict[str, Path]] = {}
        rows = sorted(table(output).rows, key=lambda row: float(row["held_top1"] or row["top1"]))
        for row in sorted(rows, key=lambda row: int(row["seed"])):
            path = work / Setting.from_row(row).folder / NETWORK
            if path.exists() and row["weights"] == "learnt" and not (adaptive and row["method"] == "standard"):
                alike.setdefault(tuple(row[name] for name in (*PROTOCOL, "start", "seed")), {})[row["method"]] = path
        most = max(alike.values(), default={}, key=len)
        paths = [most[method] for method in METHODS if method in most]
    if not paths:
        raise ValueError(
            f"`work` (={work}) contains no trained network of the runs in {output}: give one with --network"
        )
    found = [networks.load_trained(path) for path in paths]
    settings = [setting for setting, _ in found]
    if len(set(settings)) < len(settings):
        raise ValueError(f"`network` must name different runs, got {', '.join(map(str, paths))}")
    return {_name(setting, settings): (setting, network) for setting, network in found}


def expected_seconds(results: Results, setting: Setting) -> float | None:
    """Return the estimated seconds, from the median epoch of similar rows on this hardware; None without such rows."""
    same = ("dataset", "network", "method", "layers", "metric_groups", "batch", "precision", "train_images", "holdout")
    expected = {name: text(setting.key[name]) for name in same} | {"hardware": hardware()}
    alike = [row for row in results.rows if all(row[name] == value for name, value in expected.items())]
    times = [float(row["seconds"]) / float(row["epochs"]) for row in alike if row["seconds"]]
    return statistics.median(times) * int(setting.epochs or 1) if times else None


def summary(values: dict[str, object]) -> str:
    """Return a line with the results of a run."""
    parts = [f"top-1 {100 * float(str(values['top1'])):.2f} %", f"top-5 {100 * float(str(values['top5'])):.2f} %"]
    if values.get("held_top1") is not None:
        parts.append(f"held out {100 * float(str(values['held_top1'])):.2f} %")
    if values["epoch_seconds"] is not None:
        parts.append(f"{float(str(values['epoch_seconds'])):.2f} s per epoch")
    if values["peak_mb"] is not None:
        parts.append(f"peak {float(str(values['peak_mb'])):.0f} MiB")
    return ", ".join(parts)


@rank_zero_only
def report_progress(line: str) -> None:
    """Print a line to stderr, in the first process only."""
    print(line, file=sys.stderr, flush=True)


def _name(setting: Setting, among: Iterable[Setting]) -> str:
    same_method = [other.key for other in among if other.method == setting.method]
    different = [name for name in KEY if len({other[name] for other in same_method}) > 1]
    return ", ".join([setting.method, *(f"{name} {text(setting.key[name])}" for name in different)])


def _progress_bar(progress: bool | None) -> list[Callback]:
    shown = sys.stderr.isatty() if progress is None else progress
    return [TQDMProgressBar(refresh_rate=20)] if shown else []


def _several_gpus(trainer: dict[str, Any]) -> bool:
    several = str(trainer.get("devices", 1)) not in ("1", "auto")
    return several and trainer.get("accelerator") != "cpu" and torch.cuda.is_available()
