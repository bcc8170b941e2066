"""AttnScope's pages. Start with ``make run``, or ``streamlit run dashboard/app.py`` in the checkout.

This file and everything that it imports need NumPy and Streamlit alone: the first page is painted before torch is
imported. What needs torch is imported by a background thread (``dashboard.warmup``).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # Streamlit puts this file's folder on the path, not the checkout

import streamlit as st  # noqa: E402

from dashboard import cached, frame, selection, sidebar  # noqa: E402
from dashboard.boundary import page_boundary  # noqa: E402

st.set_page_config(
    page_title="AttnScope",
    page_icon=str(Path(__file__).with_name("icon.png")),
    layout="wide",
    initial_sidebar_state="expanded",
)
frame.styles()

page = st.navigation(
    [
        st.Page("views/text.py", title="Text", url_path="text", default=True),
        st.Page("views/image.py", title="Image", url_path="image"),
        st.Page("views/lab.py", title="Lab", url_path="lab"),
        st.Page("views/scale.py", title="Scale", url_path="scale"),
        st.Page("views/models.py", title="Models", url_path="models"),
    ],
    position="top",
)
name = selection.page_of(page.url_path)
selection.read_link(name)
with page_boundary("The sidebar could not be shown"):
    sidebar.show(name)
page.run()
selection.write_link(name)
cached.warm_up(name)
