"""Print every benchmark, one after the other: ``python -m benchmarks``."""

from __future__ import annotations

from benchmarks import adversarial, capture, evidence, goals, head_view, heads, preview, startup, variants
from benchmarks.measure import machine


def main() -> None:
    """Run all of them."""
    print(f"AttnScope benchmarks ({machine()})")
    startup.main([])
    capture.main([])
    preview.main([])
    evidence.main([])
    heads.main([])
    adversarial.main([])
    variants.main([])
    head_view.main([])
    goals.main(["--large"])


if __name__ == "__main__":
    main()
