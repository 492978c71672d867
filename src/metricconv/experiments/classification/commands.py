"""The commands: what they read (datasets, weights), what they write (CSV, Markdown, figures, trained networks).

Lightning is imported by the commands that train.
"""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import in_one_line
from ..options import Accelerator, DataRoot, Deterministic, Download, Output, Strategy

if TYPE_CHECKING:
    import torch

    from ..results import Results
    from .runs import Phase, Runner
    from .setting import Setting

app = typer.Typer()

RESULTS = Path("outputs/classification")
WORK = RESULTS / "work"

Work = Annotated[Path, typer.Option(help="Folder of checkpoints, logs and trained networks.")]
Dataset = Annotated[str | None, typer.Option(help="mnist, fashion-mnist, cifar10 or cifar100 (default).")]
Network = Annotated[str | None, typer.Option(help="resnet18 (default), resnet50, resnet152 …")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="standard, deformable, shifted, metric-randers, metric-riemann, metric-geodesic; may be repeated.",
    ),
]
Weights = Annotated[str | None, typer.Option(help="learnt (LKW, default) or fixed (FKW).")]
Pretrained = Annotated[Path | None, typer.Option(help="Start from the weights of this file, or torchvision's own.")]
Layers = Annotated[str | None, typer.Option(help="Stages whose 3×3 convolutions are replaced: 2-4 (default) or 4.")]
Init = Annotated[str | None, typer.Option(help="identity (default), or paper: constant kernels, balls of radius 1.")]
Head = Annotated[int | None, typer.Option(help="Numbers that make a metric: 5, 6 or 7.")]
EpsOmega = Annotated[float | None, typer.Option(help="1 − the largest asymmetry of a Randers metric, in (0, 1].")]
Stencil = Annotated[str | None, typer.Option(help="square_onion (default), onion or polar.")]
Groups = Annotated[int | None, typer.Option(help="Metrics a layer, each for its part of the channels.")]
SMin = Annotated[
    float | None, typer.Option(help="Least scale of a 7-number metric's eigenvalues; balls grow as it falls.")
]
SMax = Annotated[float | None, typer.Option(help="Largest scale of a 7-number metric's eigenvalues.")]
Recipe = Annotated[str | None, typer.Option(help="paper (Adam, cosine), sgd (cosine) or onecycle.")]
Epochs = Annotated[int | None, typer.Option(help="Of training; the recipe's by default (paper: 240).")]
Batch = Annotated[int | None, typer.Option(help="Images a step, over all processes (128).")]
Rate = Annotated[float | None, typer.Option(help="Learning rate; the recipe's by default.")]
Decay = Annotated[float | None, typer.Option(help="Weight decay; the recipe's by default.")]
Multipliers = Annotated[
    list[float] | None,
    typer.Option("--head-multiplier", help="The heads learn at the rate times this; may be repeated."),
]
L1 = Annotated[float | None, typer.Option("--l1", help="λ of the heads' L1 term; the paper takes 5000.")]
Warmup = Annotated[int | None, typer.Option(help="Epochs during which the geometry stays at its identity.")]
Augmentation = Annotated[str | None, typer.Option(help="none, pad-crop or resized-crop; the dataset's by default.")]
TrainImages = Annotated[int | None, typer.Option(help="Train on so many images only.")]
Holdout = Annotated[int | None, typer.Option(help="Hold so many training images out, to choose between settings.")]
Precision = Annotated[str | None, typer.Option(help="Lightning's: 32-true, bf16-mixed …")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Of the run; may be repeated.")]
Minutes = Annotated[float | None, typer.Option(min=0, help="Begin no run that would not end within so many minutes.")]
Devices = Annotated[int, typer.Option(help="How many devices, each with a process of its own.")]
Compile = Annotated[bool, typer.Option("--compile", help="Hand networks to torch.compile.")]
Graphs = Annotated[bool, typer.Option("--graphs", help="Replay training steps as CUDA graphs; on one GPU.")]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Epochs between checkpoints.")]
EvalEvery = Annotated[
    int, typer.Option(min=0, help="Epochs between looks at the test images; 0 looks once, at the end.")
]
Estimate = Annotated[
    bool, typer.Option("--estimate", help="Time a few steps of each kind of run, say how long all take, stop.")
]
Grid = Annotated[
    str | None, typer.Option(help="short, paper or ablation: a whole grid of runs, in order of importance.")
]


@app.command()
@in_one_line()
def classify(
    grid: Grid = None,
    dataset: Dataset = None,
    network: Network = None,
    method: Methods = None,
    weights: Weights = None,
    pretrained: Pretrained = None,
    layers: Layers = None,
    init: Init = None,
    head: Head = None,
    eps_omega: EpsOmega = None,
    stencil: Stencil = None,
    metric_groups: Groups = None,
    s_min: SMin = None,
    s_max: SMax = None,
    recipe: Recipe = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    weight_decay: Decay = None,
    head_multiplier: Multipliers = None,
    l1: L1 = None,
    warmup: Warmup = None,
    augmentation: Augmentation = None,
    train_images: TrainImages = None,
    holdout: Holdout = None,
    precision: Precision = None,
    seed: Seeds = None,
    output: Output = RESULTS,
    work: Work = WORK,
    data_root: DataRoot = None,
    download: Download = False,
    max_minutes: Minutes = None,
    estimate: Estimate = False,
    checkpoint_every: CheckpointEvery = 5,
    eval_every: EvalEvery = 0,
    accelerator: Accelerator = "auto",
    devices: Devices = 1,
    strategy: Strategy = "auto",
    deterministic: Deterministic = False,
    compile: Compile = False,
    graphs: Graphs = False,
) -> None:
    """Train ResNets and add their rows to runs.csv; rows that are there already are not run again.

    By default the paper's network with metric convolutions on CIFAR-100. Without --grid, every combination of the
    options that are repeated is run; a grid chooses methods, weights and the heads' rates itself.
    """
    from . import grids

    _check_graphs(graphs, accelerator, devices)
    if grid == "short":
        precision = precision or _half_precision(accelerator)
    common = _given(
        dataset=dataset,
        network=network,
        weights=weights,
        start=None if pretrained is None else pretrained.stem,
        layers=layers,
        init=init,
        head=head,
        eps_omega=eps_omega,
        stencil=stencil,
        metric_groups=metric_groups,
        s_min=s_min,
        s_max=s_max,
        recipe=recipe,
        epochs=epochs,
        batch=batch,
        lr=lr,
        weight_decay=weight_decay,
        l1=l1,
        warmup=warmup,
        augmentation=augmentation,
        train_images=train_images,
        holdout=holdout,
        precision=precision,
    )
    if grid is None:
        phases = grids.single(_combinations(common, method, head_multiplier, seed))
    else:
        phases = _grid(grid, common | _given(method=method, head_multiplier=head_multiplier), seed)
    runner = _runner(
        work,
        data_root,
        download,
        pretrained=pretrained,
        checkpoint_every=checkpoint_every,
        eval_every=eval_every,
        compile=compile,
        graphs=graphs,
        trainer={
            "accelerator": accelerator,
            "devices": devices,
            "strategy": strategy,
            "deterministic": deterministic,
        },
    )
    _run(output, phases, runner, max_minutes, estimate)


@app.command()
@in_one_line()
def classify_sweep(
    dataset: Dataset = None,
    method: Methods = None,
    head_multiplier: Multipliers = None,
    recipe: Recipe = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    train_images: TrainImages = None,
    holdout: Holdout = None,
    precision: Precision = None,
    seed: Seeds = None,
    output: Output = RESULTS,
    work: Work = WORK,
    data_root: DataRoot = None,
    download: Download = False,
    max_minutes: Minutes = None,
    estimate: Estimate = False,
    accelerator: Accelerator = "auto",
    graphs: Graphs = False,
) -> None:
    """Sweep the multiplier of the heads' learning rate and draw accuracy by it: sweep.png.

    By default 1, 0.3, 0.1, 0.03, 0.01 for metric, deformable and shifted networks, on the short grid's schedule.
    """
    from . import grids

    _check_graphs(graphs, accelerator)
    common = _given(
        dataset=dataset,
        recipe=recipe,
        epochs=epochs,
        batch=batch,
        lr=lr,
        train_images=train_images,
        holdout=holdout,
        precision=precision or _half_precision(accelerator),
    )
    phases = grids.sweep(common, method or grids.ADAPTIVE, head_multiplier or grids.MULTIPLIERS, seed or [0])
    runner = _runner(work, data_root, download, graphs=graphs, trainer={"accelerator": accelerator})
    _run(output, phases, runner, max_minutes, estimate)


@app.command()
@in_one_line()
def classify_diagnose(
    network: Annotated[
        list[Path] | None, typer.Option(help="A network.pt that classify wrote; may be repeated.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="How many test images to look at.")] = 256,
    output: Output = RESULTS,
    work: Work = WORK,
    data_root: DataRoot = None,
    download: Download = False,
    accelerator: Accelerator = "auto",
) -> None:
    """Tell what the learnt metrics are like, layer by layer; for other networks, the metrics fitted to their samples.

    Without --network, the best run of each method in the table whose trained network is still in the work folder.
    """
    from . import diagnose
    from .batches import TestBatches
    from .runs import trained_networks

    device, runner = _device(accelerator), _runner(work, data_root, download)
    statistics, about = [], {}
    for name, (setting, model) in trained_networks(network or [], output, work, adaptive=True).items():
        pictures = runner.pictures(setting, device)
        some = pictures.test._replace(x=pictures.test.x[:images], y=pictures.test.y[:images])
        model.to(device)
        statistics += diagnose.diagnose(name, model, TestBatches(pictures, some, batch=64))
        run = {key: getattr(setting, key) for key in ("dataset", "network", "epochs", "lr", "head_multiplier", "seed")}
        about[name] = {**run, "images": len(some.y)}
    diagnose.write(output, statistics, about)
    diagnose.show(statistics)
    typer.echo(f"wrote diagnosis.csv and diagnosis.png to {output}")


@app.command()
@in_one_line()
def classify_gradcam(
    network: Annotated[
        list[Path] | None, typer.Option(help="A network.pt that classify wrote; may be repeated.")
    ] = None,
    image: Annotated[list[int] | None, typer.Option(help="Number of a test image; may be repeated.")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many images to choose where none is named.")] = 4,
    output: Output = RESULTS,
    work: Work = WORK,
    data_root: DataRoot = None,
    download: Download = False,
    accelerator: Accelerator = "auto",
) -> None:
    """Draw what each method's network looks at: rows of images, columns of methods."""
    from . import gradcam
    from .datasets import NAMES
    from .runs import trained_networks

    device, runner = _device(accelerator), _runner(work, data_root, download)
    found = trained_networks(network or [], output, work)
    setting, *others = (setting for setting, _ in found.values())
    if any(other.dataset != setting.dataset for other in others):
        raise ValueError("`network` must name networks of one dataset, whose images all of them look at")
    pictures = runner.pictures(setting, device)
    chosen = image or gradcam.choose(pictures, count)
    if max(chosen) >= len(pictures.test.y) or min(chosen) < 0:
        raise ValueError(f"`image` (={max(chosen)}) must be at least 0 and less than {len(pictures.test.y)}")
    models = {name: model.to(device) for name, (_, model) in found.items()}
    gradcam.write(output / "gradcam.png", models, pictures, chosen, NAMES[setting.dataset])
    typer.echo(f"wrote gradcam.png to {output}")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _combinations(
    common: dict[str, Any], methods: list[str] | None, multipliers: list[float] | None, seeds: list[int] | None
) -> "list[Setting]":
    """Return a setting for each seed, method and multiplier; a standard network has no heads to multiply for."""
    from .setting import Setting

    rates: list[float | None] = [*multipliers] if multipliers else [None]
    every = itertools.product(seeds or [0], methods or ["metric-randers"], rates)
    made = [
        Setting(**common, method=method, seed=seed, **_given(head_multiplier=multiplier))
        for seed, method, multiplier in every
    ]
    return list(dict.fromkeys(made))


def _grid(name: str, common: dict[str, Any], seeds: list[int] | None) -> "list[Phase]":
    """Return a grid with what the options say for all of its runs; what it chooses itself may not be among them."""
    from ... import _checks
    from . import grids

    _checks.one_of(name, grids.DATASETS, "grid")
    for option in ("method", "weights", "head_multiplier", *["layers"] * (name == "ablation")):
        if option in common:
            raise ValueError(f"`{option}` (={common[option]!r}) cannot be given: `grid` (={name!r}) chooses it itself")
    chosen, start = common.pop("dataset", None), common.get("start", "scratch")
    given = [seeds] if seeds else []
    if name == "short":
        phases = grids.short(common, *given)
    elif name == "paper":
        phases = grids.paper(common, dict.fromkeys(["scratch", start]), *given)
    else:
        phases = grids.ablation(common, start, *given)
    if chosen is None:
        return phases
    return grids.of_dataset(phases, _checks.one_of(chosen, grids.DATASETS[name], "dataset"))


def _runner(work: Path, data_root: Path | None, download: bool, **options: Any) -> "Runner":
    import torch

    from .runs import Options, Runner

    torch.set_float32_matmul_precision("high")
    return Runner(Options(work, data_root, download, **options))


def _run(output: Path, phases: "list[Phase]", runner: "Runner", max_minutes: float | None, estimate: bool) -> None:
    from . import grids, report
    from .runs import run_all, table

    results = table(output)
    for _, setting in grids.planned(phases, results)[:1]:
        runner.images(setting.dataset)  # missing data is said before anything else is done
    if estimate:
        _print_estimate(phases, runner, results)
        return
    run_all(results, phases, runner, max_minutes)
    written = report.write_all(output)
    typer.echo(f"wrote {', '.join(['runs.csv', *written])} to {output}")


def _print_estimate(phases: "list[Phase]", runner: "Runner", results: "Results") -> None:
    from . import estimate, grids

    plan = [(title, setting) for title, setting in grids.planned(phases, results) if setting.key not in results]
    seconds = estimate.run_seconds(
        [s for _, s in plan], runner, _device(runner.options.trainer.get("accelerator", "auto"))
    )
    total = 0.0
    for (title, setting), one in zip(plan, seconds, strict=True):
        total += one
        typer.echo(f"{total / 60:6.1f} min  {one:6.1f} s  {title}: {setting}")
    typer.echo(f"{len(plan)} runs, about {total / 60:.1f} min")


def _check_graphs(graphs: bool, accelerator: str, devices: int = 1) -> None:
    if graphs and (devices > 1 or _device(accelerator).type != "cuda"):
        raise ValueError(f"`graphs` needs one GPU, got `accelerator` (={accelerator!r}) and `devices` (={devices})")


def _half_precision(accelerator: str) -> str:
    """Return bfloat16 where there is a GPU, whose units are made for it."""
    return "bf16-mixed" if _device(accelerator).type == "cuda" else "32-true"


def _device(accelerator: str) -> "torch.device":
    import torch

    if accelerator not in ("auto", "cpu", "gpu"):
        raise ValueError(f"`accelerator` (={accelerator!r}) must be 'auto', 'cpu' or 'gpu'")
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise ValueError("`accelerator` (='gpu') needs a GPU that torch can use, and there is none")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")
