// Works of a history: years run down, themes stand side by side as lanes. A work is a button; the chosen one is opened
// beside the lanes, with the link to what runs here. Arrow keys walk by year, left and right to the next lane.

const views = new WeakMap();

class Timeline {
  constructor(parent) {
    this.root = make("section", "view-root timeline-root", { parent });
    this.board = make("div", "timeline-board", { parent: this.root, role: "group" });
    this.details = make("aside", "timeline-details", { parent: this.root, "aria-live": "polite" });
  }

  end() {
    this.root.remove();
  }

  update({ header }) {
    const changed = !this.header || this.header.input !== header.input;
    this.header = header;
    if (changed) {
      this.shared = makeShared(header.state.entry);
      this.entry = header.state.entry;
      this.told = null;
      this.build();
    } else if (this.shared.isNews(header.state.entry)) this.entry = header.state.entry;
    this.mark();
  }

  build() {
    const { lanes, entries, title } = this.header;
    this.board.setAttribute("aria-label", title);
    this.board.style.setProperty("--lanes", String(lanes.length));
    this.root.classList.toggle("is-single", lanes.length === 1);
    const head = make("div", "timeline-head timeline-row");
    make("span", "timeline-year", { parent: head });
    for (const lane of lanes) {
      const name = make("span", "timeline-lane-name", { parent: head, text: lane.name });
      name.style.setProperty("--lane", lane.colour);
    }
    const rows = [head];
    this.buttons = new Map();
    let before = null;
    for (const year of new Set(entries.map((entry) => entry.year))) {
      const missing = before === null ? 0 : year - before - 1;
      if (missing >= this.header.break) rows.push(this.gap(lanes, missing));
      before = year;
      const row = make("div", "timeline-row");
      make("span", "timeline-year", { parent: row, text: String(year) });
      for (const lane of lanes) {
        const cell = make("span", "timeline-cell", { parent: row });
        cell.style.setProperty("--lane", lane.colour);
        for (const entry of entries) {
          if (entry.year === year && entry.theme === lane.key) cell.append(this.button(entry, lanes.length === 1));
        }
      }
      rows.push(row);
    }
    rows.at(-1).classList.add("is-last");
    this.board.replaceChildren(...rows);
  }

  gap(lanes, missing) {
    const row = make("div", "timeline-row timeline-gap");
    make("span", "timeline-year", { parent: row, text: "⋮", title: `${missing} years without an entry` });
    for (const lane of lanes) {
      make("span", "timeline-cell", { parent: row }).style.setProperty("--lane", lane.colour);
    }
    return row;
  }

  button(entry, alone) {
    const button = make("button", "timeline-entry", { type: "button", title: `${entry.authors}: ${entry.title}` });
    button.classList.toggle("is-alike", entry.alike);
    make("span", "timeline-dot", { parent: button });
    make("span", "timeline-name", { parent: button, text: entry.name });
    if (alone) make("span", "timeline-work", { parent: button, text: `${entry.authors}: ${entry.title}` });
    button.addEventListener("click", () => this.choose(entry.key === this.entry ? "" : entry.key));
    button.addEventListener("keydown", (event) => this.onKey(event, entry));
    this.buttons.set(entry.key, button);
    return button;
  }

  mark() {
    const first = this.entry || this.header.entries[0].key;
    for (const [key, button] of this.buttons) {
      button.setAttribute("aria-pressed", String(key === this.entry));
      button.tabIndex = key === first ? 0 : -1;
    }
    const entry = this.header.entries.find(({ key }) => key === this.entry);
    if (entry && this.told === entry.key) return; // its link is not replaced under a click
    this.told = entry?.key;
    if (entry) this.tell(entry);
    else this.explain();
  }

  tell(entry) {
    const lane = this.header.lanes.find(({ key }) => key === entry.theme);
    this.details.style.setProperty("--lane", lane.colour);
    const head = make("div", "timeline-details-head");
    make("span", "timeline-details-year", { parent: head, text: String(entry.year) });
    make("span", "timeline-details-name", { parent: head, text: entry.name });
    const parts = [
      head,
      make("p", "timeline-details-title", { text: entry.title }),
      make("p", "timeline-details-authors", { text: entry.authors }),
      make("p", "", { text: entry.added }),
      make("p", "timeline-details-source", { text: entry.source }),
      make("p", "timeline-details-label", { text: entry.alike ? "Something like it runs here" : "It runs here" }),
    ];
    if (this.connected) {
      const link = make("a", "timeline-link", { text: entry.here, href: entry.address, target: "_self" });
      make("span", "timeline-arrow", { parent: link, text: " →" });
      link.addEventListener("click", (event) => this.follow(event, entry));
      parts.push(link);
    } else parts.push(make("p", "", { text: entry.here }));
    this.details.replaceChildren(...parts, ...this.legend());
  }

  explain() {
    this.details.style.removeProperty("--lane");
    const text = "Choose a work to see what it added and to open what runs here.";
    this.details.replaceChildren(make("p", "", { text }), ...this.legend());
  }

  legend() {
    const key = make("div", "timeline-key");
    for (const [name, text] of [["", "the mechanism runs here"], ["is-alike", "one that is like it runs here"]]) {
      const line = make("div", `timeline-key-line ${name}`, { parent: key });
      make("span", "timeline-dot", { parent: line });
      make("span", "", { parent: line, text });
    }
    return [key, ...this.header.notes.map((text) => make("p", "timeline-details-source", { text }))];
  }

  // Acting ------------------------------------------------------------------------------------------------------

  choose(key) {
    this.entry = key;
    this.shared.tell(key);
    this.mark();
    this.setTrigger("pick", { input: this.header.input, entry: key, follow: false });
  }

  /** A plain click stays in this session; the address serves new tabs and copies. */
  follow(event, entry) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
    event.preventDefault();
    this.setTrigger("pick", { input: this.header.input, entry: entry.key, follow: true });
  }

  onKey(event, entry) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { entries, lanes } = this.header;
    const place = entries.indexOf(entry);
    const lane = lanes.findIndex(({ key }) => key === entry.theme);
    let next = null;
    if (event.key === "ArrowDown") next = entries[place + 1];
    else if (event.key === "ArrowUp") next = entries[place - 1];
    else if (event.key === "Home") [next] = entries;
    else if (event.key === "End") next = entries.at(-1);
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const aside = lanes[lane + (event.key === "ArrowRight" ? 1 : -1)];
      if (aside) {
        const there = entries.filter(({ theme }) => theme === aside.key);
        next = there.reduce((best, each) => (Math.abs(each.year - entry.year) < Math.abs(best.year - entry.year) ? each : best));
      }
    } else if (event.key === "Escape" && this.entry) this.choose("");
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (!next) return;
    this.buttons.get(entry.key).tabIndex = -1;
    this.buttons.get(next.key).tabIndex = 0;
    this.buttons.get(next.key).focus();
  }
}

export default function (component) {
  return mountView(views, Timeline, component);
}
