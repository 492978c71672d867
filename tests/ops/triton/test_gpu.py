"""The kernels on a GPU compared to the reference in float64: every kind, dtype, size class, padding mode and layout."""

import dataclasses
import gc
from collections.abc import Iterator

import pytest
import torch

import metricconv as mc
from layers import randomize_predictors
from metricconv.ops import backends
from ops.cases import KINDS, MODES, Case, check, check_inference, outcome, random_case
from ops.triton import few_outputs
from ops.triton.fused_parametrization import PARAMETRIZATIONS, check_parametrization
from ops.triton.integer_positions import check_integer_positions

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCES)
SIZE_CLASSES = {
    "dense": Case(channels=(64, 48), size=(19, 70)),
    "dense, whole images": Case(channels=(33, 130), size=(8, 7), batch=5),
    "dense, larger whole images": Case(channels=(48, 80), size=(14, 15), stride=2),
    "dense in groups": Case(channels=(36, 40), groups=2, metric_groups=3, size=(9, 17), modulated=True),
    "many output channels": Case(channels=(20, 300), size=(13, 11)),
    "many channels": Case(channels=(520, 24), size=(9, 8)),
    "im2col, in two parts": Case(channels=(260, 272), size=(33, 31), batch=12, metric_groups=2, modulated=True),
    "im2col, whole images": Case(channels=(256, 264), size=(8, 7), batch=40),
    "im2col, small images": Case(channels=(256, 264), size=(4, 3), batch=181, modulated=True),
    "im2col, stride": Case(channels=(64, 72), size=(30, 32), stride=2, batch=40),
    "im2col, stride, whole images": Case(channels=(72, 64), size=(15, 16), stride=2, batch=140, metric_groups=2),
    "depthwise": Case(channels=(24, 24), groups=24, metric_groups=2, size=(21, 59), modulated=True),
    "depthwise, whole images": Case(channels=(40, 40), groups=40, size=(7, 7), modulated=True),
    "depthwise, two outputs each": Case(channels=(6, 12), groups=6, size=(9, 8)),
    "dense, geodesic": Case(kind="geodesic", channels=(64, 48), size=(19, 70), metric_groups=2),
    "one channel, geodesic": Case(kind="geodesic", channels=(1, 1), size=(40, 64), kernel=(7, 7), padding=3),
    "few channels": Case(channels=(3, 5), size=(33, 70)),
    "one channel": Case(channels=(1, 1), size=(40, 64), kernel=(7, 7), padding=3, modulated=True),
    "one dimension": Case(channels=(16, 16), size=(40,), kernel=(3,)),
    "no bias, constant": Case(channels=(16, 16), size=(12, 13), biased=False, constant=True),
    "strides and dilation": Case(
        channels=(6, 4), size=(15, 14), stride=(2, 1), dilation=(1, 2), kernel=(3, 3), padding=2
    ),
}
CUDA_GRAPH_CASES = {"dense": SIZE_CLASSES["dense"], "geodesic": Case(kind="geodesic", size=(9, 8), modulated=True)}


@pytest.fixture
def few_rays_at_a_time() -> Iterator[None]:
    from metricconv.ops.triton import plan  # Triton may not be installed where these tests are only collected

    with plan.fixed_choices(chunk_bytes=2**12):
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_padding_modes(kind: str, mode: str, dtype: torch.dtype) -> None:
    case = Case(kind=kind, mode=mode, channels=(20, 24), size=(13, 11), modulated=mode in ("zeros", "reflect"))
    check(dataclasses.replace(case, dtype=dtype), TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size_class", SIZE_CLASSES)
def test_size_classes(size_class: str, dtype: torch.dtype) -> None:
    check(dataclasses.replace(SIZE_CLASSES[size_class], dtype=dtype), TOLERANCES[dtype], "cuda")


INTEGER_SIZE_CLASSES = [
    "dense",
    "dense, whole images",
    "dense in groups",
    "many output channels",
    "im2col, in two parts",
    "im2col, whole images",
    "im2col, small images",
    "im2col, stride",
    "depthwise",
    "few channels",
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "offsets"), [("randers", "start"), ("riemannian", "integer"), ("deformable", "mixed")]
)
@pytest.mark.parametrize("size_class", INTEGER_SIZE_CLASSES)
def test_gradients_at_integer_positions(size_class: str, kind: str, offsets: str, dtype: torch.dtype) -> None:
    case = dataclasses.replace(SIZE_CLASSES[size_class], kind=kind, dtype=dtype)
    check_integer_positions(case, offsets, 2 * TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["randers", "asymmetric", "geodesic", "deformable", "shifted", "dilated"])
def test_gradients_of_a_converted_layer(kind: str, mode: str) -> None:
    case = Case(kind=kind, mode=mode, channels=(20, 24), size=(13, 11), modulated=mode in ("zeros", "reflect"))
    check_integer_positions(case, "start", TOLERANCES[torch.float32], "cuda")


@pytest.mark.parametrize("seed", range(48))
def test_random_problems_agree_with_reference(seed: int) -> None:
    dtype = DTYPES[seed % len(DTYPES)]
    check(dataclasses.replace(random_case(seed, 60), dtype=dtype), TOLERANCES[dtype], "cuda")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["riemannian", "asymmetric", "deformable", "shifted", "dilated", "grid"])
def test_im2col_of_every_kind_and_padding_mode(kind: str, mode: str) -> None:
    case = dataclasses.replace(SIZE_CLASSES["im2col, whole images"], kind=kind, mode=mode, dtype=torch.float16)
    check(case, TOLERANCES[torch.float16], "cuda")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size_class", ["dense, geodesic", "one channel, geodesic"])
def test_geodesics_of_a_metric_without_gradients(size_class: str, mode: str) -> None:
    check_inference(dataclasses.replace(SIZE_CLASSES[size_class], mode=mode, dtype=torch.bfloat16), 1e-2, "cuda")


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided"])
def test_layouts(layout: str) -> None:
    case = Case(channels=(32, 16), size=(20, 50), layout=layout, dtype=torch.bfloat16)
    check(case, 1e-2, "cuda")
    tensors, run = case.make("cuda")
    channels_last = run(tensors, backend="triton").is_contiguous(memory_format=torch.channels_last)
    assert channels_last == (layout == "channels_last")


@pytest.mark.usefixtures("tf32")
def test_tf32_follows_the_flag_of_torch() -> None:
    for precision, low, high in (("tf32", 1e-5, 3e-3), ("ieee", 0, 1e-5)):
        torch.backends.cuda.matmul.fp32_precision = precision
        tensors, run = Case(channels=(256, 64), size=(16, 16)).make("cuda")
        exact = run({n: t.double() for n, t in tensors.items()}, backend="reference")
        error = (run(tensors, backend="triton") - exact).norm() / exact.norm()
        assert low <= error < high, precision


@pytest.mark.parametrize("radius", [1000.0, 1e-3])
@pytest.mark.parametrize("mode", ["border", "reflect", "circular"])
def test_very_large_and_very_small_balls(radius: float, mode: str) -> None:
    # The float32 precision of positions a thousand pixels away is 2⁻¹⁴ pixels, which determines the tolerance.
    check(Case(channels=(16, 16), radius=radius, mode=mode, size=(9, 9)), 1e-2 if radius > 1 else 1e-4, "cuda")


@pytest.mark.parametrize("kind", ["randers", "geodesic"])
@pytest.mark.parametrize("mode", MODES)
def test_one_pixel_images(mode: str, kind: str) -> None:
    check(Case(kind=kind, size=(1, 1), mode=mode), 1e-4, "cuda")


def test_empty_batch() -> None:
    tensors, run = Case(batch=0).make("cuda")
    y = run({name: t.requires_grad_() for name, t in tensors.items()}, backend="triton")
    y.sum().backward()
    assert y.shape == (0, 4, 5, 4) and not tensors["weight"].grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "size_class", ["dense", "dense, whole images", "im2col, whole images", "depthwise", "one channel"]
)
def test_deterministic_mode_is_bitwise_reproducible(size_class: str, dtype: torch.dtype) -> None:
    case = dataclasses.replace(SIZE_CLASSES[size_class], dtype=dtype)
    tensors, run = case.make("cuda")
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (outcome(run, tensors, backend="triton") for _ in range(2))
        check(case, TOLERANCES[dtype], "cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("size_class", ["dense", "depthwise"])
def test_compiled_in_one_graph(size_class: str) -> None:
    tensors, run = SIZE_CLASSES[size_class].make("cuda")
    compiled = torch.compile(lambda t, **options: run(t, **options), fullgraph=True)
    eager, traced = outcome(run, tensors, backend="triton"), outcome(compiled, tensors, backend="triton")
    for name in eager:
        torch.testing.assert_close(traced[name], eager[name], rtol=1e-3, atol=1e-3)


def test_geodesic_layer_compiled_in_one_graph() -> None:
    layer = randomize_predictors(mc.nn.MetricConv2d(16, 16, 3, padding=1, ball="geodesic", backend="triton")).cuda()
    x = torch.randn(2, 16, 12, 13, device="cuda", requires_grad=True)
    leaves = {"input": x, **dict(layer.named_parameters())}

    def run(module: torch.nn.Module) -> dict[str, torch.Tensor]:
        y = module(x)
        grads = torch.autograd.grad(y.square().sum(), list(leaves.values()))
        return {"output": y.detach(), **dict(zip(leaves, grads, strict=True))}

    eager, traced = run(layer), run(torch.compile(layer, fullgraph=True))
    for name in eager:
        torch.testing.assert_close(traced[name], eager[name], rtol=1e-3, atol=1e-3 * eager[name].abs().max().item())


@pytest.mark.filterwarnings("default")  # torch warns that capture and the sync debug mode are prototypes
@pytest.mark.parametrize("name", CUDA_GRAPH_CASES)
@pytest.mark.usefixtures("few_rays_at_a_time")
def test_captured_in_a_cuda_graph(name: str) -> None:
    tensors, run = CUDA_GRAPH_CASES[name].make("cuda")
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}

    def step() -> tuple[torch.Tensor, ...]:
        y = run(leaves, backend="triton")
        return y, *torch.autograd.grad(y, list(leaves.values()), torch.ones_like(y))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = [t.detach() for t in step()]  # compiles; a capture may not
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for t in found:
        t.detach().zero_()
    graph.replay()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("ball", [mc.TangentBall, mc.GeodesicBall])
def test_graph_outlives_its_stencil(ball: type) -> None:
    x, weight = torch.randn(2, 16, 9, 9, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda")
    metric = mc.Riemannian(torch.tensor([0.2, 0.05, 0.3], device="cuda").view(1, 1, 3, 1, 1).expand(2, 1, 3, 9, 9))
    stencil = mc.stencils.square_onion(3)
    support = ball(metric, stencil)
    expected = mc.support_conv(x, support, weight, padding=1, backend="triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = mc.support_conv(x, support, weight, padding=1, backend="triton")
    del stencil, support
    gc.collect()
    torch.cuda.empty_cache()
    graph.replay()
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CUDA_GRAPH_CASES)
@pytest.mark.usefixtures("few_rays_at_a_time")
def test_calls_do_not_synchronize(name: str) -> None:
    tensors, run = CUDA_GRAPH_CASES[name].make("cuda")
    outcome(run, tensors, backend="triton")  # compiles, copies the stencil
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    upstream = torch.ones_like(run(leaves, backend="triton"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(run(leaves, backend="triton"), list(leaves.values()), upstream)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["randers", "geodesic"])
def test_auto_selects_triton_under_autocast(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, run = Case(kind=kind, channels=(16, 16), size=(12, 12)).make("cuda")
    expected = run(tensors, backend="reference")
    monkeypatch.delitem(backends.BACKENDS, "cpu")
    monkeypatch.delitem(backends.BACKENDS, "reference")
    with torch.autocast("cuda", torch.bfloat16):
        y = run(tensors)
    assert y.dtype == torch.bfloat16
    assert (y - expected).norm() < 1e-2 * expected.norm()


MEMORY_CASES = {
    "dense": Case(channels=(64, 64), size=(64, 64), batch=16, biased=False),
    "dense, few tiles": Case(channels=(128, 128), size=(28, 28), batch=64, biased=False),
    "depthwise": Case(channels=(256, 256), groups=256, metric_groups=8, size=(14, 14), batch=64, biased=False),
}


@pytest.mark.parametrize("name", MEMORY_CASES)
def test_peak_memory_is_at_most_1_5_times_the_results(name: str) -> None:
    tensors, run = dataclasses.replace(MEMORY_CASES[name], dtype=torch.bfloat16, layout="channels_last").make("cuda")
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    upstream = torch.randn_like(run(leaves))
    for _ in range(2):  # the first call compiles, and allocates constants
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = run(leaves, backend="triton")
        returned = [y, *torch.autograd.grad(y, list(leaves.values()), upstream)]
        peak = torch.cuda.max_memory_allocated() - before
    assert peak < 1.5 * sum(t.numel() * t.element_size() for t in returned)


@pytest.mark.slow
def test_image_with_more_than_2_31_elements() -> None:
    side = 46400  # 46400² > 2³¹
    x = torch.zeros(1, 1, side, side, device="cuda", dtype=torch.float16)
    x[..., -3:, -3:] = torch.arange(9.0, device="cuda").view(3, 3)
    weight = torch.ones(1, 1, 1, 1, device="cuda", dtype=torch.float16)
    y = mc.support_conv(x, mc.Grid(1), weight, backend="triton")
    assert torch.equal(y[..., -3:, -3:], x[..., -3:, -3:])


@pytest.mark.slow
def test_dense_layer_with_more_than_2_31_elements() -> None:
    side = 11_600
    x = torch.zeros(1, 16, side, side, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    x[..., -3:, -3:] = torch.arange(9.0, device="cuda").view(3, 3)
    weight = torch.eye(16, device="cuda", dtype=torch.bfloat16).view(16, 16, 1, 1).requires_grad_()
    y = mc.support_conv(x.requires_grad_(), mc.Grid(1), weight, backend="triton")
    assert torch.equal(y[..., -3:, -3:], x[..., -3:, -3:])
    y.backward(x.detach())
    assert x.grad is not None and torch.equal(x.grad[..., -3:, -3:], x[..., -3:, -3:])
    assert weight.grad is not None and weight.grad.unique().tolist() == [204.0]  # Σ n², n < 9


@pytest.mark.slow
def test_layer_on_an_image_of_16_million_pixels() -> None:
    layer = mc.nn.MetricConv2d(1, 1, 3, padding=1, bias=False).cuda()
    x = torch.randn(1, 1, 4096, 4097, device="cuda")
    expected = torch.nn.functional.conv2d(x, layer.weight, padding=1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS, ids=str)
def test_fused_parametrization_equals_its_formulas(parametrization: mc.metrics.Parametrization) -> None:
    check_parametrization(parametrization, "cuda")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", few_outputs.CASES)
@pytest.mark.usefixtures("tf32")
def test_few_outputs_convolution_equals_torch(name: str, dtype: torch.dtype) -> None:
    few_outputs.check_few_outputs(dtype, "cuda", **few_outputs.CASES[name])


@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
def test_network_trains_as_with_the_reference(ball: str) -> None:
    def losses(backend: str) -> list[float]:
        torch.manual_seed(0)
        network = torch.nn.Sequential(
            mc.nn.MetricConv2d(3, 16, 3, padding=1, ball=ball, backend=backend),
            torch.nn.ReLU(),
            mc.nn.MetricConv2d(16, 16, 3, stride=2, padding=1, metric_groups=2, ball=ball, backend=backend),
            torch.nn.ReLU(),
            mc.nn.MetricConv2d(16, 4, 3, padding=1, modulation=True, ball=ball, backend=backend),
        ).cuda()
        optimizer = torch.optim.SGD(mc.nn.param_groups(network, lr=0.05), momentum=0.9)
        x, target = torch.randn(8, 3, 16, 16, device="cuda"), torch.randn(8, 4, 8, 8, device="cuda")
        found = []
        for _ in range(100):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(network(x), target)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    fused, reference = losses("triton"), losses("reference")
    assert reference[-1] < 0.97 * reference[0]
    assert max(abs(a - b) / b for a, b in zip(fused, reference, strict=True)) < 0.02
