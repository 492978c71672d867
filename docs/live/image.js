/** Images of the page "Try it": a drawn landscape, files of the visitor, and noise. */
"use strict";

(() => {
  /** Size of the landscape, and the largest side of other images, in pixels. */
  const WIDTH = 192, HEIGHT = 144, LARGEST = 256;

  /**
   * Return a generator of uniform random numbers in [0, 1): mulberry32.
   * @param {number} seed
   * @returns {() => number}
   */
  function random(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), state | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
    };
  }

  /** Return the brightness of the landscape at a point, x from 0 to 4/3 and y from 0 (top) to 1. */
  function landscape(y, x) {
    const far = 0.56 + 0.05 * Math.sin(5 * x + 1) + 0.02 * Math.sin(13 * x);
    const near = 0.72 + 0.1 * Math.sin(3.1 * x + 2.6);
    // A house and its roof, in front of the hills.
    const [hx, hy] = [x - 1.02, y - 0.7];
    if (Math.abs(hx + 0.05) < 0.022 && Math.abs(hy + 0.01) < 0.03) return 0.25;
    if (Math.abs(hx - 0.05) < 0.022 && Math.abs(hy + 0.01) < 0.03) return 0.25;
    if (Math.abs(hx) < 0.11 && Math.abs(hy) < 0.08) return 0.88;
    if (hy < -0.08 && hy > -0.19 + 0.8 * Math.abs(hx)) return 0.15;
    // Furrows of two fields, as level lines of distances.
    if (y > near) return 0.4 + 0.22 * Math.sin(75 * Math.hypot(x - 0.25, 1.6 * (y - 1.35)));
    if (y > far) return 0.3 + 0.1 * Math.sin(110 * (y - far) - 25 * x);
    // A moon with craters.
    const [mx, my] = [x - 0.36, y - 0.26];
    if (Math.hypot(mx, my) < 0.17) {
      const craters = [[-0.06, -0.05, 0.045], [0.06, 0.03, 0.06], [-0.04, 0.08, 0.03], [0.05, -0.09, 0.025]];
      return craters.some(([cx, cy, r]) => Math.hypot(mx - cx, my - cy) < r) ? 0.7 : 0.93;
    }
    // Two wires, and a cloud whose border is a wave.
    if (Math.abs(y - 0.46 + 0.12 * (x - 0.75) ** 2 - 0.05 * x) < 0.007) return 0.12;
    const [cx, cy] = [x - 1.0, y - 0.2], angle = Math.atan2(cy, cx);
    if (Math.hypot(cx / 1.8, cy) < 0.1 + 0.015 * Math.cos(7 * angle)) return 0.86;
    return 0.42 + 0.22 * y;
  }

  /** Return the landscape: edges, corners, curves and stripes, with 4×4 points per pixel. */
  function drawnImage() {
    const values = new Float64Array(WIDTH * HEIGHT), points = 4;
    for (let n = 0; n < values.length; n++) {
      const x = n % WIDTH, y = (n - x) / WIDTH;
      for (let j = 0; j < points ** 2; j++) {
        const [dy, dx] = [Math.floor(j / points), j % points].map((i) => (i + 0.5) / points);
        values[n] += landscape((y + dy) / HEIGHT, (x + dx) / HEIGHT) / points ** 2;
      }
    }
    return { height: HEIGHT, width: WIDTH, channels: [values] };
  }

  /**
   * Read an image file, reduced to at most 256 pixels per side. It does not leave the browser.
   * @param {File} file
   * @returns {Promise<Picture>}
   */
  async function readImage(file) {
    const bitmap = await createImageBitmap(file);
    const factor = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
    const width = Math.max(Math.round(factor * bitmap.width), 1), height = Math.max(Math.round(factor * bitmap.height), 1);
    const pen = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
    pen.fillStyle = "white"; // behind transparent pixels
    pen.fillRect(0, 0, width, height);
    pen.imageSmoothingQuality = "high";
    pen.drawImage(bitmap, 0, 0, width, height);
    const { data } = pen.getImageData(0, 0, width, height);
    const channels = [0, 1, 2].map((c) => Float64Array.from({ length: width * height }, (_, n) => data[4 * n + c] / 255));
    const gray = channels[0].every((value, n) => value === channels[1][n] && value === channels[2][n]);
    return { height, width, channels: gray ? channels.slice(0, 1) : channels };
  }

  /**
   * Return an image with Gaussian noise, always the same for an image size.
   * @param {Picture} image
   * @param {number} sigma  standard deviation
   * @returns {Picture}
   */
  function withNoise(image, sigma) {
    if (!sigma) return image;
    const next = random(1);
    const normal = () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
    return { ...image, channels: image.channels.map((channel) => channel.map((value) => value + sigma * normal())) };
  }

  /**
   * Return a part of an image.
   * @param {Picture} image
   * @param {{top: number, left: number, height: number, width: number}} part
   * @returns {Picture}
   */
  function crop(image, { top, left, height, width }) {
    const channels = image.channels.map((channel) =>
      Float64Array.from({ length: height * width }, (_, n) => {
        const x = n % width, y = (n - x) / width;
        return channel[(top + y) * image.width + left + x];
      }),
    );
    return { height, width, channels };
  }

  /**
   * Return the peak signal-to-noise ratio of an image in dB.
   * @param {Picture} image
   * @param {Picture} clean
   * @returns {number}
   */
  function psnr(image, clean) {
    let sum = 0;
    image.channels.forEach((channel, c) => channel.forEach((value, n) => (sum += (value - clean.channels[c][n]) ** 2)));
    return -10 * Math.log10(sum / (image.channels.length * image.width * image.height));
  }

  /**
   * Return a canvas with an image, one pixel per pixel.
   * @param {Picture} image
   * @returns {HTMLCanvasElement}
   */
  function toCanvas({ height, width, channels }) {
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const pen = canvas.getContext("2d"), pixels = pen.createImageData(width, height);
    for (let n = 0; n < width * height; n++) {
      for (let c = 0; c < 3; c++) pixels.data[4 * n + c] = 255 * channels[Math.min(c, channels.length - 1)][n];
      pixels.data[4 * n + 3] = 255;
    }
    pen.putImageData(pixels, 0, 0);
    return canvas;
  }

  Object.assign(globalThis.metricconvLive, { crop, drawnImage, psnr, readImage, toCanvas, withNoise });
})();
