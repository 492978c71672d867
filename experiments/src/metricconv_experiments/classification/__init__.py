"""Classification, the paper's second experiment: ResNets whose later convolutions are adaptive.

Every method starts as the standard network and trains on the same schedule. Methods are compared at their own best
learning rate of the predictors. The paper's initialization and schedule are also available. Commands, each with a CSV
that includes the published numbers:

- ``classify``: one run, or a grid of runs;
- ``classify-sweep``: accuracy as a function of the predictor learning-rate multiplier, with a figure;
- ``classify-diagnose``: statistics of the learned supports, by layer;
- ``classify-gradcam``: class activation maps of each method.
"""
