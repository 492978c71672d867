"""What every test shares: fixed seeds, one thread per worker, the `gpu` marker and poisoned memory."""

import functools
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import torch

SEED = 20250


def _declare_torchvision_schemas() -> torch.library.Library | None:
    """Let a CUDA-linked torchvision import beside a CPU build of torch.

    Such a torchvision cannot load its compiled operators, and its Python side then fails on the two schemas it
    expects them to define. Declaring these is enough for models, datasets and transforms; torchvision.ops stays
    unusable. Nothing is declared where torch is a CUDA build, whose torchvision brings its own.
    """
    if torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


# Before any test module imports torchvision; the name keeps the library, and so its schemas, alive.
_TORCHVISION_SCHEMAS = _declare_torchvision_schemas()


class _TorchRandom:
    """torch's global generator as Hypothesis wants it, so that it rewinds it before each example."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


_TORCH_RANDOM = _TorchRandom()  # Hypothesis holds only a weak reference
hypothesis.register_random(_TORCH_RANDOM)
hypothesis.settings.register_profile("metricconv", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("metricconv")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # an xdist worker: its siblings use the other cores
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and torch.cuda.is_available() is False")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(SEED)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill what Python code allocates uninitialised, so that an output left unwritten shows.

    Floating and complex tensors are filled with NaN, integers with their largest value. Allocations inside
    compiled code are out of reach.
    """

    def poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(allocate)
        def wrapper(*args: object, **kwargs: object) -> torch.Tensor:
            tensor = allocate(*args, **kwargs)
            with torch.no_grad():
                if tensor.is_floating_point() or tensor.is_complex():
                    tensor.fill_(float("nan"))
                elif tensor.dtype != torch.bool:
                    tensor.fill_(torch.iinfo(tensor.dtype).max)
            return tensor

        return wrapper

    with torch.device("cpu"):  # torch lists what obeys a default device once, on first use: not the poisoned ones
        torch.empty(0)
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, poisoned(getattr(torch.Tensor, name)))
    yield
