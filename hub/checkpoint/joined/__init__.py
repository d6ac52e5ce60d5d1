"""Several units as one: roots, submodules, nested repositories."""
