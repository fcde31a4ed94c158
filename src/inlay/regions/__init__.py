"""The region-pattern wing: regions, patterns, insertion points, schemes and how they evolve. Readers may skip it."""
