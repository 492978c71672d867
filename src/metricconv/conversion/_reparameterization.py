"""Blocks whose methods fold convolutions into others: with adaptive convolutions inside, these methods raise.

Networks such as RepVGG or MobileOne merge the branches of a block into one convolution for inference. They read weights
alone, so that the geometry of an adaptive convolution would be lost without notice.
"""

import inspect

from torch import nn

from ..nn import AdaptiveConv

# Names by which timm, ultralytics and the original repositories call such methods.
METHODS = ("reparameterize", "switch_to_deploy", "fuse", "fuse_model", "fuse_convs", "merge_kernel")


class BlockedFold:
    """Replacement of a method of a block, which raises an error when it is called.

    Args:
        name: the method, such as "RepVggBlock.reparameterize".
        layer: name of an adaptive convolution inside the block.
    """

    def __init__(self, name: str, layer: str) -> None:
        self.name, self.layer = name, layer

    def __call__(self) -> None:
        """Raise the error."""
        raise RuntimeError(
            f"{self.name}() would discard the geometry of adaptive convolutions, such as {self.layer!r}: convert the "
            "network with a `select` that leaves out the blocks to be folded; or, if the geometry is still the "
            "identity, call metricconv.to_conv first"
        )


def folding_methods(model: nn.Module) -> dict[int, str]:
    """Return, by the id of each module, the method of its innermost enclosing block that may fold it."""
    found: dict[int, str] = {}
    for _, block in model.named_modules():  # outer blocks come first
        names = _methods(block)
        if names:
            found |= dict.fromkeys(map(id, block.modules()), f"{type(block).__name__}.{names[0]}")
    return found


def update_guards(model: nn.Module) -> None:
    """Block the folding methods of blocks that contain adaptive convolutions, and unblock those of others."""
    for block in model.modules():
        for name in _methods(block):
            inside = next((n for n, m in block.named_modules() if n and isinstance(m, AdaptiveConv)), None)
            if inside is not None:
                block.__dict__[name] = BlockedFold(f"{type(block).__name__}.{name}", inside)
            elif isinstance(block.__dict__.get(name), BlockedFold):
                del block.__dict__[name]


def _methods(block: nn.Module) -> list[str]:
    """Return the folding methods of a block; a method with required arguments, such as a sum of features, is none."""
    found = []
    for name in METHODS:
        method = getattr(type(block), name, None)
        if inspect.isfunction(method):
            _, *parameters = inspect.signature(method).parameters.values()
            variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            if all(p.default is not p.empty or p.kind in variadic for p in parameters):
                found.append(name)
    return found
