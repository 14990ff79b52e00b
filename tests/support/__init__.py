"""What tests share, and scripts in lab/ may use: builders, doubles, comparisons, other programs."""
