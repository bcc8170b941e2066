"""The pages, and the views that they show: one short module each."""
