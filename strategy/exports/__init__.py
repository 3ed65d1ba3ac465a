"""Plans in other systems' words: files of trainers, layouts as programs of DTensor and JAX."""
