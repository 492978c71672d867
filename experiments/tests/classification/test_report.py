"""Tables from the CSV alone: medians, spreads, the best multiplier by held-out images, the paper's numbers beside."""

import functools

import pytest

from metricconv_experiments.classification import grids, published, report, summary
from metricconv_experiments.classification.runs import Runner, RunOptions, run_all, table
from metricconv_experiments.classification.setting import KEY, METHODS, Setting
from metricconv_experiments.classification.summary import selected
from metricconv_experiments.results import text

SHORT = {"recipe": "onecycle", "epochs": 6, "holdout": 5000, "precision": "bf16-mixed"}


def add(results, setting, top1, held=None, seconds=10.0, epoch=2.0, peak=900.0, launched="eagerly"):
    values = {"top1": top1, "top5": min(top1 + 0.2, 1), "held_top1": held, "parameters": 11_220_000}
    cost = {"epoch_seconds": epoch, "peak_mb": peak, "processes": 1, "launched": launched}
    results.add(setting.key, values | cost, seconds)


@pytest.fixture
def results(tmp_path):
    found = table(tmp_path)
    for seed, top1 in enumerate((0.70, 0.72, 0.71)):
        add(found, Setting(**SHORT, method="standard", seed=seed), top1, 0.7)
    for multiplier, held in ((1.0, 0.68), (0.1, 0.75), (0.01, 0.74)):
        for seed in (0, 1):
            setting = Setting(**SHORT, multiplier=multiplier, seed=seed)
            add(found, setting, 0.60 + 0.1 * multiplier + seed / 100, held, epoch=3.0)
    add(found, Setting(**SHORT, multiplier=0.1, metric_groups=4), 0.76, 0.77)
    add(found, Setting(**SHORT, multiplier=0.1, init="paper"), 0.50, 0.5)
    add(found, Setting(**SHORT, weights="fixed"), 0.40, 0.4)
    add(found, Setting(**SHORT, layers="4"), 0.74, 0.74)
    return found


def test_table_has_median_deviation_multiplier_and_published_number(results, tmp_path):
    assert report.write_all(tmp_path) == ["classification.md", "sweep.png"]
    page = (tmp_path / "classification.md").read_text()
    assert "| standard |  | 71.00 ± 1.00 (3) [70.48 ± 0.29] |" in page
    fixed = "40.00 (1) ×0.1 [40.63 ± 0.79]"
    assert f"| metric (Randers) | {fixed} | 62.00 (1) ×0.1 [70.03 ± 0.45] |" in page
    assert "| metric (Randers), 4 groups |" in page and "| metric (Randers), the paper's initialization |" in page
    assert "[74.20 ± 0.58]" in page
    protocol = "CIFAR-100, resnet18, SGD (Nesterov), one cycle, 6 epochs, batch 128, rate 0.2, weight decay 0.0005"
    for title in ("Table 4", "Predictor learning rate", "Only layer 4 replaced"):
        assert f"## {title}: {protocol}, pad-crop, 5000 held out, bf16-mixed" in page
    assert "| top-1 | × 1 | × 0.1 | × 0.01 |" in page
    assert "| metric (Randers) | 11.22 | 3.00 | 1.50 | 900 |" in page


def test_epoch_times_are_compared_for_the_same_way_to_launch(tmp_path):
    found = table(tmp_path)
    for launched, scale in (("eagerly", 3.0), ("as CUDA graphs", 1.0)):
        seed = int(scale)
        add(found, Setting(**SHORT, method="standard", seed=seed), 0.7, epoch=2 * scale, launched=launched)
        add(found, Setting(**SHORT, seed=seed), 0.7, epoch=3 * scale, launched=launched)
    report.write_all(tmp_path)
    page = (tmp_path / "classification.md").read_text()
    assert "launched eagerly\n" in page and "launched as CUDA graphs\n" in page
    assert "| 9.00 | 1.50 |" in page and "| 3.00 | 1.50 |" in page


def test_memory_is_shown_for_runs_without_times(tmp_path):
    found = table(tmp_path)
    add(found, Setting(**SHORT, method="standard"), 0.7, epoch=None, peak=800.0, launched="")
    add(found, Setting(**SHORT), 0.7, epoch=None, peak=900.0, launched="")
    report.write_all(tmp_path)
    assert "| metric (Randers) | 11.22 |  |  | 900 |" in (tmp_path / "classification.md").read_text()


# Two values of every option that distinguishes runs.
CHOICES = {
    "dataset": ("cifar100", "mnist"),
    "network": ("resnet18", "resnet50"),
    "method": ("metric-randers", "shifted"),
    "weights": ("learnt", "fixed"),
    "start": ("weights-a", "weights-b"),
    "layers": ("2-4", "4"),
    "init": ("identity", "paper"),
    "zero_gamma": (False, True),
    "metric_parameters": (7, 6),
    "eps_omega": (0.5, 0.9),
    "stencil": ("square_onion", "onion"),
    "metric_groups": (1, 4),
    "s_min": (0.1, 0.2),
    "s_max": (1.5, 2.0),
    "recipe": ("sgd", "onecycle"),
    "epochs": (6, 7),
    "batch": (128, 64),
    "lr": (0.1, 0.2),
    "weight_decay": (0.0, 0.1),
    "multiplier": (0.1, 1.0),
    "l1": (0.0, 5000.0),
    "warmup": (0, 1),
    "augmentation": ("pad-crop", "none"),
    "train_images": (None, 1000),
    "holdout": (0, 100),
    "precision": ("32-true", "bf16-mixed"),
    "seed": (0, 1),
}


@pytest.mark.parametrize("name", KEY)
def test_runs_are_averaged_only_over_seeds(name, tmp_path):
    one, other = CHOICES[name]
    usual = {choice: first for choice, (first, _) in CHOICES.items()}
    found = table(tmp_path)
    add(found, Setting(**usual), 0.6, epoch=2.0)
    add(found, Setting(**usual | {name: other}), 0.8, epoch=4.0)
    report.write_all(tmp_path)
    page = (tmp_path / "classification.md").read_text()
    assert one != other and ("70.00 ± 14.14 (2)" in page) == (name == "seed")
    assert "80.00 (1)" in page or name == "seed"
    assert ("| 3.00 |" in page) == (name in ("seed", "multiplier"))  # a rate takes no time
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert len(set(headings)) == len(headings) > 0


def test_starts_have_separate_columns_and_other_networks_no_published_number(tmp_path):
    found = table(tmp_path)
    for n, start in enumerate(("scratch", "b", "a")):
        add(found, Setting(method="standard", start=start), 0.6 + n / 10)
        add(found, Setting(method="standard", start=start, network="resnet50"), 0.65 + n / 10)
    report.write_all(tmp_path)
    page = (tmp_path / "classification.md").read_text()
    assert "| top-1 | LKW, from scratch | LKW, pretrained (a) | LKW, pretrained (b) |" in page
    papers = "[70.52 ± 0.38]"
    assert f"| standard | 60.00 (1) [70.48 ± 0.29] | 80.00 (1) {papers} | 70.00 (1) {papers} |" in page
    assert "| standard | 65.00 (1) | 85.00 (1) | 75.00 (1) |" in page
    assert "Pretrained (a): weights of a, BN statistics recalibrated on CIFAR-100." in page


def test_variants_have_no_published_number(results, tmp_path):
    report.write_all(tmp_path)
    (line,) = [x for x in (tmp_path / "classification.md").read_text().splitlines() if "4 groups |  | 76.00" in x]
    assert "[" not in line


def test_best_multiplier_is_selected_on_held_out_images(results):
    assert grids.best_multiplier(results, Setting(**SHORT)) == 0.1  # though 1 is best on the test images
    assert grids.best_multiplier(results, Setting(**SHORT, method="shifted")) == grids.DEFAULT_MULTIPLIER
    assert grids.best_multiplier(results, Setting(**SHORT, method="standard")) is None


def test_short_grid_is_ordered_by_importance_and_depends_on_results(results):
    phases = grids.short({"precision": "bf16-mixed"})
    plan = grids.planned(phases, results)
    assert [s.method for _, s in plan[:4]] == ["standard", "metric-randers", "deformable", "shifted"]
    assert {s.epochs for _, s in plan} == {6} and {s.batch for _, s in plan} == {128}
    again = [s for title, s in plan if title == "CIFAR-100, another seed"]
    assert [(s.method, s.multiplier, s.seed) for s in again][:2] == [
        ("standard", None, 1),
        ("metric-randers", 0.1, 1),
    ]
    clothes = [s for _, s in grids.planned(grids.of_dataset(phases, "fashion-mnist"), results)]
    assert {(s.dataset, s.lr) for s in clothes} == {("fashion-mnist", 0.1)}
    for dataset in grids.DATASETS["short"]:  # each method has as many trials, the baselines with lower multipliers
        trials = [s for _, s in plan if s.dataset == dataset and s.seed == 0 and s.weights == "learnt"]
        for method in grids.ADAPTIVE:
            multipliers = grids.BASELINE_MULTIPLIERS if method in grids.BASELINES else grids.MULTIPLIERS
            assert {s.multiplier for s in trials if s.method == method} == set(multipliers)
    assert len(grids.MULTIPLIERS) == len(grids.BASELINE_MULTIPLIERS)
    given = grids.of_dataset(grids.short({"lr": 0.3}), "fashion-mnist")
    assert {s.lr for _, s in grids.planned(given, results)} == {0.3}
    assert len({s for _, s in plan}) == len(plan)


class Stub(Runner):
    """Returns accuracies from a table, in which later multipliers are better, instead of training."""

    left = 10**9

    def train(self, setting):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        rate = setting.multiplier or 0
        held = {1.0: 0.3, 0.1: 0.4, 0.01: 0.6, 0.3: 0.5, 0.03: 0.7, 0.003: 0.8}.get(rate, 0.2)
        return {"top1": held, "top5": 0.9, "held_top1": held, "epoch_seconds": None, "peak_mb": None}


TWO_SEEDS = (0, 1)
GRIDS = {name: functools.partial(getattr(grids, name), seeds=TWO_SEEDS) for name in ("short", "fixed", "small")}


@pytest.mark.parametrize("name", GRIDS)
def test_interrupted_grid_has_the_same_rows(tmp_path, name):
    def rows(name_of_folder, runner, again=0):
        folder, left = tmp_path / name_of_folder, True
        while left:
            try:
                left = False
                added = run_all(table(folder), GRIDS[name]({}), runner)
            except KeyboardInterrupt:
                runner.left, left = again, True
        return added, {Setting.from_row(row) for row in table(folder).rows}

    runner = Stub(RunOptions(tmp_path / "work"))
    count, unbroken = rows("a", runner)
    assert count == len(unbroken) and rows("a", runner) == (0, unbroken)
    runner.left = 7
    assert rows("b", runner, again=7)[1] == unbroken
    more = {(s.method, s.multiplier) for s in unbroken if s.seed > 0 and s.dataset != "cifar10"}
    best = {"metric-randers": 0.03, "metric-geodesic": 0.03, "deformable": 0.003, "shifted": 0.003}
    if name != "short":
        best = dict.fromkeys(best, 0.01)
    if name == "fixed":
        del best["metric-geodesic"]
        assert len(unbroken) == 3 * (4 * 2 * 5 + 5 * 2)  # on three datasets
    if name == "small":  # a standard network, four methods with five multipliers, and variants; both seeds on CIFAR-10
        assert len(unbroken) == 2 * (4 * 5 + 5) + 2 * (1 + 4 * 5) - 1 + 5
    assert more == {("standard", None), *best.items()}


def test_rows_of_earlier_versions_are_labeled_as_what_they_were(tmp_path):
    """In versions without the column zero_gamma, init="paper" was not the released code's initialization."""
    found = table(tmp_path)
    for init in ("identity", "paper"):
        add(found, Setting(**SHORT, init=init), 0.5)
    lines = [line.split(",") for line in found.path.read_text().splitlines()]
    column = lines[0].index("zero_gamma")
    found.path.write_text("".join(",".join(cells[:column] + cells[column + 1 :]) + "\n" for cells in lines))
    rows = table(tmp_path).rows
    assert [(row["init"], row["zero_gamma"]) for row in rows] == [("identity", "False"), ("constant", "False")]
    report.write_all(tmp_path)
    page = (tmp_path / "classification.md").read_text()
    assert "| metric (Randers), constant kernels, predictors at zero | 50.00 (1) ×0.1 |" in page
    add(table(tmp_path), Setting(**SHORT, init="paper"), 0.6)  # the CSV now has the column
    assert [row["init"] for row in table(tmp_path).rows] == ["identity", "constant", "paper"]
    report.write_all(tmp_path)
    page = (tmp_path / "classification.md").read_text()
    assert "| metric (Randers), the paper's initialization | 60.00 (1) ×0.1 [70.03 ± 0.45] |" in page


def test_row_with_unknown_dataset_raises(results, tmp_path):
    lines = results.path.read_text().splitlines()
    lines[2] = lines[2].replace("cifar100", "imagenet")
    results.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"runs\.csv, line 3: `dataset` \(='imagenet'\) must be one of 'mnist'"):
        report.write_all(tmp_path)
    results.path.write_text("dataset,method\ncifar100,standard\n")
    with pytest.raises(ValueError, match=r"runs\.csv has no column 'network'"):
        report.write_all(tmp_path)


def test_grid_uses_given_seeds_network_and_start(results):
    common = {"network": "resnet50", "start": "weights"}
    for seeds in ([5], [5, 6], [7, 5, 6, 9]):
        made = (
            grids.short(common, seeds),
            grids.paper(common, ["weights"], seeds),
            grids.ablation(common, "weights", seeds),
            grids.fixed(common, seeds),
            grids.small(common, seeds),
        )
        for name, phases in zip(grids.DATASETS, made, strict=True):
            plan = [s for _, s in grids.planned(phases, results)]
            assert {s.seed for s in plan} == set(seeds) and {s.dataset for s in plan} == set(grids.DATASETS[name])
            assert {(s.network, s.start) for s in plan} == {("resnet50", "weights")}
            if name == "paper":
                assert {s.seed for s in plan if s.dataset == "mnist"} <= {seeds[0]}


def test_sweep_runs_repeated_options_once(results):
    phases = grids.sweep({}, ["standard", "shifted", "shifted"], [1.0, 1.0, 0.1], [3, 3])
    plan = [s for _, s in grids.planned(phases, results)]
    assert [(s.method, s.multiplier, s.seed) for s in plan] == [
        ("standard", None, 3),
        ("shifted", 1.0, 3),
        ("shifted", 0.1, 3),
    ]


def test_the_papers_grids_have_its_cells_and_settings(results):
    plan = [s for _, s in grids.planned(grids.paper({}, ["scratch", "weights"]), results)]
    assert len(plan) == 2 * 7 * (1 + 1 + 8 + 8)
    cells = {(s.dataset, s.method, s.weights, s.start == "scratch") for s in plan}
    assert cells == {(c.dataset, c.method, c.weights, c.start == "scratch") for c in published.TOP1}
    one = next(
        s for s in plan if s.dataset == "cifar10" and s.metric and s.start != "scratch" and s.weights == "learnt"
    )
    assert (one.recipe, one.epochs, one.lr, one.l1, one.warmup, one.init) == ("paper", 240, 1e-4, 5000, 50, "paper")
    ablation = [s for _, s in grids.planned(grids.ablation({}, "weights", [0, 1]), results)]
    assert len(ablation) == 10 and {s.layers for s in ablation} == {None, "4"}


def test_the_papers_numbers_are_as_printed():
    assert published.TOP1[published.Cell("cifar100", "metric-randers", "learnt", "scratch")] == (70.03, 0.45)
    assert published.TOP1[published.Cell("mnist", "deformable", "fixed", "scratch")] == (83.79, None)
    assert published.TOP5[published.Cell("cifar100", "shifted", "fixed", "transfer")] == (10.67, 2.21)
    assert published.ABLATION["resnet152", "metric-riemann"] == ((80.27, 0.43), (94.75, 0.23))
    assert published.Cell("cifar10", "standard", "fixed", "scratch") not in published.TOP1


def run_of(seed, multiplier, held, top1=0.5):
    return {"seed": str(seed), "multiplier": multiplier, "held_top1": str(held), "top1": str(top1)}


def test_seeds_that_select_a_multiplier_are_not_reported():
    runs = [run_of(0, "0.1", 0.6), run_of(0, "1", 0.7), run_of(1, "1", 0.2), run_of(2, "0.1", 0.9), run_of(2, "1", 0.3)]
    assert {row["seed"] for row in selected(runs[:3])} == {"1"}
    sweep = [run for run in runs if run["seed"] != "1"]  # every seed has every multiplier: the first one selects
    assert [(row["seed"], row["multiplier"]) for row in selected(sweep)] == [("2", "1")]
    alone = [run_of(0, "0.1", 0.6), run_of(0, "1", 0.7)]
    assert selected(alone) == alone[1:]
    plain = [run_of(seed, "0.1", 0.5) for seed in range(3)]
    assert selected(plain) == plain


def test_summary_compares_methods_on_the_seeds_that_they_share():
    def rows(method, seeds):
        setting = Setting(method=method, dataset="cifar10")
        row = {name: text(value) for name, value in setting.key.items()}
        return [row | {"seed": str(s), "top1": str(s / 10), "held_top1": ""} for s in seeds]

    names = {method: method for method in METHODS}
    three = [*rows("standard", (1, 2, 3)), *rows("deformable", (2, 3)), *rows("metric-randers", (2, 3, 4))]
    line = summary.table([*three, *rows("metric-geodesic", (5,))], names, {"cifar10": "CIFAR-10"}).splitlines()[2]
    assert line.startswith("| CIFAR-10, learned kernels; resnet18, 15 epochs, rate 0.1 | 25.00 ± 7.07 (2) | 25.00")
    assert line.endswith("| 25.00 ± 7.07 (2) ×0.1 |  |")
    assert summary.table(rows("standard", (1, 2)), names, {"cifar10": "CIFAR-10"}) == ""
