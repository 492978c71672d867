"""Valid small image files of every format, and ways to damage them."""

import io
import json
import random
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import tifffile
import zarr
from numpy.typing import NDArray

__all__ = ["DAMAGES", "damage_store", "sample", "store"]

FORMATS = ("png", "tif", "npy", "jpg", "webp", "bmp", "ppm", "pgm")
# Sizes and offsets that decoders tend to trust.
EXTREME = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def _pixels(rng: random.Random, dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]) -> NDArray:
    generator = np.random.default_rng(rng.randrange(2**32))
    dtype, shape = np.dtype(rng.choice(dtypes)), rng.choice(shapes)
    if dtype.kind == "f":
        return generator.random(shape).astype(dtype)
    return generator.integers(0, 2 if dtype.kind == "b" else np.iinfo(dtype).max, shape).astype(dtype)


def sample(rng: random.Random, suffix: str) -> bytes:
    """Return the bytes of a valid file."""
    h, w = rng.randint(1, 20), rng.randint(1, 20)
    buffer = io.BytesIO()
    if suffix == "npy":
        shapes = ((h, w), (h, w, 3), (3, h, w), (2, h, w), (2, h, w, 2))
        pixels = _pixels(rng, ("?", "u1", "<u2", ">u2", "i4", "f2", "<f4", ">f8"), shapes)
        np.save(buffer, np.asfortranarray(pixels) if rng.random() < 0.3 else pixels)
    elif suffix == "tif":
        pixels = _pixels(rng, ("u1", "u2", "i2", "f4", "f8"), ((h, w), (h, w, 3), (h, w, 4), (3, h, w)))
        options = {"compression": rng.choice([None, "zlib", "lzw", "packbits", "zstd"]), "bigtiff": rng.random() < 0.3}
        options["byteorder"] = rng.choice("<>")
        options |= {"tile": (16, 16)} if rng.random() < 0.4 else {"rowsperstrip": rng.choice([None, 1, 5])}
        color = pixels.shape[-1] in (3, 4) and pixels.ndim == 3
        tifffile.imwrite(buffer, pixels, photometric="rgb" if color else "minisblack", **options)
    else:
        modes = {"png": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"), "jpg": ("L", "RGB", "CMYK")}
        modes |= {"webp": ("RGB", "RGBA"), "bmp": ("1", "L", "P", "RGB"), "ppm": ("RGB",), "pgm": ("L", "I;16")}
        mode = rng.choice(modes[suffix])
        image = PIL.Image.fromarray(_pixels(rng, ("u2" if mode == "I;16" else "u1",), ((h, w),)))
        image = image if mode == "I;16" else image.convert(mode)
        options = {"icc_profile": rng.randbytes(200)} if suffix in ("png", "jpg") and rng.random() < 0.3 else {}
        if suffix in ("png", "jpg", "webp") and rng.random() < 0.3:
            exif = PIL.Image.Exif()
            exif[274] = rng.randint(0, 9)  # orientation
            options["exif"] = exif
        names = {"tif": "TIFF", "jpg": "JPEG", "pgm": "PPM"}
        image.save(buffer, names.get(suffix, suffix.upper()), **options)
    return buffer.getvalue()


def _none(rng: random.Random, data: bytearray, suffix: str) -> bytes:
    return bytes(data)


def _flips(rng: random.Random, data: bytearray, suffix: str) -> bytes:
    end = min(len(data), rng.choice([32, 200, len(data)]))
    for _ in range(rng.choice([1, 1, 2, 5, 30])):
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(data)


def _truncated(rng: random.Random, data: bytearray, suffix: str) -> bytes:
    return bytes(data[: rng.choice([0, 1, 8, rng.randrange(len(data)), len(data) - 1])])


def _extreme_numbers(rng: random.Random, data: bytearray, suffix: str) -> bytes:
    """Replace some 2- and 4-byte numbers, in either byte order."""
    for _ in range(rng.choice([1, 1, 2])):
        size = rng.choice([2, 4])
        value = rng.choice(EXTREME) & (256**size - 1)
        at = rng.randrange(max(min(len(data), rng.choice([40, 300])) - size, 1))
        data[at : at + size] = value.to_bytes(size, rng.choice(["little", "big"]))
    return bytes(data)


def _moved(rng: random.Random, data: bytearray, suffix: str) -> bytes:
    """Delete, repeat or insert a block."""
    start = rng.randrange(len(data))
    stop = min(start + rng.randint(1, 64), len(data))
    block = bytes(data[start:stop])
    data[start:stop] = rng.choice([b"", block * 2, block * 50, rng.randbytes(64)])
    return bytes(data)


def _joined(rng: random.Random, data: bytearray, suffix: str) -> bytes:
    other = sample(rng, rng.choice(FORMATS))
    return rng.choice([bytes(data) + other, other + bytes(data), bytes(data[: len(data) // 2]) + other])


def _metadata(rng: random.Random, data: bytearray, suffix: str) -> bytes:
    """Declare another, often huge, size or type, with valid checksums."""
    if suffix == "png":
        start = 8 + 8
        header = list(struct.unpack(">IIBBBBB", data[start : start + 13]))
        position = rng.randrange(7)
        limit = 2**32 - 1 if position < 2 else 255
        header[position] = min(rng.choice([0, 1, 2, 16, 10_000, 2**31 - 1, 2**32 - 1]), limit)
        data[start : start + 13] = struct.pack(">IIBBBBB", *header)
        data[start + 13 : start + 17] = struct.pack(">I", zlib.crc32(data[start - 4 : start + 13]))
        if rng.random() < 0.3:  # a profile or text that decompresses to 50 MB
            name = rng.choice([b"iCCP", b"zTXt", b"iTXt"])
            body = name + b"a\0\0" + zlib.compress(bytes(50 * 2**20))
            data[33:33] = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
        return bytes(data)
    if suffix == "npy":
        length = struct.unpack("<H", data[8:10])[0]
        header, huge = data[10 : 10 + length].decode(), rng.choice([0, 1, 2**20, 2**31, 2**40, 2**62, 2**64, -1])
        edits = [
            lambda: re.sub(r"'shape': \((\d+)", f"'shape': ({huge}", header),
            lambda: re.sub(r"(\d+)\)", f"{huge})", header),
            lambda: re.sub(r"'shape': \(", "'shape': (0, " if rng.random() < 0.5 else "'shape': (1, 1, 1, ", header),
            lambda: re.sub(
                r"'descr': '.*?'", f"'descr': '{rng.choice(['O', 'V8', 'U9', 'c16', 'M8', 'f16'])}'", header
            ),
            lambda: header.replace("{", "(" * 50, 1),
            lambda: header.replace("False", rng.choice(["True", "0", "[]", "()"])),
        ]
        changed = rng.choice(edits)().strip().encode()
        return bytes(data[:8]) + struct.pack("<H", len(changed) + 1) + changed + b"\n" + bytes(data[10 + length :])
    if suffix == "tif":
        return _tiff_tag(rng, data)
    return _extreme_numbers(rng, data[: len(data)], suffix)


def _tiff_tag(rng: random.Random, data: bytearray) -> bytes:
    """Replace the value of a tag of the first page."""
    with tifffile.TiffFile(io.BytesIO(bytes(data))) as file:
        tags, order = list(file.pages[0].tags), file.byteorder
        tag = rng.choice([t for t in tags if t.code not in (273, 324)] or tags)
    size = rng.choice([2, 4])
    value = rng.choice(EXTREME) & (256**size - 1)
    data[tag.valueoffset : tag.valueoffset + size] = value.to_bytes(size, "little" if order == "<" else "big")
    if rng.random() < 0.3:  # of another type, or more values
        data[tag.offset + 2 : tag.offset + 4] = struct.pack(order + "H", rng.choice([1, 3, 4, 11, 12, 16, 99]))
    return bytes(data)


DAMAGES: dict[str, Callable[[random.Random, bytearray, str], bytes]] = {
    "none": _none,
    "flips": _flips,
    "truncated": _truncated,
    "extreme numbers": _extreme_numbers,
    "moved": _moved,
    "joined": _joined,
    "metadata": _metadata,
}


def store(rng: random.Random, path: Path) -> None:
    """Write a valid zarr array."""
    h, w = rng.randint(1, 40), rng.randint(1, 40)
    pixels = _pixels(rng, ("u1", "u2", "f4", "f8"), ((h, w), (h, w, 3), (2, h, w)))
    chunks = tuple(min(n, rng.choice([3, 16, 40])) for n in pixels.shape)
    zarr.create_array(path, data=pixels, chunks=chunks, zarr_format=rng.choice([2, 3]))


def damage_store(rng: random.Random, path: Path) -> None:
    """Damage the metadata or a chunk of a zarr array, or delete a file of it."""
    metadata = next(file for file in path.iterdir() if file.name in ("zarr.json", ".zarray"))
    chunks = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith((".z", "zarr")))
    match rng.choice(["none", "value", "bytes", "chunk", "deleted"]):
        case "value":
            content = json.loads(metadata.read_text())
            _change_value(rng, content)
            metadata.write_text(json.dumps(content))
        case "bytes":
            metadata.write_bytes(
                rng.choice([_flips, _truncated, _moved])(rng, bytearray(metadata.read_bytes()), "zarr")
            )
        case "chunk" if chunks:
            chunk = rng.choice(chunks)
            way = rng.choice([_flips, _truncated, _extreme_numbers, _moved])
            chunk.write_bytes(way(rng, bytearray(chunk.read_bytes()), "zarr"))
        case "deleted":
            rng.choice([metadata, *chunks]).unlink()


def _change_value(rng: random.Random, content: object) -> None:
    """Replace one value inside of nested lists and dictionaries."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))  # type: ignore[arg-type]
        key = rng.choice(keys)
        inner = content[key]  # type: ignore[index]
        if not isinstance(inner, dict | list) or not inner:
            break
        content = inner
    content[key] = rng.choice([0, -1, 1, 2**40, 2**63, 2**64, 1e300, None, "", "x", "|O", [], {}, True])  # type: ignore[index]
