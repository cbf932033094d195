"""The results of an analysis as one page that needs nothing but a browser."""
