"""Scripts that measure; each says with `--help` what it answers: python -m lab.NAME."""
