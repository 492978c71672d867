/** The page "Try it": canvases, options and events. */
"use strict";

(() => {
  const live = globalThis.metricconvLive;
  const COLORS = { tangent: "#2b8fd0", geodesic: "#c98500" };
  /** Standard deviation of the gradient filters, samples per radius, and side of the filtered part in pixels. */
  const SCALE = 1.5, SAMPLES = 11, PART = 56;
  /** Pixels around a ball in the close-up: the margin, and the least and the largest radius shown. */
  const MARGIN = 3, NEAR = 9, FAR = 48;

  const element = (name) => document.getElementById(`live-${name}`);
  const views = { image: element("image"), close: element("close") };
  const options = document.querySelector(".live-controls");

  /** What is shown. Pixels are [y, x]; `pixel` has the balls, and the filtered part is around `center`. */
  const state = {
    clean: null, image: null, picture: null, metric: null, field: null, balls: null, pixel: [0, 0], center: [0, 0],
  };

  /** Return the values of the options. ι has two digits, as in the printed code. */
  function readOptions() {
    const value = (name) => Number(element(name).value);
    const kind = options.elements.kind.value;
    const epsOmega = kind === "gradient" ? value("eps") : 1;
    const iota = Number((10 ** value("iota")).toPrecision(2));
    return { kind, iota, alpha: value("alpha"), epsOmega, noise: value("noise") };
  }

  /** Return the part of the image around the clicked pixel. */
  function part() {
    const { height, width } = state.image, [y, x] = state.center;
    const size = { height: Math.min(PART, height), width: Math.min(PART, width) };
    const start = (at, length, extent) => Math.min(Math.max(at - (length >> 1), 0), extent - length);
    return { top: start(y, size.height, height), left: start(x, size.width, width), ...size };
  }

  /** Prepare a canvas for drawing in CSS pixels; the style sheet determines its size from the aspect ratio. */
  function prepare(canvas, height, width) {
    canvas.style.setProperty("--aspect", width / height);
    const ratio = window.devicePixelRatio || 1, shown = canvas.clientWidth;
    canvas.width = Math.round(shown * ratio);
    canvas.height = Math.round((shown * ratio * height) / width);
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { pen, zoom: shown / width };
  }

  /** Draw the two balls and their pixel; `corner` is the pixel in the upper left corner, `zoom` the size of a pixel. */
  function drawBalls(pen, zoom, corner, thickness) {
    const place = (dy, dx) => [0, 1].map((i) => (state.pixel[1 - i] + [dx, dy][i] - corner[1 - i] + 0.5) * zoom);
    for (const kind of ["tangent", "geodesic"]) {
      const points = state.balls[kind];
      pen.beginPath();
      for (let n = 0; n < points.length; n += 2) pen.lineTo(...place(points[n], points[n + 1]));
      pen.closePath();
      pen.fillStyle = `${COLORS[kind]}50`;
      pen.fill();
      pen.lineJoin = "round";
      for (const [color, width] of [["#000000a0", thickness + 2], [COLORS[kind], thickness]]) {
        [pen.strokeStyle, pen.lineWidth] = [color, width];
        pen.stroke();
      }
    }
    pen.beginPath();
    pen.arc(...place(0, 0), thickness + 1, 0, 2 * Math.PI);
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = ["white", "black", 1.2];
    pen.fill();
    pen.stroke();
  }

  /** Draw the image with the balls and the frame of the filtered part. */
  function drawImage() {
    const { height, width } = state.image, { pen, zoom } = prepare(views.image, height, width);
    pen.drawImage(state.picture, 0, 0, width * zoom, height * zoom);
    const { top, left, height: rows, width: columns } = part();
    for (const [color, dash] of [["black", []], ["white", [5, 5]]]) {
      [pen.strokeStyle, pen.lineWidth] = [color, 1.5];
      pen.setLineDash(dash);
      pen.strokeRect(left * zoom + 1, top * zoom + 1, columns * zoom - 2, rows * zoom - 2);
    }
    pen.setLineDash([]);
    drawBalls(pen, zoom, [0, 0], 2);
  }

  /** Draw a close-up in which both balls fit, unless they are very long. */
  function drawCloseUp() {
    const far = Math.max(...[...state.balls.tangent, ...state.balls.geodesic].map(Math.abs));
    const reach = Math.min(Math.max(Math.ceil(far) + MARGIN, NEAR), FAR), side = 2 * reach + 1;
    const { pen, zoom } = prepare(views.close, side, side), corner = state.pixel.map((at) => at - reach);
    pen.fillStyle = "#8888";
    pen.fillRect(0, 0, side * zoom, side * zoom);
    const { picture } = state;
    pen.drawImage(picture, -corner[1] * zoom, -corner[0] * zoom, picture.width * zoom, picture.height * zoom);
    drawBalls(pen, zoom, corner, 2.5);
  }

  /** Return the area in an outline, in pixels. */
  function area(points) {
    let twice = 0;
    for (let n = 0; n < points.length; n += 2) {
      const [y, x] = points.subarray(n), next = (n + 2) % points.length;
      twice += x * points[next] - y * points[next + 1];
    }
    return Math.abs(twice) / 2;
  }

  /** Draw the balls of a pixel. */
  function showPixel(y, x) {
    const { height, width } = state.image;
    state.pixel = [Math.min(Math.max(y, 0), height - 1), Math.min(Math.max(x, 0), width - 1)];
    state.balls = live.unitBalls(state.metric, state.field, ...state.pixel);
    drawImage();
    drawCloseUp();
    const areas = ["tangent", "geodesic"].map((kind) => area(state.balls[kind]).toFixed(0));
    element("readout").textContent = `pixel (${state.pixel.join(", ")}), areas ${areas.join(" and ")} px²`;
  }

  /** Draw a part of the image, original or filtered, with its PSNR if there is noise. */
  function drawPart(name, title, picture, clean, noise) {
    const { pen, zoom } = prepare(element(name), picture.height, picture.width);
    pen.drawImage(live.toCanvas(picture), 0, 0, picture.width * zoom, picture.height * zoom);
    const quality = noise ? `, ${live.psnr(picture, clean).toFixed(1)} dB` : "";
    element(name).parentElement.querySelector("figcaption").textContent = title + quality;
  }

  /** Filter around the clicked pixel and draw the result next to the original. */
  function showFiltered() {
    const { noise } = readOptions(), where = part(), clean = live.crop(state.clean, where);
    const mean = (sampler) => live.average(state.image, where, sampler, SAMPLES);
    drawPart("original", noise ? "noisy image" : "image", live.crop(state.image, where), clean, noise);
    drawPart("tangent", "tangent balls", mean(live.tangentSampler(state.metric, SAMPLES)), clean, noise);
    drawPart("geodesic", "geodesic balls", mean(live.geodesicSampler(state.field, SAMPLES)), clean, noise);
  }

  /** Print the values of the options and the Python code with the same result. */
  function showOptions({ kind, iota, alpha, epsOmega, noise }) {
    const printed = {
      iota: `${iota} (radius ${(1 / Math.sqrt(iota)).toFixed(1)} px)`, alpha: `${alpha}`, noise: noise.toFixed(2),
      eps: kind === "edge" ? "(gradient only)" : epsOmega === 1 ? "1 (no drift)" : epsOmega.toFixed(2),
    };
    for (const [name, text] of Object.entries(printed)) {
      options.querySelector(`output[for=live-${name}]`).textContent = text;
    }
    element("eps").disabled = kind === "edge";
    const drift = epsOmega < 1 ? `, eps_omega=${epsOmega}` : "";
    const axis = state.image.channels.length > 1 ? ", channel_axis=-1" : "";
    element("code").textContent = [
      "from functools import partial",
      "import metricconv as mc",
      "",
      `metric = partial(mc.metrics.${kind}_metric, iota=${iota}, alpha=${alpha}${drift}, scale=${SCALE},`,
      '                 padding_mode="reflect")',
      `tangent = mc.filters.tangent_filter(image, ${SAMPLES}, metric${axis})`,
      `geodesic = mc.filters.geodesic_filter(image, ${SAMPLES}, metric${axis})`,
    ].join("\n");
  }

  /** Compute everything again: the image or an option has changed. */
  function update() {
    const chosen = readOptions();
    state.image = live.withNoise(state.clean, chosen.noise);
    state.picture = live.toCanvas(state.image);
    const compute = chosen.kind === "gradient" ? live.gradientMetric : live.edgeMetric;
    state.metric = compute(state.image, { ...chosen, scale: SCALE });
    state.field = live.flowField(state.metric);
    showOptions(chosen);
    showPixel(...state.pixel);
    showFiltered();
  }

  /** Show an image, and select a pixel, by default the one in the middle. */
  function open(image, pixel = [image.height >> 1, image.width >> 1]) {
    state.clean = image;
    state.pixel = state.center = pixel;
    update();
  }

  /** Filter around the pixel whose balls are shown. */
  function select() {
    state.center = state.pixel;
    drawImage();
    showFiltered();
  }

  /** Return a function that calls another at most once per frame, with the latest arguments. */
  function oncePerFrame(call) {
    let latest = null;
    return (...values) => {
      if (latest === null) {
        requestAnimationFrame(() => {
          const now = latest;
          latest = null;
          call(...now);
        });
      }
      latest = values;
    };
  }

  /** Return the pixel under a pointer. */
  function pixelAt(event) {
    const box = views.image.getBoundingClientRect(), { height, width } = state.image;
    const fractions = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    return [Math.floor(fractions[0] * height), Math.floor(fractions[1] * width)];
  }

  const move = oncePerFrame(showPixel);
  views.image.addEventListener("pointerdown", (event) => move(...pixelAt(event)));
  views.image.addEventListener("pointermove", (event) => move(...pixelAt(event)));
  views.image.addEventListener("pointerup", (event) => {
    if (event.button !== 0) return;
    showPixel(...pixelAt(event));
    select();
  });
  views.image.addEventListener("pointerleave", () => move(...state.center));
  views.image.addEventListener("keydown", (event) => {
    const direction = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (direction) {
      const length = event.shiftKey ? 10 : 1;
      showPixel(...state.pixel.map((at, axis) => at + length * direction[axis]));
    } else if (event.key === "Enter" || event.key === " ") {
      select();
    } else {
      return;
    }
    event.preventDefault();
  });

  const updateSoon = oncePerFrame(update);
  options.addEventListener("input", (event) => event.target.type === "file" || updateSoon());
  options.addEventListener("submit", (event) => event.preventDefault());
  element("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    const error = element("error");
    try {
      open(await live.readImage(file));
      error.hidden = true;
    } catch {
      error.textContent = `${file.name}: not an image that this browser can read`;
      error.hidden = false;
    }
  });

  // Canvases are drawn for a width: again when it changes.
  let width = 0;
  new ResizeObserver(() => {
    if (width !== views.image.clientWidth) {
      width = views.image.clientWidth;
      showPixel(...state.pixel);
      showFiltered();
    }
  }).observe(views.image);

  open(live.drawnImage(), [45, 39]); // between a crater and the edge of the moon
  width = views.image.clientWidth;
})();
