"""Training on Lightning: seeds, logs, and the same end after an interruption; the learning-rate range test."""

import lightning
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from metricconv_experiments import lr_range, training


class Line(lightning.LightningModule):
    """Fits a line to noisy points, with dropout, momentum and shuffled batches: all that must survive a kill."""

    def __init__(self, lr=0.05, die_at=None):
        super().__init__()
        self.layer, self.lr, self.die_at = torch.nn.Linear(3, 1), lr, die_at

    def training_step(self, batch, _):
        x, y = batch
        if self.die_at is not None and self.current_epoch == self.die_at:
            raise KeyboardInterrupt
        loss = (self.layer(torch.nn.functional.dropout(x, 0.2)) - y).square().mean()
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


@pytest.fixture
def loader():
    x = torch.randn(24, 3)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)


def train(folder, loader, epochs=6, die_at=None):
    training.seed_all(1)
    module = Line(die_at=die_at)
    trainer = training.make_trainer(folder, epochs=epochs, seed=1, accelerator="cpu")
    training.fit(trainer, module, loader)
    return module


def test_interrupted_run_equals_uninterrupted_one(tmp_path, loader, capsys):
    unbroken = train(tmp_path / "a", loader)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(tmp_path / "b", loader, die_at=3)
    (log,) = (tmp_path / "b" / "logs").glob("*/metrics.csv")
    log.write_text(log.read_text() + "7,2")  # what a kill may leave of a line
    assert torch.load(tmp_path / "b" / training.CHECKPOINT)["epoch"] == 2
    torch.rand(7)  # other random numbers drawn in between
    assert "resumed" not in capsys.readouterr().err
    resumed = train(tmp_path / "b", loader)
    message = f"resumed from {tmp_path / 'b' / training.CHECKPOINT}, after 3 of 6 epochs\n"
    assert message in capsys.readouterr().err
    assert torch.equal(unbroken.layer.weight, resumed.layer.weight)
    assert training.history(tmp_path / "a") == training.history(tmp_path / "b")
    assert [row["epoch"] for row in training.history(tmp_path / "b")] == list(range(6))


def test_damaged_checkpoint_raises(tmp_path, loader):
    train(tmp_path, loader, epochs=1)
    path = tmp_path / training.CHECKPOINT
    whole = path.read_bytes()
    torch.save([1], tmp_path / "other")
    for content in (b"", whole[: len(whole) // 2], (tmp_path / "other").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"last\.ckpt cannot be read as a checkpoint: .+; delete it to start again"
        ):
            train(tmp_path, loader)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_unavailable_device_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match="No supported gpu backend"):
        training.make_trainer(tmp_path, epochs=1, seed=1, accelerator="gpu")


def test_another_seed_is_another_run(tmp_path, loader):
    ends = []
    for seed in (1, 2):
        training.seed_all(1)
        module = Line()
        training.fit(
            training.make_trainer(tmp_path / str(seed), epochs=2, seed=seed, accelerator="cpu"), module, loader
        )
        ends.append(module.layer.weight)
    assert not torch.equal(*ends)


def test_range_test_does_not_change_the_module_and_suggests_a_working_rate(tmp_path):
    module, x = Line(lr=1.0), torch.randn(2000, 3)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=500)
    before = module.layer.weight.clone()
    test = lr_range.range_test(module, loader, 1e-5, 100.0, steps=60, accelerator="cpu")
    assert torch.equal(before, module.layer.weight)
    assert 1e-3 < test.suggestion < 1
    assert len(test.rates) == len(test.losses) < 60  # it stopped where the loss exploded
    np.testing.assert_allclose(np.diff(np.log(test.rates)), np.log(1e7) / 59)
    test.write(tmp_path / "here", "a line")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["lr_range.csv", "lr_range.png"]


def test_range_test_is_independent_of_batch_difficulty():
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 3, generator=numbers)
    y = x.sum(1, keepdim=True)
    y[::2] += 10 * torch.randn(1000, 1, generator=numbers)
    order = torch.arange(2000).view(1000, 2).T.reshape(8, 250)[[0, 4, 1, 5, 2, 6, 3, 7]].flatten()
    loader = DataLoader(TensorDataset(x[order], y[order]), batch_size=250)  # hard and easy batches alternate
    training.seed_all(1)
    test = lr_range.range_test(Line(lr=1.0), loader, 1e-6, 10.0, steps=70, accelerator="cpu")
    np.testing.assert_allclose(test.losses[:16], 1, atol=1e-2)
    assert 1e-3 < test.suggestion < 1


def test_invalid_range_raises(loader):
    with pytest.raises(ValueError, match=r"`low` \(=1\) and `high` \(=1\)"):
        lr_range.range_test(Line(), loader, 1, 1)
    with pytest.raises(ValueError, match=r"`steps` \(=2\)"):
        lr_range.range_test(Line(), loader, 1, 2, steps=2)
    with pytest.raises(ValueError, match=r"`data` must contain batches .* a finite nonzero loss"):
        invalid = DataLoader(TensorDataset(torch.full((8, 3), torch.nan), torch.zeros(8, 1)))
        lr_range.range_test(Line(), invalid, 1, 2, accelerator="cpu")
    with pytest.raises(ValueError, match="too few"):
        lr_range.RangeTest([1.0, 2.0], [1.0, 2.0]).suggestion  # noqa: B018
