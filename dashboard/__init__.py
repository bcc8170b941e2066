"""The Streamlit app: pages, components, and the figures that they show. Imports ``analysis`` and ``attn_core``."""
