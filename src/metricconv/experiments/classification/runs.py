"""Training one setting, or many in one process: rows that a table lacks, within a budget of time."""

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

from ...nn import capture
from .._lightning import Callback, TQDMProgressBar, lightning, rank_zero_only
from ..results import Results, hardware, text
from ..training import CHECKPOINT, evaluate, fit, history, make_trainer, parameters, seed_all
from . import datasets, networks
from .batches import Pictures, TestBatches, TrainBatches
from .module import Classifier, Stopwatch
from .setting import KEY, METHODS, PROTOCOL, Setting

VALUES = (
    "top1", "top5", "held_top1", "held_top5", "train_loss", "parameters", "epoch_seconds", "peak_mb", "processes",
    "launched",
)  # fmt: skip
NETWORK = "network.pt"
# Images that the statistics of a pretrained network's batch normalisation are taken from.
_RECALIBRATION = 1024

Phase = tuple[str, Callable[[Results], Iterable[Setting]]]


@dataclasses.dataclass(frozen=True)
class Options:
    """How runs are made, none of which should change their results.

    Args:
        work: folder of checkpoints, logs and trained networks.
        data_root: where datasets lie; see ``experiments.data``.
        download: fetch a dataset that is missing.
        pretrained: file of the weights that settings start from, or "torchvision"; see ``networks.read_pretrained``.
        checkpoint_every: epochs between checkpoints.
        eval_every: epochs between looks at the test images, for curves; 0 looks once, at the end.
        compile: hand the network to ``torch.compile``.
        graphs: capture a training step's forward and backward pass as CUDA graphs and replay them, so that the GPU
            does not wait for Python; on one GPU.
        trainer: more of ``make_trainer``'s options: accelerator, devices, strategy, deterministic …
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
    """A setting, ready to train."""

    module: Classifier
    train: TrainBatches
    tests: list[TestBatches]


class Runner:
    """Trains settings one after the other and keeps their datasets on the device in between.

    ``earlier`` is how many seconds the last run had taken before it was cut short; 0 if it was not.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.earlier = 0.0
        self._images: dict[str, datasets.Images] = {}
        self._pictures: dict[tuple[object, ...], Pictures] = {}
        self._weights: dict[str, dict[str, Tensor]] = {}

    def train(self, setting: Setting) -> dict[str, object]:
        """Train a setting and return the values of its row; a run that was cut short goes on from its checkpoint.

        The checkpoint stays, for a row that cannot be written: ``forget`` deletes it.
        """
        folder, stopwatch = self.options.work / setting.folder, Stopwatch()
        trainer = self._trainer(setting, folder, stopwatch)
        device = trainer.strategy.root_device
        pictures = self.pictures(setting, device)
        stopwatch.begin(device)
        run = self.ready(setting, pictures, trainer.global_rank, trainer.world_size)
        fit(trainer, run.module, run.train, run.tests)
        seen = evaluate(trainer, run.module, run.tests)
        if trainer.is_global_zero:
            networks.save_network(folder / NETWORK, setting, pictures.classes, pictures.channels, run.module.network)
        self.earlier = stopwatch.earlier
        losses = [row["train_loss"] for row in history(folder) if "train_loss" in row]
        values: dict[str, object] = {
            **{name: value for name, value in seen.items() if name in VALUES},
            "train_loss": losses[-1] if losses else None,
            "parameters": parameters(run.module.network),
            "epoch_seconds": stopwatch.epoch_seconds,
            "peak_mb": None if self.options.graphs else stopwatch.peak_mb,  # graphs keep theirs out of sight
            "processes": trainer.world_size,
            "launched": "as CUDA graphs" if self.options.graphs else "compiled" if self.options.compile else "eagerly",
        }
        # All processes go on with the same rows: what is run next may depend on them.
        return trainer.strategy.broadcast(values)

    @rank_zero_only
    def forget(self, setting: Setting) -> None:
        """Delete the checkpoint of a run whose row is written."""
        (self.options.work / setting.folder / CHECKPOINT).unlink(missing_ok=True)

    def ready(self, setting: Setting, pictures: Pictures, rank: int = 0, world: int = 1) -> Run:
        """Build the network of a setting, with weights drawn from its seed, and its batches."""
        train = TrainBatches(pictures, setting.batch, str(setting.augmentation), setting.seed, rank, world)
        halves = [half for half in (pictures.test, pictures.held) if half is not None]
        tests = [TestBatches(pictures, half, rank=rank, world=world) for half in halves]
        device = pictures.mean.device
        weights = self._pretrained(setting)
        seed_all(setting.seed)
        network = networks.build(setting, pictures.classes, pictures.channels, weights)
        network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if weights is not None:
            some = pictures.train.x[:_RECALIBRATION]
            networks.recalibrate(network, (pictures.normalised(x) for x in some.split(128)))
        if self.options.compile:
            network.compile()
        if self.options.graphs:
            half = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(setting.precision)
            with torch.autocast("cuda", half, enabled=half is not None):
                capture(network.train(), next(iter(train))[0])
        return Run(Classifier(network, setting, pictures.classes), train, tests)

    def images(self, dataset: str) -> datasets.Images:
        """Read a dataset, once."""
        if dataset not in self._images:
            self._images[dataset] = datasets.load(dataset, self.options.data_root, download=self.options.download)
        return self._images[dataset]

    def pictures(self, setting: Setting, device: torch.device) -> Pictures:
        """Put a setting's images on a device, once; only the last ones are kept there."""
        key = setting.dataset, device, setting.holdout, setting.train_images
        if key not in self._pictures:
            self._pictures = {key: Pictures(self.images(setting.dataset), *key[1:])}
        if setting.augmentation == "pad-crop":
            _ = self._pictures[key].padded  # now, so that no run's memory is charged for it
        return self._pictures[key]

    def _trainer(self, setting: Setting, folder: Path, stopwatch: Stopwatch) -> lightning.Trainer:
        chosen = self.options.trainer
        return make_trainer(
            folder,
            epochs=int(setting.epochs or 1),
            seed=setting.seed,
            checkpoint_every=self.options.checkpoint_every,
            precision=setting.precision,
            callbacks=[stopwatch, *_progress_bar(chosen.get("progress"))],
            log_every_n_steps=2**31,
            check_val_every_n_epoch=self.options.eval_every or 1,
            limit_val_batches=1.0 if self.options.eval_every else 0,
            benchmark=not chosen.get("deterministic", False),
            sync_batchnorm=_several_gpus(chosen),
            **chosen,
        )

    def _pretrained(self, setting: Setting) -> dict[str, Tensor] | None:
        if setting.start == "scratch":
            return None
        if self.options.pretrained is None or self.options.pretrained.stem != setting.start:
            raise ValueError(f"`start` (={setting.start!r}) needs `pretrained`, the file of these weights")
        if setting.network not in self._weights:
            self._weights[setting.network] = networks.read_pretrained(self.options.pretrained, setting.network)
        return self._weights[setting.network]


def table(output: Path) -> Results:
    """Return the table of all runs in a folder."""
    return Results(output / "runs.csv", KEY, VALUES)


def run_all(results: Results, phases: Sequence[Phase], runner: Runner, max_minutes: float | None = None) -> int:
    """Train what the table lacks, phase by phase, and return how many rows were added.

    A phase sees the rows of those before it, also those that another process is at: they are waited for. With
    ``max_minutes``, no run begins that, by the rows of the table, would not end in time, and nothing is waited for.
    """
    together = int(runner.options.trainer.get("devices", 1)) > 1
    if max_minutes is not None and together:
        raise ValueError("`max_minutes` needs a single process: several would not stop at the same row")
    start = time.monotonic()

    def left() -> float | None:
        return None if max_minutes is None else max(max_minutes - (time.monotonic() - start) / 60, 0)

    results.prepare()
    added = 0
    for title, settings in phases:
        lacking = [setting for setting in dict.fromkeys(settings(results)) if setting.key not in results]
        # First what no other process is at, then what is still lacking of the others'.
        for wait, (n, setting) in itertools.product((False, True), enumerate(lacking, 1)):
            if setting.key in results:
                continue
            minutes, expected = left(), expected_seconds(results, setting)
            if minutes is not None and (expected or 0) >= 60 * minutes:
                about = "" if expected is None else f", the next run takes about {expected:.0f} s"
                say(f"stopped at {title}, {n} of {len(lacking)}: {60 * minutes:.0f} s are left{about}")
                return added
            if wait:
                say(f"{title}, {n} of {len(lacking)}: another process is at it")
                if minutes is not None:
                    return added
            with results.claimed(setting.key, wait=wait, together=together) as mine:
                if not mine:
                    continue
                say(f"{title}, {n} of {len(lacking)}: {setting}")
                before = time.monotonic()
                values = runner.train(setting)
                results.add(setting.key, values, runner.earlier + time.monotonic() - before)
                runner.forget(setting)
                added += 1
                say(f"    {summary(values)}")
    return added


def trained_networks(
    paths: Sequence[Path], output: Path, work: Path, *, adaptive: bool = False
) -> dict[str, tuple[Setting, nn.Module]]:
    """Return the networks of these files; of none, those of the runs that the work folder still has.

    These are of one dataset, protocol and seed, the ones with the most methods (the first seed of several), and of each
    method the best by the table in ``output``. Networks are named by their method; where several share it, also by what
    tells their settings apart.
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
        raise ValueError(f"`work` (={work}) has no trained network of the runs in {output}: name one with --network")
    found = [networks.load_network(path) for path in paths]
    settings = [setting for setting, _ in found]
    if len(set(settings)) < len(settings):
        raise ValueError(f"`network` must name different runs, got {', '.join(map(str, paths))}")
    return {_name(setting, settings): (setting, network) for setting, network in found}


def expected_seconds(results: Results, setting: Setting) -> float | None:
    """Return how long rows of the same size took on this hardware, by their median epoch; None if there are none."""
    same = ("dataset", "network", "method", "layers", "metric_groups", "batch", "precision", "train_images", "holdout")
    wanted = {name: text(setting.key[name]) for name in same} | {"hardware": hardware()}
    alike = [row for row in results.rows if all(row[name] == value for name, value in wanted.items())]
    times = [float(row["seconds"]) / float(row["epochs"]) for row in alike if row["seconds"]]
    return statistics.median(times) * int(setting.epochs or 1) if times else None


def summary(values: dict[str, object]) -> str:
    """Return what came of a run in one line."""
    parts = [f"top-1 {100 * float(str(values['top1'])):.2f} %", f"top-5 {100 * float(str(values['top5'])):.2f} %"]
    if values.get("held_top1") is not None:
        parts.append(f"held out {100 * float(str(values['held_top1'])):.2f} %")
    if values["epoch_seconds"] is not None:
        parts.append(f"{float(str(values['epoch_seconds'])):.2f} s an epoch")
    if values["peak_mb"] is not None:
        parts.append(f"peak {float(str(values['peak_mb'])):.0f} MiB")
    return ", ".join(parts)


@rank_zero_only
def say(line: str) -> None:
    """Tell the person at the terminal how far things are."""
    print(line, file=sys.stderr, flush=True)


def _name(setting: Setting, among: Iterable[Setting]) -> str:
    rivals = [other.key for other in among if other.method == setting.method]
    apart = [name for name in KEY if len({other[name] for other in rivals}) > 1]
    return ", ".join([setting.method, *(f"{name} {text(setting.key[name])}" for name in apart)])


def _progress_bar(wanted: bool | None) -> list[Callback]:
    shown = sys.stderr.isatty() if wanted is None else wanted
    return [TQDMProgressBar(refresh_rate=20)] if shown else []


def _several_gpus(trainer: dict[str, Any]) -> bool:
    several = str(trainer.get("devices", 1)) not in ("1", "auto")
    return several and trainer.get("accelerator") != "cpu" and torch.cuda.is_available()
