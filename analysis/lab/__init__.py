"""What the Lab computes: one module a section, plain functions from vectors and settings to frozen records."""
