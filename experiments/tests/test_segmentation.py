"""Segmentation: scores against their definitions, patches, chains, selection of rates, and resumed grids."""

import dataclasses

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from metricconv._files import read_table
from metricconv.nn import adaptive_layers
from metricconv_experiments.segmentation import datasets, grids, networks, patches, report, runs, scores, setting
from metricconv_experiments.segmentation.commands import app
from metricconv_experiments.segmentation.setting import KEY, METHODS, Setting

TINY = {"steps": 2, "batch": 2, "patch": 16}


def images(count, seed, size=(26, 31)):
    """Return images with a bright diagonal line of width 3 and a thin horizontal one."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((count, *size), bool)
    for one in mask:
        start = rng.integers(4, 10)
        for y in range(size[0]):
            one[y, max(start + y // 2 - 2, 0) : start + y // 2 + 3] = True
        one[rng.integers(3, size[0] - 3)] = True
    gray = (100 * mask + rng.integers(0, 60, mask.shape)).astype(np.uint8)
    field = np.ones_like(mask)
    field[:, :, 0] = False
    return datasets.Images(gray, mask & field, field, np.stack([datasets.thin_structures(one) for one in mask]))


@pytest.fixture
def data_root(tmp_path, monkeypatch):
    """Return a data root with a tiny dataset of 6 training and 2 test images under the name of DRIVE."""
    monkeypatch.setitem(setting.DATASETS, "drive", 6)
    monkeypatch.setitem(grids.HOLDOUT, "drive", 2)
    arrays = {
        f"{half}_{name}": value
        for half, count in (("train", 6), ("test", 2))
        for name, value in vars(images(count, count)).items()
    }
    np.savez_compressed(tmp_path / "drive-segmentation.npz", **arrays)
    return tmp_path


def as_masks(*pictures):
    rows = [[[char == "#" for char in row] for row in picture.split()] for picture in pictures]
    return torch.tensor(rows)


def test_thinning_leaves_a_centerline_of_one_pixel_and_keeps_components_and_holes():
    from scipy.ndimage import label

    mask = torch.from_numpy(images(3, 0).mask)
    mask[:, 12:16, 20:] = False
    mask[:, [0, -1]] = mask[:, :, [0, -1]] = False  # ends of lines at the border would be shortened
    line = scores.thinned(mask)
    eight = np.ones((3, 3), int)
    for one, thin in zip(mask.numpy(), line.numpy(), strict=True):
        assert not (thin & ~one).any()
        assert label(thin, eight)[1] == label(one, eight)[1]
        assert label(~thin)[1] == label(~one)[1]
    assert torch.equal(scores.thinned(line), line)
    bar = as_masks("....... .#####. .#####. .#####. .......")
    assert scores.thinned(bar)[0, 2].sum() == scores.thinned(bar).sum() >= 2


def test_scores_of_a_perfect_and_of_an_empty_prediction():
    some = images(2, 1)
    mask, field, thin = (torch.from_numpy(array) for array in (some.mask, some.field, some.thin))
    perfect = scores.scores(mask.float(), mask, field, thin)
    assert perfect == dict.fromkeys(scores.NAMES, 1.0)
    empty = scores.scores(torch.zeros(mask.shape), mask, field, thin)
    assert empty == dict.fromkeys(scores.NAMES, 0.0) | {"auc": 0.5}


def test_scores_by_hand():
    mask = as_masks("##### ..... ..... ..... #....")
    predicted = as_masks("###.. ..... ##... ..... .....")
    field = as_masks("##### ##### ##### ##### .####")
    values = scores.scores(predicted.float(), mask, field, as_masks("...## ..... ..... ..... #...."))
    assert values["dice"] == pytest.approx(2 * 3 / (5 + 5))  # the pixel outside of the field is ignored
    assert values["precision"] == values["sensitivity"] == pytest.approx(3 / 5)
    assert values["thin_sensitivity"] == 0
    assert values["cldice"] == pytest.approx(3 / 5)  # lines are their own centerlines
    assert values["tolerant_f1"] == pytest.approx(1)
    assert values["auc"] == pytest.approx((3 * (17 + 2 / 2) + 2 * 17 / 2) / (5 * 19))


def test_thin_structures_are_those_of_at_most_three_pixels():
    mask = np.zeros((24, 40), bool)
    mask[2:5, 3:37] = True  # width 3
    mask[10:17, 3:37] = True  # width 7
    thin = datasets.thin_structures(mask)
    assert thin[2:5, 6:34].all() and not thin[10:17, 8:32].any()
    assert not datasets.thin_structures(np.zeros((5, 5), bool)).any()


def test_patches_depend_on_the_seed_alone_and_follow_the_masks():
    some = patches.DeviceImages(images(3, 2), torch.device("cpu"))
    first, again, other = (
        list(patches.patches(some, Setting(method=method, images=3, seed=seed, **TINY)))
        for method, seed in (("standard", 1), ("snake", 1), ("standard", 2))
    )
    for one, two in zip(first, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(first[0][0], other[0][0])
    x, target, weight = first[0]
    assert x.shape == (2, 1, 16, 16) and target.shape == weight.shape == (2, 16, 16)
    # Lines are brighter than their surroundings, so a patch that does not follow its mask has no contrast.
    x, target, weight = (torch.cat(parts) for parts in zip(*first, strict=True))
    line, rest = target * weight, (1 - target) * weight
    assert (x[:, 0] * line).sum() / line.sum() > 0.5 + (x[:, 0] * rest).sum() / rest.sum()


def test_fewer_training_images_are_part_of_more_and_held_out_images_are_not(data_root):
    dataset = patches.DeviceDataset("drive", data_root, torch.device("cpu"))
    two, held = dataset.split(Setting(images=2, holdout=2, seed=5))
    four, _ = dataset.split(Setting(images=4, holdout=2, seed=5))
    everything, test = dataset.split(Setting(seed=5))
    assert torch.equal(four.x[:2], two.x) and len(held) == 2 and len(everything) == 6
    assert not any(torch.equal(a, b) for a in held.x for b in four.x)
    assert test is dataset.test


def test_chain_displaces_each_sample_by_less_than_a_pixel_from_its_neighbor():
    layer = networks.ChainConv2d(2, 3, (1, 5), padding=(0, 2))
    predicted = torch.full((1, 1, 4, 1, 1), 50.0)
    predicted[:, :, 1] = -50
    offsets = layer.make_support(predicted).offsets().flatten(2).view(5, 2)
    across = [0.0, -1.0, 0.0, 1.0, 2.0]  # from the center to the left: −1, +1; to the right: +1, +1
    assert torch.allclose(offsets, torch.tensor([*zip(across, range(-2, 3), strict=True)]))
    x = torch.randn(1, 2, 6, 7)
    expected = torch.nn.functional.conv2d(x, layer.weight, layer.bias, padding=(0, 2))
    assert torch.allclose(layer(x), expected, atol=1e-5)
    torch.nn.init.normal_(layer.predictor.weight)
    vertical = networks.ChainConv2d(2, 3, (5, 1), padding=(2, 0))
    vertical.load_state_dict({name: t.mT if t.dim() == 4 else t for name, t in layer.state_dict().items()})
    assert torch.allclose(vertical(x.mT), layer(x).mT, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_networks_of_all_methods_share_weights_and_start_alike(method):
    torch.manual_seed(0)
    standard = networks.build(Setting(method="standard")).eval()
    torch.manual_seed(0)
    network = networks.build(Setting(method=method)).eval()
    x = torch.randn(1, 1, 12, 16)
    assert network(x).shape == (1, 12, 16)
    layers = [name for name, _ in adaptive_layers(network)]
    if method in ("standard", "standard-5x5"):
        assert not layers
    else:
        assert len(layers) == 9 * (1 + (method == "snake"))
        assert torch.equal(network.get_submodule("encoder.0.0").weight, standard.get_submodule("encoder.0.0").weight)
    if method not in ("standard-5x5", "snake"):
        assert torch.allclose(network(x), standard(x), atol=1e-4)
    weights = sum(p.numel() for p in standard.parameters())
    own = sum(p.numel() for name, p in network.named_parameters() if "predictor" not in name)
    assert own == pytest.approx(weights, rel=0.1)


def run(folder, data_root, *arguments, code=0):
    options = [f"--{name}={value}" for name, value in TINY.items()]
    outcome = CliRunner().invoke(app, [*options, f"--data-root={data_root}", f"--output={folder}", *arguments])
    assert outcome.exit_code == code, outcome.output
    return outcome


def test_interrupted_grid_resumes_to_the_same_rows(data_root, monkeypatch):
    selected = ("--method=standard", "--method=deformable", "--images=1", "--seed=1", "--seed=2", "--grid=comparison")
    monkeypatch.setattr(grids, "LEARNING_RATES", (0.001, 0.01))
    monkeypatch.setattr(grids, "BASELINE_MULTIPLIERS", (0.01, 0.1))
    monkeypatch.setattr(grids, "_EXTENSIONS", 1)
    run(data_root / "a", data_root, *selected)
    train = runs.Runner.train
    with monkeypatch.context() as patch:
        patch.setattr(
            runs.Runner, "train", lambda self, one: 1 / 0 if one.seed == 2 or one.lr == 0.01 else train(self, one)
        )
        run(data_root / "b", data_root, *selected, code=1)
    before = len(read_table(data_root / "b/runs.csv"))
    run(data_root / "b", data_root, *selected)
    first, second = (
        sorted(
            [row[name] for name in (*KEY, *scores.NAMES, "train_loss")]
            for row in read_table(data_root / folder / "runs.csv")
        )
        for folder in "ab"
    )
    assert first == second and before < len(second)
    assert run(data_root / "b", data_root, *selected).output.startswith("added 0 rows")
    rows = [Setting(**grid_row(row)) for row in read_table(data_root / "b/runs.csv")]
    path = data_root / f"b/work/{rows[-1].name}.pt"
    assert runs.load(path)[0] == rows[-1]


def grid_row(row):
    kinds = {field.name: field.type for field in dataclasses.fields(Setting)}
    return {
        name: row[name]
        if kinds[name] is str
        else None
        if row[name] in ("", None)
        else (float if "float" in str(kinds[name]) else int)(row[name])
        for name in KEY
    }


def test_comparison_uses_the_best_rates_on_held_out_images(data_root):
    results = runs.table(data_root / "c")
    values = dict.fromkeys(runs.VALUES, "")
    for lr, dice in ((0.003, 0.5), (0.01, 0.7), (0.03, 0.6)):
        one = Setting(method="standard", images=4, holdout=2, seed=0, lr=lr)
        results.add(one.key, values | {"dice": dice}, 1)
    for multiplier, lr, dice in ((0.03, 0.01, 0.5), (0.1, 0.01, 0.6), (0.3, 0.01, 0.4), (1.0, 0.003, 0.9)):
        one = Setting(method="snake", images=4, holdout=2, seed=0, lr=lr, multiplier=multiplier)
        results.add(one.key, values | {"dice": dice}, 1)
    phases = dict(grids.grid("drive", {}, ["standard", "snake"], [1], [7]))
    chosen = list(phases["drive, comparison"](results))
    assert [(one.method, one.lr, one.multiplier) for one in chosen] == [("standard", 0.01, None), ("snake", 0.01, 0.1)]
    assert all(one.holdout == 0 and one.seed == 7 for one in chosen)
    assert not list(phases["drive, multipliers, extension 1"](results))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--dataset=roads",), "`dataset`"),
        (("--method=metric",), "`method`"),
        (("--images=7", "--method=standard"), "`images`"),
        (("--patch=18",), "`patch`"),
        (("--grid=all",), "`grid`"),
        (("--grid=selection", "--lr=0.1"), "`lr` (=0.1) is set by the grid"),
    ],
)
def test_invalid_options_are_reported_in_one_line(data_root, arguments, message):
    outcome = run(data_root / "d", data_root, *arguments, code=1)
    assert message in str(outcome.exception) or message in outcome.output


def test_page_compares_methods_on_the_seeds_that_both_have(data_root):
    assert report.write_all(data_root / "e") == []
    results = runs.table(data_root / "e")
    values = dict.fromkeys(runs.VALUES, 0.5)
    scored = {"standard": {1: 0.7, 2: 0.8, 3: 0.6}, "deformable": {1: 0.72, 2: 0.82}, "metric-randers": {2: 0.9}}
    for method, by_seed in scored.items():
        for seed, dice in by_seed.items():
            results.add(Setting(method=method, images=4, seed=seed).key, values | {"dice": dice}, 1)
        results.add(Setting(method=method, images=4, seed=0, holdout=2).key, values, 1)
    assert report.write_all(data_root / "e") == ["segmentation.png", "segmentation.md"]
    page = (data_root / "e/segmentation.md").read_text()
    assert "| standard | 0.5 | 3 | 70.0 ± 10.0 | 50.0 ± 0.0 |" in page
    assert "| deformable | 0.5 | 2 | 77.0 ± 7.1 |" in page and "| +2.0 (+2.0 to +2.0; n = 2) |" in page
    assert "| metric, Randers | 0.5 | 1 | 90.0 | 50.0 |" in page and "| +10.0 (n = 1) |" in page
    assert "| DRIVE, deformable | multiplier | 0.01: 50.0 | 0.01 |" in page
    assert (data_root / "e/segmentation.png").stat().st_size > 10_000
