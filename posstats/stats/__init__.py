"""Array kernels: numpy, scipy and statsmodels; no labels, no torch."""
