/**
 * Unit balls of a metric and averages over them: metricconv.supports and metricconv.metrics.flow in 2-D.
 *
 * @typedef {{height: number, width: number, count: number, hasDrift: boolean, nodes: Float64Array}} FlowField
 *     a metric and its derivatives at each pixel and at one more on each side, `count` numbers per node: M, then ω and
 *     its curl ∂_y ω_x − ∂_x ω_y if there is a drift, then ∂_y M and ∂_x M
 * @typedef {{tangent: Float64Array, geodesic: Float64Array}} Outlines  points y, x, y, x, … relative to the pixel
 */
"use strict";

(() => {
  const { reflect, smoothed } = globalThis.metricconvLive;

  /** Bounds against rounding, as in metricconv.metrics.flow. */
  const LEAST_PIVOT = 1e-6, LEAST_NORM = 1e-3;
  /** Points per outline and steps per geodesic of an outline, as in metricconv.viz. */
  const OUTLINE = 128, OUTLINE_STEPS = 24;

  /**
   * Return the field in which geodesics of a metric are traced, with one smoothing pass.
   * @param {Metric} metric
   * @returns {FlowField}
   */
  function flowField(metric) {
    const { height, width, M, omega } = smoothed(metric);
    const count = omega ? 12 : 9, columns = width + 2, nodes = new Float64Array((height + 2) * columns * count);
    for (let row = 0; row < height + 2; row++) {
      for (let column = 0; column < columns; column++) {
        const y = Math.min(Math.max(row - 1, 0), height - 1), x = Math.min(Math.max(column - 1, 0), width - 1);
        const inside = row === y + 1 && column === x + 1, here = y * width + x;
        let at = (row * columns + column) * count;
        const before = [y ? here - width : here, x ? here - 1 : here];
        const after = [y < height - 1 ? here + width : here, x < width - 1 ? here + 1 : here];
        const slope = (field, axis) => (inside ? (field[after[axis]] - field[before[axis]]) / 2 : 0);
        for (const field of M) nodes[at++] = field[here];
        if (omega) {
          nodes[at++] = omega[0][here];
          nodes[at++] = omega[1][here];
          nodes[at++] = slope(omega[1], 0) - slope(omega[0], 1);
        }
        for (let axis = 0; axis < 2; axis++) for (const field of M) nodes[at++] = slope(field, axis);
      }
    }
    return { height: height + 2, width: columns, count, hasDrift: omega !== null, nodes };
  }

  /** Metric and derivatives at one position; overwritten by `interpolate`. */
  const local = new Float64Array(12);
  /** Velocity and rate of the momentum; overwritten by `rates`. */
  const rate = new Float64Array(4);

  /** Interpolate a field bilinearly at a position in pixels, into `local`. Outside of the image it is constant. */
  function interpolate(field, y, x) {
    const { nodes, count } = field, bottom = field.height - 1, right = field.width - 1;
    const y0 = Math.floor(y), x0 = Math.floor(x), v = y - y0, u = x - x0;
    const up = Math.min(Math.max(y0 + 1, 0), bottom), down = Math.min(Math.max(y0 + 2, 0), bottom);
    const west = Math.min(Math.max(x0 + 1, 0), right), east = Math.min(Math.max(x0 + 2, 0), right);
    const a = (up * field.width + west) * count, b = (up * field.width + east) * count;
    const c = (down * field.width + west) * count, d = (down * field.width + east) * count;
    const wa = (1 - v) * (1 - u), wb = (1 - v) * u, wc = v * (1 - u), wd = v * u;
    for (let n = 0; n < count; n++) {
      local[n] = wa * nodes[a + n] + wb * nodes[b + n] + wc * nodes[c + n] + wd * nodes[d + n];
    }
  }

  /** Return F(e) = 1 + ωᵀe for |e|_M = 1. */
  function normRatio(field, ey, ex) {
    return field.hasDrift ? Math.max(1 + local[3] * ey + local[4] * ex, LEAST_NORM) : 1;
  }

  /** Compute the velocity ẋ and the rate q̇ of a momentum q at the interpolated position, into `rate`. */
  function rates(field, qy, qx) {
    const yy = local[0], yx = local[1], xx = local[2];
    // M⁻¹q by elimination, with a lower bound of the second pivot.
    const ratio = yx / yy, pivot = Math.max(xx - ratio * yx, LEAST_PIVOT * xx), z = qx - ratio * qy;
    const norm = Math.sqrt((qy * qy) / yy + (z * z) / pivot);
    const ex = z / pivot / norm, ey = qy / yy / norm - ratio * ex, c = normRatio(field, ey, ex);
    const first = field.hasDrift ? 6 : 3, curl = field.hasDrift ? local[5] : 0;
    const bend = (k) => 0.5 * (local[k] * ey * ey + 2 * local[k + 1] * ey * ex + local[k + 2] * ex * ex);
    rate[0] = ey / c;
    rate[1] = ex / c;
    rate[2] = (norm / c) * (bend(first) + curl * ex);
    rate[3] = (norm / c) * (bend(first + 3) - curl * ey);
  }

  /**
   * Trace a geodesic of length 1 and write its steps, parabolas, as (start, step, bend), each (y, x).
   *
   * The integrator is `metricconv.metrics.flow.shoot`: order 2, one evaluation of the field per step.
   * @param {FlowField} field
   * @param {number} y  start in pixels
   * @param {number} x
   * @param {number} uy  initial direction, not 0
   * @param {number} ux
   * @param {number} steps
   * @param {Float64Array} segments  6 · steps numbers
   */
  function shoot(field, y, x, uy, ux, steps, segments) {
    interpolate(field, y, x);
    const [yy, yx, xx] = local;
    const square = yy * uy * uy + 2 * yx * uy * ux + xx * ux * ux;
    const length = Math.sqrt(Math.max(square, LEAST_PIVOT * (yy * uy * uy + xx * ux * ux)));
    const ey = uy / length, ex = ux / length, h = 1 / steps, speed = h / normRatio(field, ey, ex);
    let qy = yy * ey + yx * ex, qx = yx * ey + xx * ex, wy = speed * ey, wx = speed * ex;
    let dy = 0, dx = 0, by = 0, bx = 0;
    for (let n = 0; n < steps; n++) {
      interpolate(field, y + dy + 0.5 * wy + 0.25 * by, x + dx + 0.5 * wx + 0.25 * bx);
      rates(field, qy, qx);
      rates(field, qy + 0.5 * h * rate[2], qx + 0.5 * h * rate[3]);
      const sy = h * rate[0], sx = h * rate[1], factor = n ? 1 : 2;
      [by, bx] = [factor * (sy - wy), factor * (sx - wx)];
      segments.set([dy, dx, sy, sx, by, bx], 6 * n);
      [dy, dx, wy, wx] = [dy + sy, dx + sx, sy, sx];
      [qy, qx] = [qy + h * rate[2], qx + h * rate[3]];
    }
  }

  /** Return the metric at a pixel: [M_yy, M_yx, M_xx, ω_y, ω_x]. */
  function metricAt(metric, y, x) {
    const n = y * metric.width + x, [oy, ox] = metric.omega || [];
    return [...metric.M.map((field) => field[n]), oy ? oy[n] : 0, ox ? ox[n] : 0];
  }

  /** Return F(u) = √(uᵀMu) + ωᵀu. */
  function norm([yy, yx, xx, oy, ox], uy, ux) {
    return Math.sqrt(Math.max(yy * uy * uy + 2 * yx * uy * ux + xx * ux * ux, 0)) + oy * uy + ox * ux;
  }

  /**
   * Return the center of the unit tangent ball relative to its pixel, −M⁻¹ω / (1 − ‖ω‖²_{M⁻¹}), and its outline.
   * @param {number[]} at  the metric at the pixel
   * @returns {{center: number[], points: Float64Array}}
   */
  function ellipse([yy, yx, xx, oy, ox]) {
    const det = yy * xx - yx * yx, ry = (xx * oy - yx * ox) / det, rx = (yy * ox - yx * oy) / det;
    const slack = Math.max(1 - oy * ry - ox * rx, Number.EPSILON), center = [-ry / slack, -rx / slack];
    const [hyy, hyx, hxx] = [yy - oy * oy, yx - oy * ox, xx - ox * ox].map((m) => slack * m);
    const scale = 1 / (hyy * hxx - hyx * hyx);
    // The Cholesky factor of h⁻¹ maps the circle to the ellipse, evenly also if it is thin.
    const down = Math.sqrt(scale * hxx), across = (-scale * hyx) / down;
    const side = Math.sqrt(Math.max(scale * hyy - across * across, 0));
    const points = new Float64Array(2 * OUTLINE);
    for (let n = 0; n < OUTLINE; n++) {
      const angle = (2 * Math.PI * n) / OUTLINE;
      points[2 * n] = center[0] + down * Math.sin(angle);
      points[2 * n + 1] = center[1] + across * Math.sin(angle) + side * Math.cos(angle);
    }
    return { center, points };
  }

  /**
   * Return the outlines of the unit tangent ball and the unit geodesic ball of a pixel.
   * @param {Metric} metric
   * @param {FlowField} field  `flowField(metric)`
   * @param {number} y  row
   * @param {number} x  column
   * @returns {Outlines & {center: number[]}}  with the center of the tangent ball
   */
  function unitBalls(metric, field, y, x) {
    const { center, points } = ellipse(metricAt(metric, y, x));
    const geodesic = new Float64Array(2 * OUTLINE), segments = new Float64Array(6 * OUTLINE_STEPS);
    for (let n = 0; n < OUTLINE; n++) {
      shoot(field, y, x, points[2 * n], points[2 * n + 1], OUTLINE_STEPS, segments);
      const [dy, dx, sy, sx] = segments.subarray(-6);
      geodesic.set([dy + sy, dx + sx], 2 * n);
    }
    return { center, tangent: points, geodesic };
  }

  /** Return the directions (y, x) of the polar stencil of k radii 1/k, …, 1 times k directions. */
  function directions(k) {
    return Array.from({ length: k }, (_, t) => [Math.sin((2 * Math.PI * t) / k), Math.cos((2 * Math.PI * t) / k)]);
  }

  /**
   * Return a function that writes the k² offsets of the samples of a pixel's tangent ball: y, x, y, x, …
   * @param {Metric} metric
   * @param {number} k
   * @returns {(y: number, x: number, offsets: Float64Array) => void}
   */
  function tangentSampler(metric, k) {
    const rays = directions(k);
    return (y, x, offsets) => {
      const at = metricAt(metric, y, x);
      rays.forEach(([uy, ux], t) => {
        const length = norm(at, uy, ux);
        for (let r = 0; r < k; r++) {
          offsets[2 * (r * k + t)] = (((r + 1) / k) * uy) / length;
          offsets[2 * (r * k + t) + 1] = (((r + 1) / k) * ux) / length;
        }
      });
    };
  }

  /**
   * Return a function that writes the k² offsets of the samples of a pixel's geodesic ball: y, x, y, x, …
   * @param {FlowField} field
   * @param {number} k
   * @returns {(y: number, x: number, offsets: Float64Array) => void}
   */
  function geodesicSampler(field, k) {
    const rays = directions(k), steps = k <= 5 ? 3 : 4, segments = new Float64Array(6 * steps);
    return (y, x, offsets) => {
      rays.forEach(([uy, ux], t) => {
        shoot(field, y, x, uy, ux, steps, segments);
        for (let r = 0; r < k; r++) {
          const position = ((r + 1) / k) * steps, n = Math.min(Math.ceil(position), steps) - 1;
          const part = position - n, sag = 0.5 * part * (1 - part), s = 6 * n;
          for (let axis = 0; axis < 2; axis++) {
            const [start, step, bend] = [segments[s + axis], segments[s + 2 + axis], segments[s + 4 + axis]];
            offsets[2 * (r * k + t) + axis] = start + part * step - sag * bend;
          }
        }
      });
    };
  }

  /** Return a channel at a position by bilinear interpolation, reflected at the borders. */
  function sample(channel, height, width, y, x) {
    const y0 = Math.floor(y), x0 = Math.floor(x), v = y - y0, u = x - x0;
    const up = reflect(y0, height) * width, down = reflect(y0 + 1, height) * width;
    const west = reflect(x0, width), east = reflect(x0 + 1, width);
    const above = (1 - u) * channel[up + west] + u * channel[up + east];
    return (1 - v) * above + v * ((1 - u) * channel[down + west] + u * channel[down + east]);
  }

  /**
   * Return the mean over the k² samples of each pixel of a part of an image: `tangent_filter` or `geodesic_filter`.
   * @param {Picture} image
   * @param {{top: number, left: number, height: number, width: number}} part
   * @param {(y: number, x: number, offsets: Float64Array) => void} sampler
   * @param {number} k
   * @returns {Picture}
   */
  function average(image, { top, left, height, width }, sampler, k) {
    const channels = image.channels.map(() => new Float64Array(height * width)), offsets = new Float64Array(2 * k * k);
    for (let y = top; y < top + height; y++) {
      for (let x = left; x < left + width; x++) {
        sampler(y, x, offsets);
        image.channels.forEach((channel, c) => {
          let sum = 0;
          for (let j = 0; j < 2 * k * k; j += 2) {
            sum += sample(channel, image.height, image.width, y + offsets[j], x + offsets[j + 1]);
          }
          channels[c][(y - top) * width + x - left] = sum / (k * k);
        });
      }
    }
    return { height, width, channels };
  }

  Object.assign(globalThis.metricconvLive, { average, flowField, geodesicSampler, tangentSampler, unitBalls });
})();
