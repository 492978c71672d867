"""A first look, and the paper's tables and figures: each module is a command, ``python -m metricconv.experiments.…``"""
