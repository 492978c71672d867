"""Conversion of networks of other packages: equal at initialization, and folding for inference raises."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import metricconv as mc
from metricconv.nn import adaptive_layers

TIMM = {
    "resnet18": 17,
    "mobilenetv3_small_050": 12,
    "convnext_atto": 12,
    "tf_efficientnet_b0": 17,  # Conv2dSame
    "nfnet_l0": 28,  # ScaledStdConv2d
    "resnetv2_50x1_bit": 17,  # StdConv2d
    "repvgg_a0": 22,
    "fastvit_t8": 29,
}
FOLDED = ("mobileone_s0", "repvgg_a0", "fastvit_t8", "repghostnet_050")
TORCHVISION = {"resnet18": 17, "mobilenet_v2": 18, "video.r3d_18": 17}


def prepared(model: nn.Module, *shape: int) -> nn.Module:
    """Set the statistics of batch normalization to those of random inputs, so that outputs are of order 1."""
    model.train()
    with torch.no_grad():
        model(torch.randn(4, *shape))
    return model.eval()


def assert_converts_equal(model: nn.Module, layers: int, *shape: int) -> None:
    converted = mc.convert(prepared(model, *shape))
    assert len(list(adaptive_layers(converted))) == layers
    x = torch.randn(2, *shape)
    with torch.no_grad():
        for expected, found in zip(outputs(model(x)), outputs(converted(x)), strict=True):
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def outputs(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a network's output, which may be nested."""
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in outputs(part)]


@pytest.mark.parametrize("name", TIMM)
def test_timm_network_converts_equal(name):
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, pretrained=False, num_classes=7)
    assert_converts_equal(model, TIMM[name], 3, 64, 65)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_network_converts_equal(name):
    models = pytest.importorskip("torchvision").models
    module, _, function = name.rpartition(".")
    model = getattr(getattr(models, module) if module else models, function)(weights=None, num_classes=7)
    assert_converts_equal(model, TORCHVISION[name], 3, *((4, 32, 32) if module else (48, 47)))


def smp_unet() -> nn.Module:
    return pytest.importorskip("segmentation_models_pytorch").Unet("resnet18", encoder_weights=None, classes=3)


def monai_segresnet(dim: int) -> nn.Module:
    nets = pytest.importorskip("monai.networks.nets")
    return nets.SegResNet(spatial_dims=dim, in_channels=1, out_channels=2, init_filters=8)


def monai_dynunet(dim: int) -> nn.Module:
    nets = pytest.importorskip("monai.networks.nets")
    return nets.DynUNet(
        dim, 1, 2, [3] * 3, [1, 2, 2], [2, 2], filters=[4, 8, 8], deep_supervision=True, deep_supr_num=1
    )


def nnunet(dim: int, blocks: str = "n_conv_per_stage", name: str = "PlainConvUNet") -> nn.Module:
    """Return a network with the class and the options that plans of nnU-Net name."""
    architectures = pytest.importorskip("dynamic_network_architectures.architectures.unet")
    conv, norm = ((nn.Conv2d, nn.InstanceNorm2d), (nn.Conv3d, nn.InstanceNorm3d))[dim - 2]
    options = {"n_conv_per_stage_decoder": 1, "conv_op": conv, "norm_op": norm, "nonlin": nn.LeakyReLU}
    stages = {"n_stages": 3, "features_per_stage": (4, 8, 8), "kernel_sizes": 3, "strides": (1, 2, 2), blocks: 2}
    return getattr(architectures, name)(1, num_classes=2, conv_bias=True, deep_supervision=True, **stages, **options)


def nnunet_residual(dim: int) -> nn.Module:
    return nnunet(dim, "n_blocks_per_stage", "ResidualEncoderUNet")


def monai_unet() -> nn.Module:
    nets = pytest.importorskip("monai.networks.nets")
    return nets.UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2))


def ultralytics_yolo() -> nn.Module:
    return pytest.importorskip("ultralytics.nn.tasks").DetectionModel("yolov8n.yaml", ch=3, nc=4, verbose=False)


class DiffusersUNet(nn.Module):
    """A network that predicts the noise at a fixed time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = pytest.importorskip("diffusers").UNet2DModel(
            sample_size=16,
            layers_per_block=1,
            block_out_channels=(32, 64),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x, torch.tensor(5)).sample


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of these packages
@pytest.mark.parametrize(
    ("make", "layers", "shape"),
    [
        (smp_unet, 28, (3, 64, 64)),
        (monai_unet, 3, (1, 16, 16, 16)),
        *(
            (partial(make, len(shape) - 1), layers, shape)
            for shape in ((1, 16, 16), (1, 16, 16, 16))
            for make, layers in ((monai_segresnet, 28), (monai_dynunet, 10), (nnunet, 8), (nnunet_residual, 15))
        ),
        (ultralytics_yolo, 39, (3, 64, 64)),
        (DiffusersUNet, 20, (3, 16, 16)),
    ],
)
def test_network_of_other_families_converts_equal(make, layers, shape):
    assert_converts_equal(make(), layers, *shape)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fusing_a_converted_network_of_ultralytics_raises():
    converted = mc.convert(ultralytics_yolo())
    with pytest.raises(RuntimeError, match=r"DetectionModel\.fuse\(\) would discard the geometry"):
        converted.fuse()


def test_standardized_weights_are_those_of_timm_and_convert_back():
    timm = pytest.importorskip("timm")
    for kind in ("StdConv2d", "StdConv2dSame", "ScaledStdConv2d", "ScaledStdConv2dSame"):
        conv = getattr(timm.layers, kind)(4, 6, 3, stride=2, bias=True)
        if hasattr(conv, "gain"):
            nn.init.uniform_(conv.gain, 0.5, 2)
        original = conv.weight
        layer, x = mc.convert(nn.Sequential(conv), inplace=True)[0], torch.randn(2, 4, 11, 8)
        torch.testing.assert_close(layer(x), conv(x), atol=1e-5, rtol=1e-4)
        assert layer.parametrizations.weight.original is original
        plain = mc.to_conv(layer)
        if not getattr(conv, "same_pad", False):
            assert isinstance(plain, nn.Conv2d)
        torch.testing.assert_close(plain(x), conv(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", FOLDED)
def test_folding_a_converted_network_raises_until_it_is_converted_back(name):
    timm = pytest.importorskip("timm")
    reparameterize_model = timm.utils.reparameterize_model
    model = prepared(timm.create_model(name, pretrained=False, num_classes=7), 3, 64, 64)
    converted = mc.convert(model)
    with pytest.raises(RuntimeError, match=r"\(\) would discard the geometry of adaptive convolutions"):
        reparameterize_model(converted)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        folded = reparameterize_model(mc.to_conv(converted))(x)
        torch.testing.assert_close(folded, model(x), atol=1e-3, rtol=1e-3)


def test_timm_is_not_imported_by_conversion():
    code = "import sys, torch, metricconv as mc; mc.convert(torch.nn.Conv2d(3, 4, 3)); assert 'timm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("kinks", "dtype", "tolerance"), [(True, torch.float64, 1e-12), (False, torch.float32, 1e-5)])
def test_integrated_gradients_of_a_converted_network_are_those_of_the_original(kinks, dtype, tolerance):
    # The derivative at lattice points is exact here. In float32, ReLU and max-pooling make a difference of up to 1e-3:
    # rounding decides on which side of a kink an activation is. An ordinary network differs as much from its float64
    # copy.
    captum = pytest.importorskip("captum.attr")
    activation, pool = (nn.ReLU(), nn.MaxPool2d(3, 2, 1)) if kinks else (nn.Softplus(), nn.AvgPool2d(3, 2, 1))
    layers = [nn.Conv2d(3, 16, 7, 2, 3), activation, pool, nn.Conv2d(16, 16, 3, padding=1), activation]
    model = nn.Sequential(*layers, nn.Conv2d(16, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(dtype)
    x = torch.randn(1, 3, 16, 16, dtype=dtype)
    expected, found = (
        captum.IntegratedGradients(net).attribute(x, target=1, n_steps=12) for net in (model, mc.convert(model))
    )
    assert (found - expected).abs().max() < tolerance * expected.abs().max()
