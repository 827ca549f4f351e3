"use strict";
// The page is complete without this script, which switches scales, shows values at the pointer and draws attention.
(() => {
  const units = { bytes: [1024, [" B", " KiB", " MiB", " GiB", " TiB"]], big: [1000, ["", "k", "M", "G", "T", "P", "E"]] };

  function write(value, form) {
    if (value === null || value === undefined) return "–";
    if (form === "percent") return `${Number((100 * value).toPrecision(Math.abs(value) >= 1e-3 ? 3 : 1))} %`;
    if (form === "count") return value.toLocaleString("en-US", { maximumFractionDigits: 1 });
    if (units[form]) {
      const [base, names] = units[form];
      let power = 0;
      while (power + 1 < names.length && Math.abs(value) >= base ** (power + 1)) power += 1;
      return `${Number((value / base ** power).toPrecision(3))}${names[power]}`;
    }
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  }

  function nearest(places, wanted) {
    let best = -1;
    places.forEach((place, index) => {
      if (place !== null && (best < 0 || Math.abs(place - wanted) < Math.abs(places[best] - wanted))) best = index;
    });
    return best;
  }

  function chart(figure) {
    const plot = figure.querySelector(".plot");
    if (!plot) return;
    const data = JSON.parse(figure.querySelector(':scope > script[type="application/json"]').textContent);
    const legend = figure.querySelector(".legend");
    const values = [...legend.querySelectorAll("b")];
    const latest = values.map((value) => value.textContent);
    const cursor = plot.querySelector(".cursor");
    let axis = plot.querySelector(".view").dataset.axis;
    let log = "0";
    let at = -1; // which point of the first line with this axis, for the keyboard

    function show() {
      plot.querySelectorAll(".view").forEach((view) => {
        view.hidden = view.dataset.axis !== axis || view.dataset.log !== log;
      });
      leave();
    }
    function leave() {
      cursor.hidden = true;
      legend.dataset.at = "";
      values.forEach((value, index) => { value.textContent = latest[index]; });
    }
    function read(wanted) {
      const [low, high] = data.ends[axis];
      let shown = null;
      data.lines.forEach((line, index) => {
        const places = line.x[axis] || [];
        const best = nearest(places, wanted);
        if (best < 0) return;
        if (shown === null || Math.abs(places[best] - wanted) < Math.abs(shown - wanted)) shown = places[best];
        const near = Math.abs(places[best] - wanted) <= (high - low) / 8;
        values[index].textContent = near ? write(line.y[best], data.form) : "–";
      });
      if (shown === null) return;
      cursor.hidden = false;
      cursor.style.left = `${(100 * (shown - low)) / (high - low)}%`;
      legend.dataset.at = `${axis} ${write(shown, axis === "step" ? "count" : "big")}`;
    }
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const [low, high] = data.ends[axis];
      const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      read(low + share * (high - low));
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const first = data.lines.find((line) => line.x[axis]);
      if (!step || !first) return;
      const places = first.x[axis];
      at = at < 0 ? (step > 0 ? 0 : places.length - 1) : Math.min(Math.max(at + step, 0), places.length - 1);
      if (places[at] !== null) read(places[at]);
      event.preventDefault();
    });
    figure.querySelectorAll(".tools button").forEach((button) => {
      button.addEventListener("click", () => {
        if (button.dataset.axis) {
          axis = button.dataset.axis;
          figure.querySelectorAll("button[data-axis]").forEach((other) => {
            other.setAttribute("aria-pressed", String(other === button));
          });
          at = -1;
        } else {
          const on = button.getAttribute("aria-pressed") !== "true";
          button.setAttribute("aria-pressed", String(on));
          if (button.dataset.tool === "log") log = on ? "1" : "0";
          else figure.classList.toggle("show-raw", on);
        }
        show();
      });
    });
  }

  function bytes(text) {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  }

  function paint(canvas, map, count, colour) {
    canvas.width = canvas.height = count;
    const context = canvas.getContext("2d");
    const image = context.createImageData(count, count);
    for (let place = 0; place < count * count; place += 1) {
      const alpha = Math.round(255 * Math.sqrt(map[place] / 255)); // small weights stay visible
      image.data.set([colour[0], colour[1], colour[2], alpha], 4 * place);
    }
    context.putImageData(image, 0, 0);
  }

  function attention(root) {
    const steps = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const grid = root.querySelector(".heads");
    const chips = root.querySelector(".chips");
    const canvas = root.querySelector(".map canvas");
    const said = root.querySelector("output");
    const chooser = root.querySelector("select");
    const state = { at: steps.length - 1, layer: 0, head: 0, token: 0 };
    const colour = getComputedStyle(document.documentElement).getPropertyValue("--tint").split(",").map(Number);
    const sides = [...root.querySelectorAll(".sides")];
    let maps = [];

    function load() {
      const step = steps[state.at];
      maps = step.maps.map((layer) => layer.map(bytes));
      state.layer = Math.min(state.layer, maps.length - 1);
      state.head = Math.min(state.head, maps[0].length - 1);
      state.token = Math.min(state.token, step.tokens.length - 1);
      grid.replaceChildren();
      grid.style.gridTemplateColumns = `auto repeat(${maps[0].length}, minmax(24px, 1fr))`;
      maps.forEach((layer, index) => {
        const name = document.createElement("span");
        name.textContent = String(index);
        grid.append(name);
        layer.forEach((map, head) => {
          const button = document.createElement("button");
          const small = document.createElement("canvas");
          button.type = "button";
          button.setAttribute("aria-label", `layer ${index}, head ${head}`);
          button.addEventListener("click", () => { state.layer = index; state.head = head; choose(); });
          paint(small, map, step.tokens.length, colour);
          button.append(small);
          grid.append(button);
        });
      });
      sides.forEach((side) => side.replaceChildren(...step.tokens.map((token) => {
        const label = document.createElement("span");
        label.textContent = token;
        return label;
      })));
      chips.replaceChildren(...step.tokens.map((token, index) => {
        const chip = document.createElement("button");
        chip.type = "button";
        chip.textContent = token;
        chip.addEventListener("click", () => { state.token = index; mark(); });
        return chip;
      }));
      choose();
    }
    function choose() {
      const heads = maps[0].length;
      [...grid.querySelectorAll("button")].forEach((button, index) => {
        button.setAttribute("aria-pressed", String(index === state.layer * heads + state.head));
      });
      paint(canvas, maps[state.layer][state.head], steps[state.at].tokens.length, colour);
      mark();
    }
    function tell(from, to) {
      const { tokens } = steps[state.at];
      const share = maps[state.layer][state.head][from * tokens.length + to] / 255;
      said.textContent =
        `layer ${state.layer}, head ${state.head}: “${tokens[from]}” looks at “${tokens[to]}” with ${write(share, "percent").replace(" ", "\u00a0")}`;
    }
    function mark() {
      const { tokens } = steps[state.at];
      const row = maps[state.layer][state.head].subarray(state.token * tokens.length, (state.token + 1) * tokens.length);
      [...chips.children].forEach((chip, index) => {
        chip.style.setProperty("--w", String(0.85 * Math.sqrt(row[index] / 255)));
        chip.setAttribute("aria-pressed", String(index === state.token));
        chip.title = write(row[index] / 255, "percent");
      });
      tell(state.token, row.indexOf(Math.max(...row)));
    }
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const { length } = steps[state.at].tokens;
      const place = (offset, size) => Math.min(Math.max(Math.floor((offset / size) * length), 0), length - 1);
      tell(place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width));
    });
    canvas.addEventListener("pointerleave", mark);
    if (chooser) chooser.addEventListener("change", () => { state.at = Number(chooser.value); load(); });
    load();
  }

  function reload() {
    const box = document.getElementById("reload");
    if (!box) return;
    let timer = 0;
    const set = () => {
      clearTimeout(timer);
      if (box.checked) timer = setTimeout(() => location.reload(), 30000);
      history.replaceState(null, "", box.checked ? "#reload" : "#");
    };
    box.checked = location.hash === "#reload";
    if (box.checked) set();
    box.addEventListener("change", set);
  }

  document.querySelectorAll("figure.chart").forEach(chart);
  document.querySelectorAll(".attention-view").forEach(attention);
  reload();
})();
