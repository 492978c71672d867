"""Packages of the extras that tests need."""

# Packages of the extras. A test that needs one that is not installed is skipped; `make test` installs them all.
OPTIONAL = (
    *(
        "PIL",
        "agd",
        "captum",
        "dask",
        "distributed",
        "gradio",
        "griffe",
        "imagecodecs",
        "lightning",
        "llvmlite",
        "matplotlib",
    ),
    *(
        "mkdocs",
        "mkdocstrings",
        "mypy",
        "nibabel",
        "numba",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "playwright",
        "rich",
        "scipy",
    ),
    *("skimage", "tifffile", "timm", "torchmetrics", "torchvision", "triton", "typer", "zarr"),
)
