"""One module per subcommand of ``posstats``; :mod:`posstats.cli` registers them."""
