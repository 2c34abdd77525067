"""A package of its own: torch-fidelity installs another one called ``tests``, which would be found instead."""
