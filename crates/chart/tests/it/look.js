// Looks at the page in each frame, and leaves what is wrong with it, a line each.
"use strict";
addEventListener("load", () => {
  const faults = [];
  let plots = 0, width = 0;
  const check = (sound, fault) => { if (!sound) faults.push(`at ${width} px ${fault}`); };
  const shown = figure => figure.querySelector("figcaption").textContent;
  const marks = figure => Array.from(figure.querySelectorAll(".x span"), span => [span.textContent, parseFloat(span.style.left)]);
  // Rust and JavaScript write a place with their own numbers of digits.
  const same = (one, other) => one.length === other.length
    && one.every(([text, place], at) => text === other[at][0] && Math.abs(place - other[at][1]) < 0.1);

  const lookAtLabels = (figure, page) => {
    const boxes = Array.from(figure.querySelectorAll(".x span"), span => span.getBoundingClientRect());
    boxes.slice(1).forEach((box, at) => check(boxes[at].right <= box.left, `labels of ${shown(figure)} overlap`));
    for (const span of figure.querySelectorAll(".x span, .y span, .key, .name, .figure")) {
      const box = span.getBoundingClientRect();
      check(box.left >= -0.5 && box.right <= page.documentElement.clientWidth, `${span.textContent} of ${shown(figure)} is cut`);
    }
  };
  const press = (svg, key) => svg.dispatchEvent(new svg.ownerDocument.defaultView.KeyboardEvent("keydown", { key }));
  const point = (svg, type, part) => {
    const box = svg.getBoundingClientRect();
    const at = { clientX: box.left + box.width * part, clientY: box.top + box.height / 2, button: 0, pointerId: 1 };
    svg.dispatchEvent(new svg.ownerDocument.defaultView.PointerEvent(type, at));
  };
  const lookAtPlot = (figure, svg, page) => {
    const title = shown(figure), before = marks(figure), tip = figure.querySelector(".tip");
    // A pointer that is made up cannot be captured.
    svg.setPointerCapture = () => {};
    press(svg, "ArrowRight");
    check(!tip.classList.contains("hidden") && tip.children.length > 1, `${title} tells no values by key`);
    point(svg, "pointermove", 0.999);
    check(!/NaN|undefined|Infinity/.test(tip.textContent), `${title} tells ${tip.textContent}`);
    const box = tip.getBoundingClientRect();
    check(box.left >= 0 && box.right <= page.documentElement.clientWidth, `the values of ${title} are cut`);
    point(svg, "pointerdown", 0.25);
    point(svg, "pointermove", 0.5);
    point(svg, "pointerup", 0.75);
    const view = svg.getAttribute("viewBox").split(" ").map(Number);
    check(Math.abs(view[0] - 250) < 3 && Math.abs(view[2] - 500) < 3, `${title} is zoomed to ${view}`);
    check(!same(marks(figure), before) && marks(figure).length, `${title} keeps its labels when zoomed`);
    svg.dispatchEvent(new page.defaultView.MouseEvent("dblclick"));
    press(svg, "+");
    press(svg, "Escape");
    check(svg.getAttribute("viewBox") === "0 0 1000 1000", `${title} stays zoomed`);
    // The script must write marks and texts as the page has them.
    check(same(marks(figure), before), `${title} is marked ${marks(figure)} after zooming, and not ${before}`);
  };
  const lookAtKeys = figure => {
    for (const key of figure.querySelectorAll(".key")) {
      const groups = figure.querySelectorAll(`.series[data-series="${key.dataset.series}"]`);
      const hidden = () => Array.from(groups).filter(group => group.classList.contains("hidden")).length;
      key.click();
      check(groups.length && hidden() === groups.length, `${key.textContent} of ${shown(figure)} cannot be hidden`);
      key.click();
      check(hidden() === 0, `${key.textContent} of ${shown(figure)} stays hidden`);
    }
  };
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement;
    width = frame.width;
    frame.contentWindow.addEventListener("error", event => check(false, event.message));
    for (const closed of page.querySelectorAll("details")) closed.open = true;
    check(root.scrollWidth <= root.clientWidth, `the page is ${root.scrollWidth} px wide`);
    for (const figure of page.querySelectorAll("figure.chart")) {
      lookAtLabels(figure, page);
      lookAtKeys(figure);
      const svg = figure.querySelector("svg.plot");
      if (svg) { plots++; lookAtPlot(figure, svg, page); }
    }
  }
  const told = document.createElement("pre");
  told.textContent = [`looked at ${plots} plots`, ...faults].join("\n");
  document.body.replaceChildren(told);
});
