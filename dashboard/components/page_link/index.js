// The address of the view on the screen, to read and to copy. The query comes from Python, the rest is where the page
// is, so that the address is right behind a proxy or under another name. Runs after kit.js.

const views = new WeakMap();

class PageLink {
  constructor(parent) {
    this.root = make("div", "view-root link", { parent, role: "group", "aria-label": "Link to this view" });
    this.field = make("input", "link-field", { parent: this.root, type: "text", readonly: "", spellcheck: "false" });
    this.field.setAttribute("aria-label", "Address of this view");
    this.field.addEventListener("focus", () => this.field.select());
    this.button = makeButton(this.root, "Copy link", "Copy the address of this view", () => this.copy());
    this.said = make("div", "link-said", { parent: this.root, role: "status", "aria-live": "polite" });
  }

  update({ header }) {
    const { origin, pathname } = window.location;
    const address = `${origin}${pathname}?${header.query}`;
    if (address === this.field.value) return;
    this.field.value = address;
    this.said.textContent = "";
  }

  end() {
    this.root.remove();
  }

  /** Copies the address; where no way is allowed the text stands selected, ready for the keyboard. */
  async copy() {
    const copied = (await this.asked()) || this.selected();
    this.said.textContent = copied ? "Copied" : "Not allowed here: press Ctrl+C";
  }

  async asked() {
    try {
      await navigator.clipboard.writeText(this.field.value); // there is no clipboard on a plain http address
      return true;
    } catch {
      return false;
    }
  }

  selected() {
    this.field.focus();
    this.field.select();
    return document.execCommand("copy");
  }
}

export default function (component) {
  return mountView(views, PageLink, component);
}
