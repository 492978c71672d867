"""Compare the fused parametrization to its formulas, for the tests in the interpreter and on a GPU."""

import torch

from metricconv.metrics import Cholesky, Parametrization, Spectral6, Spectral7

PARAMETRIZATIONS: list[Parametrization] = [
    kind(eps_omega=eps_omega, detach_factor=detached)
    for kind in (Cholesky, Spectral6, Spectral7)
    for eps_omega, detached in ((0.3, False), (0.3, True), (1.0, False))
]


def check_parametrization(parametrization: Parametrization, device: str = "cpu") -> None:
    """Check metrics and gradients, for a strided input with a few extreme values, whose gradients must be finite."""
    from metricconv.ops.triton.parametrizations import parametrize

    raw = torch.randn(2, 3, 5, 7, parametrization.channels, device=device).movedim(-1, 2)  # channels last
    raw[0, 0, :, 0, :4] = torch.tensor([0.0, 1e30, -3e38, 1e-40], device=device)
    plain, fused = raw.clone().requires_grad_(), raw.detach().requires_grad_()
    start = parametrization.identity().to(device).repeat_interleave(2)[::2]
    moved = (start, torch.tensor(0.7, device=device), 2.5)
    metric, found = parametrization(plain, *moved), parametrize(parametrization, fused, *moved)
    assert found is not None and type(found) is type(metric)
    for name, tensor in metric.tensors().items():
        torch.testing.assert_close(found.tensors()[name], tensor, rtol=1e-4, atol=1e-5)
    gradients = [torch.randn_like(t) for t in metric.tensors().values()]
    (expected,) = torch.autograd.grad(list(metric.tensors().values()), plain, gradients)
    (gradient,) = torch.autograd.grad(list(found.tensors().values()), fused, gradients)
    assert torch.isfinite(gradient).all() and gradient.stride() == fused.stride()
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3)
    bare, found = parametrization(raw), parametrize(parametrization, raw, None, None, 1)
    assert found is not None
    for name, tensor in bare.tensors().items():
        torch.testing.assert_close(found.tensors()[name], tensor, rtol=1e-4, atol=1e-5)
