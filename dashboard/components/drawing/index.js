// A picture file of a figure, as it is: for figures that have no view of their own outside the app.

const views = new WeakMap();

class Drawing {
  constructor(parent) {
    this.root = make("section", "view-root drawing", { parent });
    this.image = make("img", "drawing-image", { parent: this.root });
  }

  update({ header, arrays }) {
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(new Blob([arrays.svg], { type: "image/svg+xml" }));
    this.image.src = this.url;
    this.image.alt = header.title;
  }
}

export default function (component) {
  return mountView(views, Drawing, component);
}
