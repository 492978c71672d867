/**
 * Metrics computed from an image: the functions of metricconv.metrics that the page "Try it" needs, in 2-D.
 *
 * The scripts of this folder are classic scripts, not modules, since browsers do not load modules from files and the
 * site also works when it is opened from a folder. They share the object `metricconvLive`. Vectors are (y, x), in
 * pixels; fields are stored row by row. tests/test_live_page.py compares all numbers with those of the library.
 *
 * @typedef {{height: number, width: number, channels: Float64Array[]}} Picture  values in [0, 1]
 * @typedef {{height: number, width: number, M: Float64Array[], omega: Float64Array[] | null}} Metric
 *     F(u) = √(uᵀMu) + ωᵀu at each pixel: M is [M_yy, M_yx, M_xx], omega is [ω_y, ω_x], or null if there is no drift
 * @typedef {{iota: number, alpha: number, scale: number | null, epsOmega?: number}} MetricOptions
 */
"use strict";

globalThis.metricconvLive = {};

(() => {
  /** Radius of sampled Gaussians in standard deviations. */
  const TRUNCATE = 4;

  /**
   * Return the pixel that pads an index by reflection about the center of the border pixel.
   * @param {number} index
   * @param {number} extent
   * @returns {number}
   */
  function reflect(index, extent) {
    if (extent === 1) return 0;
    const period = 2 * (extent - 1);
    const remainder = ((index % period) + period) % period;
    return Math.min(remainder, period - remainder);
  }

  /**
   * Return the weights w_0, w_1, … of a sampled Gaussian, with sum 1 over both sides.
   * @param {number} scale  standard deviation in pixels
   * @returns {number[]}
   */
  function gaussian(scale) {
    const half = [];
    for (let t = 0; t <= Math.ceil(TRUNCATE * scale); t++) half.push(Math.exp(-0.5 * (t / scale) ** 2));
    const total = 2 * half.reduce((sum, w) => sum + w) - half[0];
    return half.map((w) => w / total);
  }

  /**
   * Return the weights w_1, w_2, … of a sampled Gaussian derivative with Σ_t t w_t = 1 over both sides.
   * @param {number} scale  standard deviation in pixels
   * @returns {number[]}
   */
  function gaussianDerivative(scale) {
    const half = [];
    for (let t = 1; t <= Math.ceil(TRUNCATE * scale); t++) half.push(t * Math.exp((-0.5 * (t * t - 1)) / scale ** 2));
    const total = 2 * half.reduce((sum, w, n) => sum + (n + 1) * w, 0);
    return half.map((w) => w / total);
  }

  /**
   * Filter along one axis with even weights w_0, w_1, … or odd weights w_1, w_2, …, and reflection at borders.
   * @param {Float64Array} field
   * @param {number} height
   * @param {number} width
   * @param {0 | 1} axis  0 along y, 1 along x
   * @param {number[]} weights
   * @param {boolean} odd
   * @returns {Float64Array}
   */
  function correlate(field, height, width, axis, weights, odd) {
    const extent = axis ? width : height, stride = axis ? 1 : width;
    const result = new Float64Array(field.length);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const at = axis ? x : y, here = y * width + x, start = here - at * stride;
        let sum = odd ? 0 : weights[0] * field[here];
        for (let t = 1; t <= weights.length - (odd ? 0 : 1); t++) {
          const after = field[start + stride * reflect(at + t, extent)];
          const before = field[start + stride * reflect(at - t, extent)];
          sum += odd ? weights[t - 1] * (after - before) : weights[t] * (after + before);
        }
        result[here] = sum;
      }
    }
    return result;
  }

  /**
   * Return the direction and the length of the longest gradient of a channel at each pixel, and the largest length.
   * @param {Picture} image
   * @param {number | null} scale  standard deviation of Gaussian derivative filters; null for 3×3 Sobel filters
   */
  function unitGradient(image, scale) {
    const { height, width } = image;
    const difference = scale === null ? [0.5] : gaussianDerivative(scale);
    const smoothing = scale === null ? [0.5, 0.25] : gaussian(scale);
    const y = new Float64Array(height * width), x = new Float64Array(height * width);
    const length = new Float64Array(height * width);
    let largest = 0;
    for (const channel of image.channels) {
      const [dy, dx] = /** @type {const} */ ([0, 1]).map((axis) => {
        const component = correlate(channel, height, width, axis, difference, true);
        return correlate(component, height, width, axis ? 0 : 1, smoothing, false);
      });
      for (let n = 0; n < length.length; n++) {
        const size = Math.hypot(dy[n], dx[n]);
        if (size > length[n]) {
          [y[n], x[n], length[n]] = [dy[n] / size, dx[n] / size, size];
          largest = Math.max(largest, size);
        }
      }
    }
    return { y, x, length, largest: largest || 1 };
  }

  /** Return a metric without values, with a drift or without. */
  function emptyMetric({ height, width }, drift) {
    const fields = (count) => Array.from({ length: count }, () => new Float64Array(height * width));
    return { height, width, M: fields(3), omega: drift ? fields(2) : null };
  }

  /**
   * Return the metric whose balls are elongated along edges, `gradient_metric(image, …, padding_mode="reflect")`.
   *
   * With n = ∇f/|∇f| and a = 1 + α |∇f| / max |∇f|: M = ι (a n nᵀ + (I − n nᵀ)/a), and a drift ω along the edge of
   * length ‖ω‖_{M⁻¹} = 1 − ε_ω.
   * @param {Picture} image
   * @param {MetricOptions} options
   * @returns {Metric}
   */
  function gradientMetric(image, { iota, alpha, scale, epsOmega = 1 }) {
    const normal = unitGradient(image, scale), metric = emptyMetric(image, epsOmega < 1);
    const margin = Math.max(epsOmega, 4 * Number.EPSILON), limit = Math.sqrt(margin / Number.EPSILON) / 2;
    for (let n = 0; n < normal.length.length; n++) {
      const y = normal.y[n], x = normal.x[n];
      const stretch = Math.min(1 + alpha * (normal.length[n] / normal.largest), limit);
      const across = iota * (stretch - 1 / stretch);
      metric.M[0][n] = iota / stretch + across * y * y;
      metric.M[1][n] = across * y * x;
      metric.M[2][n] = iota / stretch + across * x * x;
      if (metric.omega) {
        const length = (1 - margin) * Math.sqrt(iota / stretch);
        metric.omega[0][n] = length * x;
        metric.omega[1][n] = -length * y;
      }
    }
    return metric;
  }

  /**
   * Return the metric whose balls are round and small near edges, `edge_metric(image, …, padding_mode="reflect")`:
   * M = ι (1 + α |∇f| / max |∇f|)² I.
   * @param {Picture} image
   * @param {MetricOptions} options
   * @returns {Metric}
   */
  function edgeMetric(image, { iota, alpha, scale }) {
    const { length, largest } = unitGradient(image, scale), metric = emptyMetric(image, false);
    for (let n = 0; n < length.length; n++) {
      metric.M[0][n] = metric.M[2][n] = iota * (1 + alpha * (length[n] / largest)) ** 2;
    }
    return metric;
  }

  /**
   * Return a metric averaged once over 3×3 pixels with weights ¼ ½ ¼ along each axis, `smoothed(metric)`.
   * @param {Metric} metric
   * @returns {Metric}
   */
  function smoothed(metric) {
    const { height, width } = metric;
    const last = { y: height - 1, x: width - 1 };
    const average = (field) => {
      const rows = new Float64Array(field.length), result = new Float64Array(field.length);
      for (let n = 0; n < field.length; n++) {
        const x = n % width, y = (n - x) / width;
        rows[n] = 0.5 * field[n] + 0.25 * (field[y ? n - width : n] + field[y < last.y ? n + width : n]);
      }
      for (let n = 0; n < field.length; n++) {
        const x = n % width;
        result[n] = 0.5 * rows[n] + 0.25 * (rows[x ? n - 1 : n] + rows[x < last.x ? n + 1 : n]);
      }
      return result;
    };
    return { height, width, M: metric.M.map(average), omega: metric.omega && metric.omega.map(average) };
  }

  Object.assign(globalThis.metricconvLive, { edgeMetric, gradientMetric, reflect, smoothed });
})();
