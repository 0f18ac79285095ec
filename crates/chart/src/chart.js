// Lets charts answer: values below the pointer, zoom along x, keys, and series that can be hidden.
// A chart is complete without this. Texts and marks are those of unit.rs and axis.rs.
"use strict";
(() => {
  const MARKS_MAX = 6, ROUNDING = 1e-9, SIDE = 1000, NARROWEST = 1e-4, DRAG_LEAST_PX = 6, POINTS_TOLD = 6;

  const digits = v => Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(1) : v.toFixed(2);
  const short = v => {
    const size = Math.abs(v);
    return size >= 1e9 ? (v / 1e9).toFixed(2) + "G" : size >= 1e6 ? (v / 1e6).toFixed(2) + "M"
      : size >= 1e4 ? (v / 1e3).toFixed(1) + "k" : digits(v);
  };
  const time = v => v >= 1e9 ? (v / 1e9).toFixed(2) + " s" : v >= 1e6 ? (v / 1e6).toFixed(2) + " ms"
    : v >= 1e3 ? (v / 1e3).toFixed(2) + " us" : v.toFixed(0) + " ns";
  const bytes = v => {
    const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let at = 0;
    for (; Math.abs(v) >= 1024 && at < names.length - 1; at++) v /= 1024;
    return (at ? digits(v) : v.toFixed(0)) + " " + names[at];
  };
  const TEXTS = {
    count: short, time, bytes,
    percent: v => digits(v) + " %",
    rate: v => bytes(v) + "/s",
    nines: v => "p" + (100 * (1 - 10 ** -v)).toFixed(Math.min(9, Math.max(0, Math.ceil(v - 1)))),
  };
  const trimmed = text => text.replace(/\.(\d*?)0+(?!\d)/, (_, kept) => kept ? "." + kept : "");

  // An axis of values, as it is told in data-x and data-y: scale, unit, ends.
  class Axis {
    constructor(told) {
      const [scale, unit, low, high] = told.split(" ");
      Object.assign(this, { scale, unit, low: +low, high: +high, binary: unit === "bytes" || unit === "rate" });
    }
    place(value) {
      return this.scale === "log" ? Math.log(value / this.low) / Math.log(this.high / this.low)
        : (value - this.low) / (this.high - this.low);
    }
    value(place) {
      return this.scale === "log" ? this.low * (this.high / this.low) ** place : this.low + place * (this.high - this.low);
    }
    text(value) { return TEXTS[this.unit](this.scale === "mirrored" ? Math.abs(value) : value); }
    part(from, to) { return Object.assign(Object.create(Axis.prototype), this, { low: this.value(from), high: this.value(to) }); }
    marks() {
      const values = (this.scale === "log" && this.powers()) || this.steps();
      const text = value => value === 0 && this.unit !== "nines" ? "0" : trimmed(this.text(value));
      return values.map(value => [this.place(value), text(value)]);
    }
    steps() {
      const least = (this.high - this.low) / (MARKS_MAX - 1);
      const power = 10 ** Math.floor(Math.log10(least));
      const round = [1, 2, 5].find(times => power * times >= least * (1 - ROUNDING)) || 10;
      const step = this.binary ? 2 ** Math.ceil(Math.log2(least)) : power * round;
      const first = Math.ceil(this.low / step - ROUNDING), last = Math.floor(this.high / step + ROUNDING);
      const count = Math.max(0, Math.min(MARKS_MAX, last - first));
      return Array.from({ length: count + 1 }, (_, index) => (first + index) * step);
    }
    powers() {
      const base = this.binary ? 2 : 10, power = value => Math.log(value) / Math.log(base);
      const first = Math.floor(power(this.low) + ROUNDING), last = Math.ceil(power(this.high) - ROUNDING);
      const between = base === 10 && power(this.high / this.low) <= 2 ? [1, 2, 5] : [1];
      const all = [];
      for (let exponent = first; exponent <= last; exponent++) {
        for (const times of between) {
          const value = base ** exponent * times;
          if (value >= this.low * (1 - ROUNDING) && value <= this.high * (1 + ROUNDING)) all.push(value);
        }
      }
      const stride = Math.max(1, Math.ceil(all.length / MARKS_MAX));
      return all.length > 1 ? all.filter((_, index) => index % stride === 0) : null;
    }
  }

  const element = (parent, name, type) => {
    const made = document.createElementNS(parent.namespaceURI, name);
    made.setAttribute("class", type);
    return parent.appendChild(made);
  };
  const numbers = text => text ? text.split(" ").map(Number) : [];

  // What a plot tells at a place: lines and columns have series, a heat map has cells.
  class Series {
    constructor(group, slots) {
      this.group = group;
      this.y = numbers(group.dataset.y);
      this.x = slots ? this.y.map((_, index) => index) : numbers(group.dataset.x);
      this.names = group.dataset.points ? group.dataset.points.split("\n") : null;
    }
    nearest(place, placeOf) {
      let best = -1, least = Infinity;
      this.x.forEach((x, index) => {
        const far = Math.abs(placeOf(x) - place);
        if (far < least) [best, least] = [index, far];
      });
      return best;
    }
  }
  const cells = group => {
    const rows = +group.dataset.rows, columns = +group.dataset.columns, counts = [];
    for (const count of numbers(group.dataset.counts)) {
      if (count < 0) for (let left = -count; left; left--) counts.push(0);
      else counts.push(count);
    }
    return { rows, columns, count: (column, row) => counts[column * rows + row] || 0 };
  };

  class Plot {
    constructor(figure, svg) {
      Object.assign(this, { figure, svg, from: 0, to: 1, at: null, row: 0 });
      this.labels = figure.querySelector(".x");
      this.name = figure.querySelector(".x-name").textContent;
      const slots = figure.dataset.x.match(/^slots (\d+)$/);
      this.slots = slots && Array.from(this.labels.children, label => label.textContent);
      this.x = slots ? null : new Axis(figure.dataset.x);
      this.y = new Axis(figure.dataset.y);
      this.series = Array.from(svg.querySelectorAll(".series"), group => new Series(group, this.slots));
      const map = svg.querySelector(".cells");
      this.cells = map && cells(map);
      // Points have names, and are told by where they are on both axes.
      this.isScatter = this.series.some(series => series.names);
      this.tip = element(figure.querySelector(".frame"), "div", "tip hidden");
      this.tip.setAttribute("role", "status");
      this.cursor = element(svg, "path", "cursor");
      this.brush = element(svg, "rect", "brush hidden");
      this.brush.setAttribute("height", SIDE);
      this.listen();
    }
    placeOf(x) { return this.slots ? (x + 0.5) / this.slots.length : this.x.place(x); }
    // The places that arrow keys go to.
    stops() {
      if (this.cells) return Array.from({ length: this.cells.columns }, (_, index) => (index + 0.5) / this.cells.columns);
      const shown = this.series.filter(series => !series.group.classList.contains("hidden"));
      return [...new Set(shown.flatMap(series => series.x))].map(x => this.placeOf(x)).sort((a, b) => a - b);
    }
    points() {
      const shown = this.series.filter(series => series.names && !series.group.classList.contains("hidden"));
      return shown.flatMap(series => series.x.map((x, index) =>
        ({ type: series.group.getAttribute("class"), name: series.names[index], x, y: series.y[index] })));
    }
    toldOfPoint(place) {
      const box = this.svg.getBoundingClientRect(), points = this.points();
      const far = point => Math.hypot((this.placeOf(point.x) - place) / (this.to - this.from) * box.width,
        (this.y.place(point.y) - this.row) * box.height);
      if (!points.length) return null;
      const best = points.reduce((best, point) => far(point) < far(best) ? point : best);
      const same = points.filter(point => point.x === best.x && point.y === best.y);
      const more = same.length > POINTS_TOLD ? [["plain", `and ${same.length - POINTS_TOLD} more`]] : [];
      const yName = this.figure.querySelector(".y-name").textContent;
      return { place: this.placeOf(best.x), lines: [...same.slice(0, POINTS_TOLD).map(point => [point.type, point.name]),
        ...more, ["plain", `${this.name}: ${this.x.text(best.x)}`], ["plain", `${yName}: ${this.y.text(best.y)}`]] };
    }
    // To the next place with a point, from left to right, and at one place from below.
    step(by) {
      const places = this.points().map(point => [this.placeOf(point.x), this.y.place(point.y)])
        .filter(([place]) => place >= this.from - ROUNDING && place <= this.to + ROUNDING)
        .sort((one, other) => one[0] - other[0] || one[1] - other[1]);
      const order = ([place, row]) => place - this.at || row - this.row;
      const beyond = places.filter(one => this.at === null || order(one) * by > ROUNDING);
      const next = beyond.length ? beyond[by > 0 ? 0 : beyond.length - 1] : places[by > 0 ? places.length - 1 : 0];
      if (!next) return;
      this.row = next[1];
      this.show(next[0]);
    }
    told(place) {
      if (this.cells) return this.toldOfCell(place);
      if (this.isScatter) return this.toldOfPoint(place);
      const shown = this.series.filter(series => !series.group.classList.contains("hidden") && series.x.length);
      const found = shown.map(series => [series, series.nearest(place, x => this.placeOf(x))]);
      if (!found.length) return null;
      const far = ([series, index]) => Math.abs(this.placeOf(series.x[index]) - place);
      const first = found.reduce((best, one) => far(one) < far(best) ? one : best);
      const x = first[0].x[first[1]], text = value => this.slots ? this.slots[value] : this.x.text(value);
      const lines = found.map(([series, index]) => {
        const y = series.y[index], name = series.group.dataset.name;
        const other = series.x[index] === x ? "" : " at " + text(series.x[index]);
        return [series.group.getAttribute("class"), `${name}: ${Number.isFinite(y) ? this.y.text(y) : "-"}${other}`];
      });
      return { place: this.placeOf(x), lines: [["plain", `${this.name}: ${text(x)}`], ...lines] };
    }
    toldOfCell(place) {
      const { columns, rows, count } = this.cells;
      const column = Math.min(columns - 1, Math.floor(place * columns)), row = Math.min(rows - 1, Math.floor(this.row * rows));
      const range = (axis, index, all) => `${axis.text(axis.value(index / all))} to ${axis.text(axis.value((index + 1) / all))}`;
      return { place: (column + 0.5) / columns, lines: [["plain", range(this.x, column, columns)],
        ["plain", range(this.y, row, rows)], ["plain", trimmed(short(count(column, row)))]] };
    }
    show(place) {
      const told = this.told(place);
      if (!told) return this.hide();
      this.at = told.place;
      this.cursor.setAttribute("d", `M${told.place * SIDE} 0V${SIDE}`);
      this.tip.replaceChildren();
      for (const [type, text] of told.lines) element(this.tip, "div", type).textContent = text;
      this.tip.classList.remove("hidden");
      const frame = this.tip.parentNode.getBoundingClientRect(), box = this.svg.getBoundingClientRect();
      const px = box.left - frame.left + (told.place - this.from) / (this.to - this.from) * box.width;
      const width = this.tip.offsetWidth, right = px + 12 + width <= frame.width;
      this.tip.style.left = `${right ? px + 12 : Math.max(0, px - 12 - width)}px`;
    }
    hide() {
      this.at = null;
      this.cursor.removeAttribute("d");
      this.tip.classList.add("hidden");
    }
    zoom(from, to) {
      [from, to] = [Math.max(0, from), Math.min(1, to)];
      const least = this.slots ? 1 / this.slots.length : NARROWEST;
      if (to - from < least) return;
      [this.from, this.to] = [from, to];
      this.svg.setAttribute("viewBox", `${from * SIDE} 0 ${(to - from) * SIDE} ${SIDE}`);
      const marks = this.slots ? this.slots.map((name, index) => [(this.placeOf(index) - from) / (to - from), name])
        : this.x.part(from, to).marks();
      this.labels.replaceChildren();
      for (const [place, text] of marks.filter(([place]) => place >= -ROUNDING && place <= 1 + ROUNDING)) {
        const label = element(this.labels, "span", "");
        label.style.left = `${place * 100}%`;
        label.textContent = text;
      }
      if (this.at !== null) this.at < from || this.at > to ? this.hide() : this.show(this.at);
    }
    pointed(event) {
      const box = this.svg.getBoundingClientRect();
      const part = (event.clientX - box.left) / box.width;
      this.row = Math.min(1, Math.max(0, 1 - (event.clientY - box.top) / box.height));
      return this.from + Math.min(1, Math.max(0, part)) * (this.to - this.from);
    }
    listen() {
      const { svg } = this;
      svg.setAttribute("tabindex", "0");
      svg.setAttribute("aria-label", svg.getAttribute("aria-label")
        + ". Arrow keys: values. Plus and minus: zoom. Escape: everything.");
      let begun = null;
      const end = () => {
        begun = null;
        this.brush.classList.add("hidden");
      };
      svg.addEventListener("pointerdown", event => {
        if (event.button !== 0) return;
        begun = { px: event.clientX, place: this.pointed(event) };
        svg.setPointerCapture(event.pointerId);
      });
      svg.addEventListener("pointermove", event => {
        const place = this.pointed(event);
        if (begun && Math.abs(event.clientX - begun.px) >= DRAG_LEAST_PX) {
          this.brush.classList.remove("hidden");
          this.brush.setAttribute("x", Math.min(place, begun.place) * SIDE);
          this.brush.setAttribute("width", Math.abs(place - begun.place) * SIDE);
        }
        this.show(place);
      });
      svg.addEventListener("pointerup", event => {
        if (begun && Math.abs(event.clientX - begun.px) >= DRAG_LEAST_PX) {
          const place = this.pointed(event);
          this.zoom(Math.min(place, begun.place), Math.max(place, begun.place));
        }
        end();
      });
      svg.addEventListener("pointercancel", end);
      svg.addEventListener("pointerleave", () => begun || this.hide());
      svg.addEventListener("dblclick", () => this.zoom(0, 1));
      svg.addEventListener("blur", () => this.hide());
      svg.addEventListener("keydown", event => this.key(event));
    }
    key(event) {
      const middle = this.at ?? (this.from + this.to) / 2, half = (this.to - this.from) / 2;
      const move = step => {
        if (this.isScatter) return this.step(step);
        const stops = this.stops().filter(stop => stop >= this.from - ROUNDING && stop <= this.to + ROUNDING);
        if (!stops.length) return;
        const beyond = step > 0 ? stops.filter(stop => this.at === null || stop > this.at + ROUNDING)
          : stops.filter(stop => this.at === null || stop < this.at - ROUNDING).reverse();
        this.show(beyond.length ? beyond[0] : step > 0 ? stops[stops.length - 1] : stops[0]);
      };
      const climb = step => {
        if (!this.cells) return false;
        this.row = Math.min(1 - ROUNDING, Math.max(0, this.row + step / this.cells.rows));
        this.show(middle);
      };
      const widen = times => {
        const [from, to] = [middle - half * times, middle + half * times];
        const shift = Math.max(0, -from) - Math.max(0, to - 1);
        this.zoom(from + shift, to + shift);
      };
      const keys = {
        ArrowRight: () => move(1), ArrowLeft: () => move(-1), ArrowUp: () => climb(1), ArrowDown: () => climb(-1),
        "+": () => widen(0.5), "=": () => widen(0.5), "-": () => widen(2), Escape: () => { this.hide(); this.zoom(0, 1); },
      };
      if (!event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key] && keys[event.key]() !== false) {
        event.preventDefault();
      }
    }
  }

  for (const figure of document.querySelectorAll("figure.chart")) {
    const svg = figure.querySelector("svg.plot");
    if (svg) new Plot(figure, svg);
    for (const key of figure.querySelectorAll(".key")) {
      const toggle = () => {
        const shown = key.getAttribute("aria-pressed") !== "true";
        key.setAttribute("aria-pressed", shown);
        figure.querySelectorAll(`.series[data-series="${key.dataset.series}"]`)
          .forEach(group => group.classList.toggle("hidden", !shown));
      };
      key.setAttribute("role", "button");
      key.setAttribute("tabindex", "0");
      key.setAttribute("aria-pressed", "true");
      key.addEventListener("click", toggle);
      key.addEventListener("keydown", event => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      });
    }
  }
})();
